// What the host has of a step: kernels that hand it over and wait until it is done.
#pragma once

#include "../cuda/device_error.cuh"
#include "../cuda/shared_memory.cuh"
#include "host_experts.h"

namespace trigraph::TRIGRAPH_ISA {
namespace {

constexpr int64_t kTokensAtOnce = 1024;  // a longer step runs in parts, so that shared memory stays bounded
constexpr int kHandThreads = 1024;

// A part of a step on both sides.
struct Part {
  float* x;      // [tokens, width], of tokens that the host has something to do for
  float* rows;   // [tokens * k, width], of its pairs
  int64_t* ids;  // [tokens, k] of HostStep

  Part(Lane& lane, int64_t tokens, int64_t k, int64_t width) {
    const auto rounded = [](int64_t bytes) { return (bytes + 63) / 64 * 64; };
    const int64_t x_bytes = rounded(tokens * width * 4), ids_bytes = rounded(tokens * k * 8);
    char* memory = lane.take(static_cast<size_t>(x_bytes + ids_bytes + rounded(tokens * k * width * 4)));
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

// One block, so that a barrier puts all that it writes ahead of the mail.
__global__ void __launch_bounds__(kHandThreads)
    hand_over(const float* x, int width, const Choices choices, int tokens, int64_t first_token, const Part part,
              uint64_t* mail, uint64_t step, ErrorRecord* record) {
  __shared__ bool wanted[kTokensAtOnce];
  const int thread = static_cast<int>(threadIdx.x), k = choices.k;
  for (int token = thread; token < tokens; token += kHandThreads) {
    const int64_t* ids = choices.ids + token * k;
    bool any = false;
    for (int j = 0; j < k; ++j) any |= choices.on_host(ids[j]);
    wanted[token] = any;
    for (int j = 0; j < k; ++j)
      if (!choices.good(ids[j])) {
        report(record, Operator::grouped_expert_ffn, Reason::expert_id, ids[j], first_token + token, j,
               choices.experts);
        break;
      }
  }
  for (int i = thread; i < tokens * k; i += kHandThreads) {
    const int64_t id = choices.ids[i];
    part.ids[i] = !choices.good(id) ? kNoExpert : choices.on_host(id) ? id : -1 - id;
  }
  __syncthreads();
  for (int i = thread; i < tokens * width; i += kHandThreads)
    if (wanted[i / width]) part.x[i] = x[i];
  __syncthreads();
  if (!thread) write_to_host(mail, step);
}

// One thread, which holds nothing up that others could use.
__global__ void __launch_bounds__(1) await_host(uint64_t* mail, ErrorRecord* record) {
  uint64_t answer = 0;
  do answer = read_from_host(mail);
  while (answer > kHostFailed);
  if (answer != kHostFailed) return;
  report(record, Operator::grouped_expert_ffn, Reason::host_memory);
  *mail = kHostAnswered;
}

}  // namespace
}  // namespace trigraph::TRIGRAPH_ISA
