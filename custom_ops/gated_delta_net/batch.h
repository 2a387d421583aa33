// What a step asks for: sequences and slots, checked before anything is written.
#pragma once

#include <vector>

#include "../kernel.h"
#include "step.h"

namespace trigraph::TRIGRAPH_ISA {

struct StepSequence : Sequence {
  int64_t first;  // its first token in the step's scratch, pending tokens included
};

struct DeltaStep {
  std::vector<StepSequence> sequences;
  int64_t tokens = 0;         // pending and own tokens of all sequences
  std::vector<char> written;  // by slot
};

// Throws Error that names the input and the value for a step that cannot be.
inline DeltaStep read_step(const StepInputs& inputs) {
  const auto wrong = [](Reason reason, long long a = 0, long long b = 0, long long c = 0, long long d = 0) -> bool {
    fail(kSentences[static_cast<int>(reason)], a, b, c, d);
  };
  DeltaStep step;
  step.written.resize(inputs.slots);
  for (int64_t s = 0; s < inputs.sequences; ++s) {
    sequence_holds(inputs, static_cast<int>(s), 0, wrong);
    step.sequences.push_back({{inputs, s}, step.tokens});
    step.tokens += step.sequences.back().count();
    step.written[step.sequences.back().slot_out] = 1;
  }
  for (int64_t s = 0; s < inputs.sequences; ++s) slot_holds(inputs, static_cast<int>(s), wrong);
  return step;
}

}  // namespace trigraph::TRIGRAPH_ISA
