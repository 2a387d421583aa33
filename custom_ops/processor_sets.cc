// Prints the instruction sets that the processor has, best first: a build for this machine alone asks. Built with
// isa.cc.
#include <cstdio>

#include "absent.h"

TRIGRAPH_ABSENT(portable)
TRIGRAPH_ABSENT(avx2)
TRIGRAPH_ABSENT(avx_vnni)
TRIGRAPH_ABSENT(avx512)
TRIGRAPH_ABSENT(neon)
TRIGRAPH_ABSENT(dotprod)
TRIGRAPH_ABSENT(i8mm)

int main() {
  for (const trigraph::InstructionSet* set : trigraph::known_sets())
    if (set->supported()) std::puts(set->name);
}
