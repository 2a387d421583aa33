// CUDA for the operator tests, on a CPU: included before a .cu file, so that a C++ compiler takes it as it is. The
// threads of a block are fibers that run in turns; barriers and warp shuffles are where they change. Blocks run one
// after the other, the last one first. What the real thing leaves undefined is made visible: memory starts as NaN, and
// a barrier that some thread never reaches ends the process.
//
// Only what the kernels use is here. Arithmetic is the host's: IEEE operations, whose bits are a device's too.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "host_calls.h"
#include "races.h"
#include "stacks.h"
#include "uninitialised.h"

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

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
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

constexpr size_t kStack = 64 << 10;
constexpr int kWarp = 32;
constexpr unsigned kMostThreads = 1024;
constexpr int kMostWords = 6;  // that a lane gives at once

struct Fiber {
  Stack stack;
  unsigned index = 0;
  bool done = false, awaited = false;  // awaited: the launches before
  void* watched = nullptr;
  std::unique_ptr<char[]> memory;
};

using Words = uint32_t[kMostWords][kWarp];
struct Warp {
  Words given[2];
  int size = 0, arrived = 0;
  unsigned generation = 0;
  char met = 0;  // as the block's
};

constexpr size_t kMostShared = 98 << 10;   // of the 99 KB that the smallest devices give a block, variables beside it
constexpr size_t kBehindShared = 4 << 10;  // what no block may write

// The block that runs; kernels of two sessions take turns.
struct Block {
  Fiber fibers[kMostThreads];
  Warp warps[kMostThreads / kWarp];
  unsigned made = 0;  // fibers
  const std::function<void()>* body = nullptr;
  dim3 grid, size, index;
  unsigned current = 0, live = 0, arrived = 0, generation = 0, idle = 0;
  unsigned dice = 1;
  bool descending = false;  // the order of turns
  int votes = 0, verdict = 0;
  Stack scheduler;
  void* scheduler_watched = nullptr;
  char started = 0, ended = 0, met = 0;  // what orders threads: the block's begin and end, and barriers
  alignas(16) char shared[kMostShared + kBehindShared];
};
inline Block block;  // NOLINT(bugprone-throwing-static-initialization): a program without memory may end
inline std::mutex running;

[[noreturn]] inline void die(const char* what) {
  std::fprintf(stderr, "CUDA emulator: %s\n", what);
  std::abort();
}

// A number that a test may set.
inline int64_t setting(const char* name, int64_t otherwise) noexcept {
  const char* text = std::getenv(name);
  return text ? std::strtoll(text, nullptr, 10) : otherwise;
}

inline void poison(void* memory, size_t bytes) {
  std::memset(memory, 0xff, bytes);
  uninitialised::mark(memory, bytes);
}
inline char* shared_memory() { return block.shared; }

// The thread that runs.
#if defined(__SANITIZE_THREAD__)
__attribute__((no_sanitize_thread, noinline))
#endif
inline unsigned current() {
  return block.current;
}

[[gnu::always_inline]] inline void resume(Stack& left, Fiber& fiber) {
  block.current = fiber.index;
  races::enter(fiber.watched);
  change_stack(&left, &fiber.stack);
}

// What a thread of a launch that may begin early must do before it ends.
inline void await_previous() { block.fibers[current()].awaited = true; }
inline void end_thread(bool early) {
  bool& awaited = block.fibers[current()].awaited;
  if (early && !awaited) die("a thread of an early launch has not awaited those before");
  awaited = false;
}

// The next of `count` threads, from `first` on, that has not ended.
inline Fiber& following(const Fiber& fiber, unsigned first, unsigned count) {
  unsigned n = fiber.index - first;
  do {
    if (block.descending)
      n = (n ? n : count) - 1;
    else if (++n == count)
      n = 0;
  } while (block.fibers[first + n].done);
  return block.fibers[first + n];
}

// Lets the next of those threads run.
[[gnu::always_inline]] inline void yield(unsigned first, unsigned count) {
  if (++block.idle > 3 * block.size.x) die("all threads wait: a barrier or shuffle is not reached by some");
  Fiber& self = block.fibers[block.current];
  Fiber& next = following(self, first, count);
  if (&next != &self) resume(self.stack, next);
}

