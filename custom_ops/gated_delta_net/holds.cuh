// Whether the sequences of a step can be, on a device.
#pragma once

#include "../cuda/kernel.h"
#include "step.h"

namespace trigraph::TRIGRAPH_ISA {

// Whether the sequences hold, the same answer in every block, by the gates that wait of one head; the whole block
// calls.
__device__ inline bool sequences_hold(const StepInputs& step, int64_t head) {
  const auto wrong = [](Reason, int64_t = 0, int64_t = 0, int64_t = 0, int64_t = 0) { return false; };
  bool holds = true;
  for (int s = threadIdx.x; s < static_cast<int>(step.sequences); s += blockDim.x)
    holds = sequence_holds(step, s, head, wrong) && slot_holds(step, s, wrong) && holds;
  return !__syncthreads_or(!holds);
}

// Tells why they do not, by the first thread of all.
__device__ inline void tell_step(const StepInputs& step, int64_t head, Operator op, ErrorRecord* record) {
  if (threadIdx.x || blockIdx.x || blockIdx.y || blockIdx.z) return;
  const int sequences = static_cast<int>(step.sequences);
  const auto tell = [&](Reason reason, int64_t a = 0, int64_t b = 0, int64_t c = 0, int64_t d = 0) {
    report(record, op, reason, a, b, c, d);
    return false;
  };
  bool told = false;
  for (int s = 0; !told && s < sequences; ++s) told = !sequence_holds(step, s, head, tell);
  for (int s = 0; !told && s < sequences; ++s) told = !slot_holds(step, s, tell);
}

// Whether the step holds, as told; block 0 keeps the answer where `verdict` is not nullptr.
__device__ inline bool step_holds(const StepInputs& step, int64_t head, Operator op, int* verdict,
                                  ErrorRecord* record) {
  const bool holds = sequences_hold(step, head);
  if (verdict && threadIdx.x == 0 && blockIdx.x == 0 && blockIdx.y == 0 && blockIdx.z == 0) *verdict = holds;
  if (!holds) tell_step(step, head, op, record);
  return holds;
}

}  // namespace trigraph::TRIGRAPH_ISA
