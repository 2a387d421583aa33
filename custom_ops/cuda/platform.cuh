// What device code stands on: CUDA, or the emulator of the tests (tests/cuda/emulator), which is included before. Rows
// keep their bits because every fma is written out and the compiler may contract no others (-fmad=false).
#pragma once

#if defined(__CUDACC__)
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#endif

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <mutex>
#include <type_traits>
#include <utility>

#include "../kernel.h"

namespace trigraph::TRIGRAPH_ISA {

constexpr int kWarp = 32;
constexpr unsigned kAllLanes = 0xffffffff;

inline void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  (void)cudaGetLastError();  // whoever launches next, ONNX Runtime say, would take it for its own
  fail("CUDA failed at %s: %s", what, cudaGetErrorString(status));
}

// Multiprocessors of the device in use.
inline int64_t multiprocessors() {
  int device = 0, count = 0;
  check(cudaGetDevice(&device), "asking for the device");
  check(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device), "asking for its multiprocessors");
  return count;
}

// Shared memory that a block may ask for.
inline size_t most_shared_bytes() {
#if defined(__CUDACC__)
  int device = 0, bytes = 0;
  check(cudaGetDevice(&device), "the device in use");
  check(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device), "the size of shared memory");
  return static_cast<size_t>(bytes);
#else
  return emulator::most_shared();
#endif
}

// Shared memory of a multiprocessor, which its blocks divide among themselves.
inline size_t shared_bytes() {
  int device = 0, bytes = 0;
  check(cudaGetDevice(&device), "the device in use");
  check(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerMultiprocessor, device),
        "the shared memory of a multiprocessor");
  return static_cast<size_t>(bytes);
}

// Lets launches of a kernel on the device in use have so much dynamic shared memory: else they may have 48 KB less what
// the kernel has of its own. That is never made less, as another thread may be about to launch.
inline void allow_shared(const void* kernel, size_t bytes) {
  static std::mutex lock;
  static auto* allowed = new std::map<std::pair<const void*, int>, size_t>;  // by kernel and device
  int device = 0;
  check(cudaGetDevice(&device), "asking for the device");
  const std::lock_guard<std::mutex> guard(lock);
  size_t& most = (*allowed)[{kernel, device}];
  if (bytes <= most) return;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
        "asking for shared memory");
  most = bytes;
}

// While one lives, what its thread allocates and frees ends no capture of another thread's stream, nor fails for it.
class BesideCaptures {
 public:
  BesideCaptures() { (void)cudaThreadExchangeStreamCaptureMode(&mode_); }
  BesideCaptures(const BesideCaptures&) = delete;
  ~BesideCaptures() { (void)cudaThreadExchangeStreamCaptureMode(&mode_); }

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

#if defined(__CUDACC__)
// Whether the kernels' code for the current device is that of sm_90 or newer: it can wait for the launch before.
inline bool is_for_sm_90(const void* kernel) {
  thread_local int known = -1;
  thread_local bool can = false;
  int device = 0;
  check(cudaGetDevice(&device), "asking for the device");
  if (device == known) return can;
  cudaFuncAttributes attributes;
  check(cudaFuncGetAttributes(&attributes, kernel), "asking for a kernel's code");
  known = device;
  return can = attributes.ptxVersion >= 90;
}
#endif

// Enqueues kernel(arguments...); an empty grid is no work. kEarly: it may begin when all blocks of the launch before
// have called allow_next, and calls await_previous.
template <bool kEarly = false, class... P, class... A>
void launch(void (*kernel)(P...), dim3 grid, int threads, size_t shared_bytes, cudaStream_t stream, A... arguments) {
  if (!grid.x || !grid.y || !grid.z) return;
  if (shared_bytes) allow_shared(reinterpret_cast<const void*>(kernel), shared_bytes);
#if defined(__CUDACC__)
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid, config.blockDim = static_cast<unsigned>(threads);
  config.dynamicSmemBytes = shared_bytes, config.stream = stream;
  config.attrs = &early, config.numAttrs = kEarly && is_for_sm_90(reinterpret_cast<const void*>(kernel));
  check(cudaLaunchKernelEx(&config, kernel, static_cast<P>(arguments)...), "a kernel launch");
#else
  const auto body = [=] {
    emulator::begin_thread(kEarly);
    kernel(static_cast<P>(arguments)...);
    emulator::end_thread();
  };
  emulator::launch(reinterpret_cast<const void*>(kernel), body, grid, threads, shared_bytes, stream);
#endif
}

// Rows of a step whose launches begin early: with more, it is slower (measured on an H100). With 0 none does, and no
// code for it is made.
#if !defined(TRIGRAPH_EARLY_ROWS)
#define TRIGRAPH_EARLY_ROWS 2
#endif
constexpr int kEarlyRows = TRIGRAPH_EARLY_ROWS;

// In a launch that is kEarly, every thread awaits the launches before, ahead of reading what they write and of writing
// anything; weights it may read at once. Before sm_90, no launch begins early.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
constexpr bool kCanBeginEarly = false;
#else
constexpr bool kCanBeginEarly = kEarlyRows > 0;
#endif
__device__ __forceinline__ void allow_next() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900 && TRIGRAPH_EARLY_ROWS
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
__device__ __forceinline__ void await_previous() {
#if !defined(__CUDACC__)
  emulator::await_previous();
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900 && TRIGRAPH_EARLY_ROWS
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// kernel(arguments...) of so many rows, every thread of which awaits the launch before: it begins early if they are
// few.
template <class... P, class... A>
void launch_step(int64_t rows, void (*kernel)(P...), dim3 grid, int threads, size_t shared_bytes, cudaStream_t stream,
                 A... arguments) {
  if (rows <= kEarlyRows) return launch<true>(kernel, grid, threads, shared_bytes, stream, arguments...);
  launch(kernel, grid, threads, shared_bytes, stream, arguments...);
}

// The dynamic shared memory of a block, 16-byte aligned.
__device__ __forceinline__ char* shared_memory() {
#if defined(__CUDACC__)
  extern __shared__ __align__(16) char trigraph_shared_memory[];
  return trigraph_shared_memory;
#else
  return emulator::shared_memory();
#endif
}

__device__ __forceinline__ float half_bits(uint16_t bits) { return __half2float(__ushort_as_half(bits)); }
__device__ __forceinline__ float widen(float x) { return x; }
__device__ __forceinline__ float widen(__half x) { return __half2float(x); }
__device__ __forceinline__ void narrow(float x, float* out) { *out = x; }
__device__ __forceinline__ void narrow(float x, __half* out) { *out = __float2half_rn(x); }

// The functions of simd.h for one lane: the same bits.
__device__ __forceinline__ float exp(float x) {
  const float low = -87.33654f > x ? -87.33654f : x;
  x = 88.37626f < low ? 88.37626f : low;
  const float n = rintf(x * 1.44269504f);
  float r = fmaf(n, -0.693359375f, x);
  r = fmaf(n, 2.12194440e-4f, r);
  float p = 1.9875691500e-4f;
  p = fmaf(p, r, 1.3981999507e-3f);
  p = fmaf(p, r, 8.3334519073e-3f);
  p = fmaf(p, r, 4.1665795894e-2f);
  p = fmaf(p, r, 1.6666665459e-1f);
  p = fmaf(p, r, 5.0000001201e-1f);
  p = fmaf(p, r * r, r) + 1.0f;
  return p * __uint_as_float(static_cast<uint32_t>(__float2int_rn(n) + 127) << 23);
}
__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + exp(0.0f - x)); }
__device__ __forceinline__ float silu(float x) { return x * sigmoid(x); }