// A fiber is thread after thread, of one block after the other.
inline void live() {
  for (;;) {
    races::acquire(&block.started);
    (*block.body)();
    races::release(&block.ended);
    races::look_away();
    Fiber& self = block.fibers[block.current];
    self.done = true;
    block.idle = 0;
    --block.live;
    if (block.live && block.live == block.arrived) die("a thread ended before a barrier that others wait at");
    if (block.live) {
      resume(self.stack, following(self, 0, block.size.x));
    } else {
      races::enter(block.scheduler_watched);
      change_stack(&self.stack, &block.scheduler);
    }
    races::look_again();
  }
}

inline void make_fiber(unsigned index) {
  Fiber& fiber = block.fibers[index];
  fiber.index = index;
  fiber.watched = races::make_fiber();
  fiber.memory.reset(new char[kStack]);
  uninitialised::add_stack(fiber.memory.get(), kStack);
  // Stacks of a warp begin at different lines of a page, or the cache would hold a few of them only.
  const size_t end = reinterpret_cast<size_t>(fiber.memory.get() + kStack) % 4096 + index % kWarp * 128;
  make_stack(fiber.stack, fiber.memory.get(), kStack - end, live);
}

inline int wait_for_block(int vote) {
  const races::Unwatched unwatched;
  const unsigned generation = block.generation;
  block.votes |= vote;
  if (++block.arrived == block.live) {
    block.verdict = block.votes;
    block.votes = 0;
    block.arrived = 0;
    block.idle = 0;
    ++block.generation;
  }
  while (block.generation == generation) yield(0, block.size.x);
  return block.verdict;
}

inline int barrier(int vote) {
  races::release(&block.met);
  const int verdict = wait_for_block(vote);
  races::acquire(&block.met);
  return verdict;
}

// What every lane of the warp gives in the same call, until this one gives again. It orders no memory.
template <int n>
[[gnu::always_inline]] inline const Words& exchange(const uint32_t (&words)[n]) {
  static_assert(n <= kMostWords);
  const unsigned lane = block.current % kWarp, first = block.current - lane;
  Warp& warp = block.warps[block.current / kWarp];
  const unsigned generation = warp.generation;
  Words& given = warp.given[generation & 1];
  for (int i = 0; i < n; ++i) given[i][lane] = words[i];
  if (++warp.arrived == warp.size) {
    warp.arrived = 0;
    block.idle = 0;
    ++warp.generation;
  }
  // Its own warp's threads first, whose stacks are in the cache.
  while (warp.generation == generation) yield(first, static_cast<unsigned>(warp.size));
  return given;
}

// The value that lane `source` gives in the same call.
template <class T>
[[gnu::always_inline]] inline T shuffle(T value, int source) {
  const races::Unwatched unwatched;
  uint32_t words[sizeof value / 4];
  std::memcpy(words, &value, sizeof value);
  const int lanes = block.warps[block.current / kWarp].size;
  const Words& given = exchange(words);
  if (source < 0 || source >= lanes) die("a shuffle reads a lane that is not there");
  for (size_t i = 0; i < sizeof value / 4; ++i) words[i] = given[i][source];
  std::memcpy(&value, words, sizeof value);
  return value;
}

inline void require_whole_warp() {
  if (block.warps[block.current / kWarp].size != kWarp) die("a part of a warp calls what whole ones must");
}

// d += A B by a warp's tensor cores: A is 16 x 16 halves, B 16 halves x 8. Who gives and has what: multiply_tiles and
// multiply_runs (custom_ops/cuda/platform.cuh).
template <class A, class B, int halves>
void multiply(const uint32_t* a, const uint32_t* b, int* d) {
  const races::Unwatched unwatched;
  require_whole_warp();
  uint32_t words[3 * halves];
  std::memcpy(words, a, 8 * halves);
  std::memcpy(words + 2 * halves, b, 4 * halves);
  const Words& given = exchange(words);
  const unsigned lane = block.current % kWarp, g = lane / 4, t = lane % 4;
  for (int half = 0; half < halves; ++half)
    for (int i = 0; i < 4; ++i) {
      const auto* row = reinterpret_cast<const A*>(&given[2 * half + i / 2][4 * g]);
      const auto* column = reinterpret_cast<const B*>(&given[2 * halves + half][4 * (2 * t + i % 2)]);
      int sum = 0;
      for (int k = 0; k < 16; ++k) sum += row[k] * column[k];
      d[i] += sum;
    }
}

