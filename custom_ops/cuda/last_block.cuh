// Blocks that each make a part of something, which the last of them to be done puts together: in a fixed order, so that
// it does not matter which one that is.
#pragma once

#include "platform.cuh"

namespace trigraph::TRIGRAPH_ISA {

// Counters on the device, for the launches of one kernel's stream: zero before each launch, and again after it.
class Counters {
 public:
  explicit Counters(int64_t count) {
    const BesideCaptures beside;
    const size_t bytes = static_cast<size_t>(count) * sizeof(unsigned);
    void* memory = nullptr;
    check(cudaMalloc(&memory, bytes), "memory for counters");
    counters_ = static_cast<unsigned*>(memory);
    check(cudaMemsetAsync(memory, 0, bytes, nullptr), "memory for counters");
    check(cudaStreamSynchronize(nullptr), "memory for counters");
  }
  Counters(const Counters&) = delete;
  Counters(Counters&& other) noexcept : counters_(other.counters_) { other.counters_ = nullptr; }
  ~Counters() {
    const BesideCaptures beside;
    if (counters_) (void)cudaFree(counters_);
  }
  unsigned* at(int64_t index) const { return counters_ + index; }

 private:
  unsigned* counters_ = nullptr;
};

// One of `all` arrivals: whether it is the last. What the arriving thread's block wrote must be fenced before, and what
// others wrote is to be read behind a fence.
__device__ __forceinline__ bool arrives_last(unsigned* counter, unsigned all) {
  return atomicInc(counter, all - 1) == all - 1;
}

// A counter that other blocks have arrived at; what they fenced before is seen by who reads it afterwards.
__device__ __forceinline__ unsigned read_acquired(const unsigned* counter) {
#if defined(__CUDACC__)
  unsigned count;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(count) : "l"(counter) : "memory");
  return count;
#else
  return *counter;
#endif
}

// Whether this is the last of `blocks` to come here; it sees what the others wrote before. The whole block calls. One
// thread fences for all: a barrier puts the others' writes before its fence, and their reads behind it.
__device__ __forceinline__ bool is_last(unsigned* counter, unsigned blocks) {
  __shared__ bool last;
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    last = arrives_last(counter, blocks);
    __threadfence();
  }
  __syncthreads();
  return last;
}

}  // namespace trigraph::TRIGRAPH_ISA
