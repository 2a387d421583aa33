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

// A part of weights on their way: `bytes` bytes, of which the first goes to place `at` of a buffer.
struct HostPiece {
  const uint8_t* from;
  int64_t at, bytes;
};

// Bytes start .. start + bytes of what `count` pieces, in the order of their places, make of a buffer; gaps stay.
struct HostGather {
  const HostPiece* pieces;
  size_t count;
  int64_t start, bytes;
  char* to;
};

struct HostExperts {
  // Experts of a layer; nullptr, and why not in `problem`.
  void* (*make)(const HostExpertsSpec& spec, char* problem, size_t size);
  void (*drop)(void* experts);
  // Begins a step, and returns. One at a time for each layer.
  void (*start)(void* experts, const HostStep& step);
  // Waits until its rows are there; false for want of memory.
  bool (*wait)(void* experts);
  // Copies by all threads, and returns when that is done; false for want of memory.
  bool (*gather)(void* experts, const HostGather& wanted);
  // Seconds for a row and a byte of its expert where there are many rows, measured; 0 for want of memory.
  double (*row_seconds)(void* experts);
};

}  // namespace trigraph
