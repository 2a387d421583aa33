// How the library of a GPU has routed experts computed by the CPU library, in the midst of a step: C functions, which
// the host program hands from the one library to the other.
#pragma once

#include <cstddef>
#include <cstdint>

#include "../tensor.h"

namespace trigraph {

// The experts of a layer, as inputs and attributes of GroupedExpertFFN have them.
struct HostExpertsSpec {
  const char *gate_type, *down_type, *up_type, *activations;  // up_type: "" where gate holds gate|up
  Tensor gate, down, up;                                      // up.data: nullptr likewise
  int64_t experts, width, ffn;
  int threads;
};

constexpr int64_t kNoExpert = INT64_MIN;  // in place of an id that is bad

// What is computed for a step: rows [tokens * k, width] of the pairs whose id is not negative, see
// ExpertStep::products. Memory of the caller that both sides can reach.
struct HostStep {
  const float* x;      // [tokens, width]
  const int64_t* ids;  // [tokens, k]; -1 - id for an expert that is computed elsewhere, or kNoExpert
  float* rows;
  int64_t tokens, k;
};

struct HostExperts {
  // Experts of a layer; nullptr, and why not in `problem`.
  void* (*make)(const HostExpertsSpec& spec, char* problem, size_t size);
  void (*drop)(void* experts);
  // Begins a step, and returns. One at a time for each layer.
  void (*start)(void* experts, const HostStep& step);
  // Waits until its rows are there; false for want of memory.
  bool (*wait)(void* experts);
};

}  // namespace trigraph