inline void warp_barrier() {
  char& met = block.warps[current() / kWarp].met;
  races::release(&met);
  shuffle(0, 0);
  races::acquire(&met);
}

inline void run(const std::function<void()>& body, dim3 grid, int threads, size_t shared_bytes) {
  const std::lock_guard<std::mutex> lock(running);
  const unsigned count = static_cast<unsigned>(threads);
  if (shared_bytes > kMostShared || count > kMostThreads) die("a launch asks for more than every device has");
  if (grid.y > 65535 || grid.z > 65535) die("a grid is larger than devices take");
  while (block.made < count) make_fiber(block.made++);
  block.body = &body;
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

inline void launch(const void* kernel, const std::function<void()>& body, dim3 grid, int threads, size_t shared_bytes,
                   cudaStream_t stream) {
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

}  // namespace emulator

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

inline int atomicAdd(int* p, int value) { return __atomic_fetch_add(p, value, __ATOMIC_RELAXED); }
inline unsigned atomicInc(unsigned* p, unsigned most) {  // blocks run one after the other
  const unsigned before = *p;
  *p = before >= most ? 0 : before + 1;
  return before;
}
inline int atomicCAS(int* p, int expected, int value) {
  __atomic_compare_exchange_n(p, &expected, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  return expected;
}

inline int __dp4a(int a, int b, int sum) {
  for (int i = 0; i < 4; ++i) sum += int8_t(uint32_t(a) >> 8 * i) * int8_t(uint32_t(b) >> 8 * i);
  return sum;
}
inline uint32_t __funnelshift_r(uint32_t low, uint32_t high, uint32_t shift) {
  return uint32_t((uint64_t{high} << 32 | low) >> (shift & 31));
}
inline uint32_t __byte_perm(uint32_t a, uint32_t b, uint32_t selector) {
  const uint64_t bytes = uint64_t{b} << 32 | a;
  uint32_t out = 0;
  for (int i = 0; i < 4; ++i) out |= uint32_t(bytes >> 8 * (selector >> 4 * i & 7) & 255) << 8 * i;
  return out;
}
inline int __clz(int x) { return x ? __builtin_clz(static_cast<unsigned>(x)) : 32; }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline uint32_t __brev(uint32_t x) {
  uint32_t out = 0;
  for (int i = 0; i < 32; ++i) out |= (x >> i & 1) << (31 - i);
  return out;
}
inline uint32_t __float_as_uint(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return bits;
}
inline float __uint_as_float(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}
inline int __float2int_rn(float x) { return static_cast<int>(std::nearbyintf(x)); }
inline int max(int a, int b) { return a > b ? a : b; }
inline int min(int a, int b) { return a < b ? a : b; }
inline int64_t max(int64_t a, int64_t b) { return a > b ? a : b; }
inline int64_t min(int64_t a, int64_t b) { return a < b ? a : b; }
inline unsigned max(unsigned a, unsigned b) { return a > b ? a : b; }
using std::isfinite;

struct __half {
  uint16_t bits;
};
inline __half __ushort_as_half(uint16_t bits) { return {bits}; }
inline uint16_t __half_as_ushort(__half half) { return half.bits; }
inline float __half2float(__half half) {
  const uint32_t sign = uint32_t{half.bits & 0x8000u} << 16, rest = half.bits & 0x7fffu;
  if (rest >= 0x7c00) return __uint_as_float(sign | 0x7f800000 | (rest & 0x3ff) << 13);
  const float value = __uint_as_float(rest << 13) * 0x1p112f;  // the exponent's new bias; subnormals come out right
  return __uint_as_float(sign | __float_as_uint(value));
}
inline __half __float2half_rn(float x) {
  const uint32_t bits = __float_as_uint(x);
  const uint16_t sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  const float magnitude = std::fabs(x);
  if (!(magnitude < 65520.0f)) return {static_cast<uint16_t>(sign | (magnitude == magnitude ? 0x7c00 : 0x7e00))};
  if (magnitude < 0x1p-14f)
    return {static_cast<uint16_t>(sign | static_cast<int>(std::nearbyintf(magnitude * 0x1p24f)))};
  const uint32_t rounded = (bits & 0x7fffffff) + 0xfff + (bits >> 13 & 1);  // to nearest even in the 10 bits that stay
  return {static_cast<uint16_t>(sign | ((rounded >> 13) - (112 << 10)))};
}
