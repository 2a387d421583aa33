// The instruction sets: every operator is compiled once for each that a build holds.
#pragma once

#include <vector>

#include "ort_api.h"

namespace trigraph {

struct HostExperts;

struct InstructionSet {
  const char* name;
  bool (*supported)();
  std::vector<const OrtCustomOp*> (*operators)();
  int64_t (*probe_products)(bool int8, int64_t rounds);  // multiplies at the processor's rate, returns how many
  const HostExperts* (*host_experts)();                  // grouped_expert_ffn/host_experts.h
};

std::vector<const InstructionSet*> known_sets();  // best first; the last one runs everywhere
// The sets that this processor runs and the build holds, or those that the build leaves out; best first.
std::vector<const InstructionSet*> instruction_sets(bool held = true);

}  // namespace trigraph
