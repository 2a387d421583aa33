// CUDA for the operator tests, on a CPU: included before a .cu file, so that a C++ compiler takes it as it is. Blocks
// run one after the other, the last one first. What the real thing leaves undefined is made visible: memory starts as
// NaN, and a barrier that some thread never reaches ends the process. Only what the kernels use is here.
#pragma once

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "arithmetic.h"
#include "asynchronous.h"
#include "host_calls.h"
#include "threads.h"

#define TRIGRAPH_PROVIDER (emulator::provider())

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __shared__ static
#define __restrict__ __restrict
#define __launch_bounds__(...)
#define __maxnreg__(...)
#define __grid_constant__
#define __align__(n) __attribute__((aligned(n)))

struct alignas(8) uint2 {
  uint32_t x, y;
};
struct alignas(16) uint4 {
  uint32_t x, y, z, w;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint2 make_uint2(uint32_t x, uint32_t y) { return {x, y}; }

namespace emulator {

inline void run(const std::function<void()>& body, dim3 grid, int threads, size_t shared_bytes) {
  const std::lock_guard<std::mutex> lock(running);
  const unsigned count = static_cast<unsigned>(threads);
  if (shared_bytes > most_shared() || count > kMostThreads) die("a launch asks for more than the device has");
  if (grid.y > 65535 || grid.z > 65535) die("a grid is larger than devices take");
  while (block.made < count) make_fiber(block.made++);
  block.body = &body;
  ++block.launch;
  block.grid = grid;
  block.size = dim3(count);
  for (uint64_t left = uint64_t{grid.x} * grid.y * grid.z; left--;) {
    block.index = dim3(left % grid.x, left / grid.x % grid.y, left / grid.x / grid.y);
    block.live = count;
    block.current = block.arrived = block.idle = 0;
    block.votes = 0;
    poison(block.shared, shared_bytes);
    std::memset(block.shared + shared_bytes, 0xff, kBehindShared);
    for (unsigned i = 0; i < count; ++i) {
      block.fibers[i].done = false;
      block.fibers[i].copies.begin(block.dice >> 24 & 1);
      Warp& warp = block.warps[i / kWarp];
      if (i % kWarp == 0) warp.size = warp.arrived = 0;
      ++warp.size;
    }
    block.dice = block.dice * 1664525 + 1013904223;
    block.descending = block.dice >> 31;
    block.scheduler_watched = races::own_fiber();
    races::release(&block.started);
    resume(block.scheduler, block.fibers[(block.dice >> 8) % count]);
    races::acquire(&block.ended);
    const char* behind = block.shared + shared_bytes;
    if (std::count(behind, behind + kBehindShared, '\xff') != kBehindShared)
      die("a block wrote behind its shared memory");
  }
}

// What launches of a kernel on a device may have of dynamic shared memory. How much of the 48 KB that need not be asked
// for a kernel has left beside its own is not known here.
inline std::mutex asking;
inline std::map<std::pair<const void*, int>, size_t> asked_shared;

inline void launch(const void* kernel, const std::function<void()>& body, dim3 grid, int threads, size_t shared_bytes,
                   cudaStream_t stream) {
  int device = 0;
  cudaGetDevice(&device);
  {
    const std::lock_guard<std::mutex> lock(asking);
    if (shared_bytes > asked_shared[{kernel, device}]) die("a launch has more shared memory than was asked for");
  }
  enqueue(
      {kernel, {grid.x, grid.y, grid.z}, threads, shared_bytes}, [=] { run(body, grid, threads, shared_bytes); },
      stream);
}

// Scratch memory of a call: NaNs between red zones, which no kernel may write. Where kernels are put off it is closed
// to the host, and has none.
constexpr size_t kRedZone = 64;
constexpr char kRed = 0x5a;
inline size_t red_zone() { return at_once() ? kRedZone : 0; }
inline void prepare_scratch(char* memory, size_t bytes, size_t zone) {
  if (!at_once()) return;
  std::memset(memory, kRed, zone);
  poison(memory + zone, bytes);
  std::memset(memory + zone + bytes, kRed, zone);
}
inline void check_zones(const char* memory, size_t bytes, size_t zone) {
  const auto written = [](char byte) { return byte != kRed; };
  if (std::any_of(memory, memory + zone, written)) die("a kernel wrote before its scratch memory");
  const char* end = memory + zone + bytes;
  if (std::any_of(end, end + zone, written)) die("a kernel wrote behind its scratch memory");
}

// The host's threads run beside a kernel, which gives them a processor while it looks for what they write.
inline void write_to_host(uint64_t* word, uint64_t value) { __atomic_store_n(word, value, __ATOMIC_RELEASE); }
inline uint64_t read_from_host(const uint64_t* word) {
  sched_yield();
  return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

// With TRIGRAPH_EMULATED_HASTE an hour passes from each look to the next.
inline uint64_t nanoseconds() {
  static uint64_t hours = 0;
  if (setting("TRIGRAPH_EMULATED_HASTE", 0)) return ++hours * 3600000000000;
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
}

}  // namespace emulator

enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };
inline cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute, int bytes) {
  int device = 0;
  cudaGetDevice(&device);
  const std::lock_guard<std::mutex> lock(emulator::asking);
  emulator::asked_shared[{kernel, device}] = static_cast<size_t>(bytes);
  return cudaSuccess;
}

