// Clusters: thread blocks that run at the same time and read each other's shared memory. For sm_90 and newer alone,
// where TRIGRAPH_SM90_KERNELS=1 asks for the kernels that have them: no GPU has timed those.
#pragma once

#include <cstdlib>

#include "platform.cuh"

namespace trigraph::TRIGRAPH_ISA {

// Whether a kernel for sm_90 alone is asked for, and can run.
inline bool takes_sm_90(const void* kernel) {
  static const bool asked = [] {
    const char* text = std::getenv("TRIGRAPH_SM90_KERNELS");
    return text && *text == '1';
  }();
#if defined(__CUDACC__)
  return asked && is_for_sm_90(kernel);
#else
  (void)kernel;
  return asked;
#endif
}

// Every thread of a cluster arrives, and then waits for all others; the next two of them in turn. What a thread wrote
// before it arrived is there for those that waited. While others may read a block's shared memory, it does not end.
__device__ __forceinline__ void cluster_arrive() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
#endif
}
__device__ __forceinline__ void cluster_wait() {
#if !defined(__CUDACC__)
  emulator::cluster_barrier();
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
#endif
}

// Where a piece of the block's dynamic shared memory lies in block `rank` of its cluster.
template <class T>
__device__ __forceinline__ const T* of_rank(const T* own, int rank) {
#if !defined(__CUDACC__)
  return emulator::of_rank(own, static_cast<unsigned>(rank));
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  const T* there;
  asm("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"(own), "r"(rank));
  return there;
#else
  return own;
#endif
}

}  // namespace trigraph::TRIGRAPH_ISA
