// Bulk copies to shared memory: a thread asks for many bytes, and a barrier in shared memory tells when they are there.
// For sm_90 and newer alone, where TRIGRAPH_SM90_KERNELS=1 asks for the kernels that have them.
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

// The arrival of copies to one place, one after the other. In shared memory, made by one thread ahead of a barrier of
// the block.
class Arrival {
 public:
  __device__ __forceinline__ void make() {
#if !defined(__CUDACC__)
    state_ = 0;
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(address(this)) : "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
  }
  // The bytes of the next copies; one thread tells, before any of them is asked for.
  __device__ __forceinline__ void expect(int bytes) {
#if !defined(__CUDACC__)
    emulator::expect_bytes(state_, bytes);
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address(this)), "r"(bytes) : "memory");
#else
    (void)bytes;
#endif
  }
  // Addresses and bytes are multiples of 16.
  __device__ __forceinline__ void copy(void* to, const void* from, int bytes) {
#if !defined(__CUDACC__)
    emulator::copy_bytes(state_, to, from, bytes);
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(address(to)),
        "l"(from), "r"(bytes), "r"(address(this))
        : "memory");
#else
    (void)to, (void)from, (void)bytes;
#endif
  }
  // Waits until copies number `round` are there, from 0 on; those before them are, and no later ones were asked for.
  __device__ __forceinline__ void await(int round) {
#if !defined(__CUDACC__)
    emulator::await_bytes(state_, round);
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    unsigned there = 0;
    while (!there)
      asm volatile(
          "{\n\t.reg .pred p;\n\t"
          "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\t"
          "selp.u32 %0, 1, 0, p;\n\t}"
          : "=r"(there)
          : "r"(address(this)), "r"(round & 1)
          : "memory");
#else
    (void)round;
#endif
  }

 private:
#if defined(__CUDACC__)
  static __device__ __forceinline__ unsigned address(const void* p) {
    return static_cast<unsigned>(__cvta_generic_to_shared(p));
  }
#endif
  uint64_t state_;
};

}  // namespace trigraph::TRIGRAPH_ISA
