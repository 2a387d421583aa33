// Prints the instruction sets of arm64 that the processor has, best first; built with custom_ops/isa.cc by
// test_emulated_sets.py.
#include <cstdio>

#include "isa.h"

#define SET(name)                                                 \
  namespace trigraph::name {                                      \
  std::vector<const OrtCustomOp*> operators() { return {}; }      \
  int64_t probe_products(bool, int64_t rounds) { return rounds; } \
  const HostExperts* host_experts() { return nullptr; }           \
  }
SET(portable)
SET(neon)
SET(dotprod)
SET(i8mm)

int main() {
  for (const trigraph::InstructionSet* set : trigraph::instruction_sets())
    if (set->supported()) std::puts(set->name);
}
