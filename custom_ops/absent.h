// An instruction set that a build leaves out: it has no operators.
#pragma once

#include "isa.h"

#define TRIGRAPH_ABSENT(isa)                                 \
  namespace trigraph::isa {                                  \
  std::vector<const OrtCustomOp*> operators() { return {}; } \
  int64_t probe_products(bool, int64_t) { return 0; }        \
  const HostExperts* host_experts() { return nullptr; }      \
  }
