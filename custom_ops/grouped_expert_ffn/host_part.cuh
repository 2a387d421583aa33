// What the host has of a step: kernels that hand it over and wait until it is done.
#pragma once

#include "../cuda/device_error.cuh"
#include "../cuda/last_block.cuh"
#include "../cuda/shared_memory.cuh"
#include "host_experts.h"

namespace trigraph::TRIGRAPH_ISA {
namespace {

constexpr int64_t kTokensAtOnce = 1024;  // a longer step runs in parts, so that shared memory stays bounded
constexpr int kHandThreads = 1024, kHandTokens = 32;  // of a block
constexpr int64_t kPatience = 120;                    // seconds: experts of few tokens take less, even from a slow disk

// A part of a step on both sides.
struct Part {
  float* x;      // [tokens, width], of tokens that the host has something to do for
  float* rows;   // [tokens * k, width], of its pairs
  int64_t* ids;  // [tokens, k] of HostStep

  Part(Lane& lane, int64_t tokens, int64_t k, int64_t width) {
    const auto rounded = [](int64_t bytes) { return (bytes + 63) / 64 * 64; };
    const int64_t x_bytes = rounded(tokens * width * 4), ids_bytes = rounded(tokens * k * 8);
    char* memory = lane.take(static_cast<size_t>(x_bytes + ids_bytes + rounded(tokens * k * width * 4)), true);
    x = reinterpret_cast<float*>(memory);
    ids = reinterpret_cast<int64_t*>(memory + x_bytes);
    rows = reinterpret_cast<float*>(memory + x_bytes + ids_bytes);
  }
};

// What a token chose, and where the device has it.
struct Choices {
  const int64_t* ids;  // [tokens, k], which may be bad
  const int* slots;    // [experts]
  int k, experts;

  __device__ bool good(int64_t id) const { return id >= 0 && id < experts; }
  __device__ bool on_host(int64_t id) const { return good(id) && slots[id] < 0; }
};

// grid: parts of the tokens. The last block to be done leaves the mail, behind all that they write.
__global__ void __launch_bounds__(kHandThreads)
    hand_over(const float* x, int width, const Choices choices, int tokens, int64_t first_token, const Part part,
              uint64_t* mail, uint64_t step, unsigned* done, ErrorRecord* record) {
  __shared__ bool wanted[kHandTokens], given_up;
  const int thread = static_cast<int>(threadIdx.x), k = choices.k;
  const int first = static_cast<int>(blockIdx.x) * kHandTokens, count = min(kHandTokens, tokens - first);
  if (thread == kHandThreads - 1) given_up = read_from_host(mail + 1);  // which takes as long as the ids
  if (thread < count) {
    const int64_t* ids = choices.ids + (first + thread) * k;
    bool any = false;
    for (int j = 0; j < k; ++j) any |= choices.on_host(ids[j]);
    wanted[thread] = any;
    for (int j = 0; j < k; ++j)
      if (!choices.good(ids[j])) {
        report(record, Operator::grouped_expert_ffn, Reason::expert_id, ids[j], first_token + first + thread, j,
               choices.experts);
        break;
      }
  }
  __syncthreads();
  if (given_up) return;  // the host may still read what it was given
  for (int i = first * k + thread; i < (first + count) * k; i += kHandThreads) {
    const int64_t id = choices.ids[i];
    part.ids[i] = !choices.good(id) ? kNoExpert : choices.on_host(id) ? id : -1 - id;
  }
  for (int i = first * width + thread; i < (first + count) * width; i += kHandThreads)
    if (wanted[i / width - first]) part.x[i] = x[i];
  __syncthreads();
  if (thread) return;
  if (gridDim.x > 1) {
    __threadfence_system();
    if (!arrives_last(done, gridDim.x)) return;
    __threadfence_system();  // what others arrived with comes before the mail
  }
  write_to_host(mail, step);
}

// One thread, which holds nothing up that others could use. A host that does not answer in time is given up, with all
// that is left of the step: else its GPU would be busy for ever.
__global__ void __launch_bounds__(1) await_host(uint64_t* mail, ErrorRecord* record) {
  constexpr uint64_t kSecond = 1000000000;  // more from one look to the next is a clock that jumps
  const auto silent = [&] { report(record, Operator::grouped_expert_ffn, Reason::host_silent, kPatience); };
  if (read_from_host(mail + 1)) return silent();
  uint64_t waited = 0, before = nanoseconds(), answer = 0;
  while ((answer = read_from_host(mail)) > kHostFailed) {
    const uint64_t now = nanoseconds(), look = now - before;
    waited += look < kSecond ? look : kSecond, before = now;
    if (waited < kPatience * kSecond) continue;
    silent();
    return write_to_host(mail + 1, 1);
  }
  if (answer != kHostFailed) return;
  report(record, Operator::grouped_expert_ffn, Reason::host_memory);
  write_to_host(mail, kHostAnswered);
}

}  // namespace
}  // namespace trigraph::TRIGRAPH_ISA