#define threadIdx (dim3(emulator::current(), 0, 0))
#define blockIdx (emulator::block.index)
#define blockDim (emulator::block.size)
#define gridDim (emulator::block.grid)

inline void __syncthreads() { emulator::barrier(0); }
inline int __syncthreads_or(int vote) { return emulator::barrier(vote != 0); }
inline void __syncwarp() { emulator::warp_barrier(); }
inline void __threadfence() {}
inline void __threadfence_system() {}

template <class T>
T __shfl_sync(unsigned, T value, int lane) {
  return emulator::shuffle(value, lane);
}
template <class T>
T __shfl_xor_sync(unsigned, T value, int mask) {
  return emulator::shuffle(value, static_cast<int>(emulator::current() % emulator::kWarp) ^ mask);
}
template <class T>
T __shfl_up_sync(unsigned, T value, int offset) {
  const int lane = static_cast<int>(emulator::current() % emulator::kWarp);
  return emulator::shuffle(value, lane < offset ? lane : lane - offset);
}

inline unsigned __reduce_max_sync(unsigned, unsigned value) {
  const emulator::races::Unwatched unwatched;
  emulator::require_whole_warp();
  const uint32_t (&given)[emulator::kWarp] = emulator::exchange({value})[0];
  return *std::max_element(given, given + emulator::kWarp);
}
inline unsigned __reduce_min_sync(unsigned mask, unsigned value) { return ~__reduce_max_sync(mask, ~value); }

inline unsigned __ballot_sync(unsigned, int vote) {
  const emulator::races::Unwatched unwatched;
  emulator::require_whole_warp();
  const uint32_t (&given)[emulator::kWarp] = emulator::exchange({uint32_t(vote != 0)})[0];
  unsigned votes = 0;
  for (int lane = 0; lane < emulator::kWarp; ++lane) votes |= given[lane] << lane;
  return votes;
}

template <class T>
T atomicAdd(T* p, T value) {
  return __atomic_fetch_add(p, value, __ATOMIC_RELAXED);
}
inline unsigned atomicInc(unsigned* p, unsigned most) {  // blocks run one after the other
  const unsigned before = *p;
  *p = before >= most ? 0 : before + 1;
  return before;
}
inline int atomicMax(int* p, int value) {
  int before = __atomic_load_n(p, __ATOMIC_RELAXED);
  while (before < value && !__atomic_compare_exchange_n(p, &before, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
  return before;
}
inline int atomicCAS(int* p, int expected, int value) {
  __atomic_compare_exchange_n(p, &expected, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  return expected;
}
