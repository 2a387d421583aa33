// What the two launches of a step share on a device: buffers, sequences, and whether the step can be.
#pragma once

#include "../cuda/kernel.h"
#include "signature.h"

namespace trigraph::TRIGRAPH_ISA {

constexpr int kMostDim = 128;
constexpr int kHistory = 3;

struct Work {
  Geometry geometry;
  StepInputs step;
  const float *qkv, *z, *alpha, *beta, *conv, *dt_bias, *a, *norm;
  const float *past_state, *past_window;
  float *state, *window, *gates, *y;
  float* mixed;  // [rows + sequences * K][channels]: after convolution, keys and queries of unit length
  int* verdict;  // whether the first launch found the step to be right; nullptr: there is one alone
  ErrorRecord* record;
  int64_t alone;  // blocks that have a multiprocessor each, the first ones

  // A sequence's tokens in `mixed`.
  __device__ float* mixed_of(const Sequence& sequence, int64_t s) const {
    return mixed + (sequence.begin + s * geometry.pending_max) * geometry.channels();
  }
  // A head's column of a slot's gates: log-decay and beta of token t.
  __device__ int64_t log_decay_at(int64_t slot, int64_t t, int64_t head) const {
    return (slot * geometry.pending_max + t) * 2 * geometry.v_heads + head;
  }
  __device__ int64_t beta_at(int64_t slot, int64_t t, int64_t head) const {
    return log_decay_at(slot, t, head) + geometry.v_heads;
  }
};

// The same answer in every block, by the gates that wait of one head; block 0 tells why, and keeps the answer for a
// second launch.
__device__ inline bool step_holds(const Work& work, int64_t head) {
  const auto wrong = [](Reason, int64_t = 0, int64_t = 0, int64_t = 0, int64_t = 0) { return false; };
  const int sequences = static_cast<int>(work.step.sequences);
  bool holds = true;
  for (int s = threadIdx.x; s < sequences; s += blockDim.x)
    holds = sequence_holds(work.step, s, head, wrong) && slot_holds(work.step, s, wrong) && holds;
  holds = !__syncthreads_or(!holds);
  if (threadIdx.x == 0 && blockIdx.x == 0 && blockIdx.y == 0 && blockIdx.z == 0) {
    const auto tell = [&](Reason reason, int64_t a = 0, int64_t b = 0, int64_t c = 0, int64_t d = 0) {
      report(work.record, Operator::gated_delta_net, reason, a, b, c, d);
      return false;
    };
    if (work.verdict) *work.verdict = holds;
    bool told = holds;
    for (int s = 0; !told && s < sequences; ++s) told = !sequence_holds(work.step, s, head, tell);
    for (int s = 0; !told && s < sequences; ++s) told = !slot_holds(work.step, s, tell);
  }
  return holds;
}

}  // namespace trigraph::TRIGRAPH_ISA
