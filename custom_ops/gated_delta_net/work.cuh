// What the two launches of a step share on a device: buffers, sequences, and whether the step can be.
#pragma once

#include "bands.h"
#include "holds.cuh"
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

// Whether the step holds, the same answer in every block, by the gates that wait of one head; block 0 tells why, and
// keeps the answer for a second launch.
__device__ inline bool step_holds(const Work& work, int64_t head) {
  return step_holds(work.step, head, Operator::gated_delta_net, work.verdict, work.record);
}

// What an output is multiplied by.
__device__ __forceinline__ float output_gate(const Geometry& geometry, float z) {
  const float open = sigmoid(z);
  return geometry.sigmoid_gate ? open : z * open;
}

}  // namespace trigraph::TRIGRAPH_ISA