// Asks for the 32 bytes around an address, which are to be in the second-level cache when they are read.
__device__ __forceinline__ void prefetch(const void* p) {
#if defined(__CUDACC__)
  asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
#else
  (void)p;
#endif
}

// The sum over `lanes` neighbouring lanes of a warp, as a tree of fixed shape; every lane of the warp takes part.
template <class T>
__device__ __forceinline__ T lane_sum(T x, int lanes = kWarp) {
  for (int offset = lanes / 2; offset; offset /= 2) x += __shfl_xor_sync(kAllLanes, x, offset);
  return x;
}
__device__ __forceinline__ float lane_max(float x, int lanes = kWarp) {
  for (int offset = lanes / 2; offset; offset /= 2) x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, offset));
  return x;
}

// a . b of n elements in the order of simd.h, by kLanes neighbouring threads, all of which get it; every lane of the
// warp takes part.
constexpr int kLanes = 16;
__device__ __forceinline__ float dot(const float* a, const float* b, int n) {
  float sum = 0;
  for (int i = threadIdx.x % kLanes; i < n; i += kLanes) sum = fmaf(a[i], b[i], sum);
  return lane_sum(sum, kLanes);
}

// Begins to copy 16 bytes to shared memory. Both addresses are multiples of 16. Of `from` the first `bytes` are read;
// zeros follow.
__device__ __forceinline__ void copy_ahead(void* to, const void* from, int bytes = 16) {
#if defined(__CUDACC__)
  asm volatile(
      "cp.async.ca.shared.global [%0], [%1], 16, %2;" ::"r"(static_cast<unsigned>(__cvta_generic_to_shared(to))),
      "l"(from), "r"(bytes)
      : "memory");
#else
  emulator::copy_ahead(to, from, bytes, 16);
#endif
}
// Begins to copy kBytes, 4 or 16, where `wanted`: without a branch, ahead of which copies need idle instructions.
template <int kBytes = 16>
__device__ __forceinline__ void copy_ahead_if(bool wanted, void* to, const void* from) {
#if defined(__CUDACC__)
  asm volatile(
      "{ .reg .pred wanted; setp.ne.b32 wanted, %2, 0; @wanted cp.async.ca.shared.global [%0], [%1], %3; }" ::"r"(
          static_cast<unsigned>(__cvta_generic_to_shared(to))),
      "l"(from), "r"(static_cast<int>(wanted)), "n"(kBytes)
      : "memory");
#else
  if (wanted) emulator::copy_ahead(to, from, kBytes, kBytes);
#endif
}
// Ends a group of copies of this thread.
__device__ __forceinline__ void end_copies() {
#if defined(__CUDACC__)
  asm volatile("cp.async.commit_group;" ::: "memory");
#else
  emulator::end_copies();
#endif
}
// Waits until at most so many groups of this thread are on their way, none to three.
__device__ __forceinline__ void await_copies(int groups) {
#if defined(__CUDACC__)
  if (groups == 0)
    asm volatile("cp.async.wait_group 0;" ::: "memory");
  else if (groups == 1)
    asm volatile("cp.async.wait_group 1;" ::: "memory");
  else if (groups == 2)
    asm volatile("cp.async.wait_group 2;" ::: "memory");
  else
    asm volatile("cp.async.wait_group 3;" ::: "memory");
#else
  emulator::await_copies(std::min(groups, 3));
#endif
}

inline unsigned blocks_of(int64_t count, int64_t size) { return static_cast<unsigned>((count + size - 1) / size); }

}  // namespace trigraph::TRIGRAPH_ISA
