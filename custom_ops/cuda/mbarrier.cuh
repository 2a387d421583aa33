// A barrier in shared memory at which some threads arrive and others wait.
#pragma once

#include "platform.cuh"

namespace trigraph::TRIGRAPH_ISA {

// One phase follows another, each of as many arrivals. Who waits sees what those who arrived had written, and they had
// read what they read before. A barrier is of bytes that no thread has used otherwise.
struct Mbarrier {
#if defined(__CUDACC__)
  uint64_t state;
  __device__ unsigned address() { return static_cast<unsigned>(__cvta_generic_to_shared(&state)); }
#else
  emulator::Phases state;
#endif

  // A thread calls, and others use the barrier after one of the block.
  __device__ void begin(unsigned arrivals) {
#if defined(__CUDACC__)
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(address()), "r"(arrivals) : "memory");
#else
    state.begin(arrivals);
#endif
  }
  __device__ __forceinline__ void arrive() {
#if defined(__CUDACC__)
    asm volatile("{ .reg .b64 ignored; mbarrier.arrive.shared.b64 ignored, [%0]; }" ::"r"(address()) : "memory");
#else
    state.arrive();
#endif
  }
  // Arrives, when the copies of copy_ahead that this thread has begun are there: an arrival that is counted as others.
  __device__ __forceinline__ void arrive_with_copies() {
#if defined(__CUDACC__)
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(address()) : "memory");
#else
    emulator::end_copies();
    emulator::await_copies(0);
    state.arrive();
#endif
  }
  // Waits for the end of the phase of that parity, the present one or the one before: 0 for the first one.
  __device__ __forceinline__ void await(unsigned parity) {
#if !defined(__CUDACC__)
    state.await(parity);
#else
    asm volatile(
        "{\n"
        ".reg .pred over;\n"
        "again:\n"
#if __CUDA_ARCH__ >= 900
        "mbarrier.try_wait.parity.shared.b64 over, [%0], %1;\n"
#else
        "mbarrier.test_wait.parity.shared.b64 over, [%0], %1;\n"
#endif
        "@!over bra again;\n"
        "}\n" ::"r"(address()),
        "r"(parity)
        : "memory");
#endif
  }
};

}  // namespace trigraph::TRIGRAPH_ISA
