// How the library of a GPU has routed experts computed by the CPU library, in the midst of a step: C functions, which
// the host program hands from the one library to the other.
#pragma once

#include <atomic>
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
constexpr uint64_t kHostAnswered = 0, kHostFailed = 1;

// What a GPU has the host compute: rows [tokens * k, width] of the pairs whose id is not negative, see
// ExpertStep::products. Its address in mail[0] asks for it; kHostAnswered takes its place, or kHostFailed for want of
// memory. What it points to both sides can reach. Where mail[1] is not 0, the GPU has given an answer up: until that
// comes, memory is the host's, and no step asks for anything.
struct HostStep {
  const float* x;      // [tokens, width]
  const int64_t* ids;  // [tokens, k]; -1 - id for an expert that is computed elsewhere, or kNoExpert
  float* rows;
  int64_t tokens, k;
  void* experts;  // the layer's
  std::atomic<uint64_t>* mail;
  bool last;  // that is asked for before `open` is called again
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
  // Has the threads look for mail, until they have found the last step; returns at once. An answer that was given up
  // and has come since is taken for good.
  void (*open)(const HostStep& step);
  // Copies by all threads, and returns when that is done; false for want of memory.
  bool (*gather)(void* experts, const HostGather& wanted);
  // Seconds for a row and a byte of its expert where there are many rows, measured; 0 for want of memory.
  double (*row_seconds)(void* experts);
};

}  // namespace trigraph
