// Whether the sequences of a step can be, on a device.
#pragma once

#include "../cuda/kernel.h"
#include "step.h"

namespace trigraph::TRIGRAPH_ISA {

// Whether the step holds, the same answer in every block, by the gates that wait of one head; block 0 tells why, and
// keeps the answer where `verdict` is not nullptr.
__device__ inline bool step_holds(const StepInputs& step, int64_t head, Operator op, int* verdict,
                                  ErrorRecord* record) {
  const auto wrong = [](Reason, int64_t = 0, int64_t = 0, int64_t = 0, int64_t = 0) { return false; };
  const int sequences = static_cast<int>(step.sequences);
  bool holds = true;
  for (int s = threadIdx.x; s < sequences; s += blockDim.x)
    holds = sequence_holds(step, s, head, wrong) && slot_holds(step, s, wrong) && holds;
  holds = !__syncthreads_or(!holds);
  if (threadIdx.x == 0 && blockIdx.x == 0 && blockIdx.y == 0 && blockIdx.z == 0) {
    const auto tell = [&](Reason reason, int64_t a = 0, int64_t b = 0, int64_t c = 0, int64_t d = 0) {
      report(record, op, reason, a, b, c, d);
      return false;
    };
    if (verdict) *verdict = holds;
    bool told = holds;
    for (int s = 0; !told && s < sequences; ++s) told = !sequence_holds(step, s, head, tell);
    for (int s = 0; !told && s < sequences; ++s) told = !slot_holds(step, s, tell);
  }
  return holds;
}

}  // namespace trigraph::TRIGRAPH_ISA
