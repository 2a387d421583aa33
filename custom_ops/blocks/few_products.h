// Products of a few rows with several weights in one launch. Rows that are not prepared each block prepares for itself:
// for a step that reads its weights in microseconds a launch less matters more than work done twice.
#pragma once

#include "../cuda/device_error.cuh"
#include "products.h"

namespace trigraph::TRIGRAPH_ISA {

// Of nearly all files: weights of any of these share a launch.
using CommonTypes = Types<F32, Q8_0, Q4_K, Q5_K, Q6_K>;

// A type's number among others; -1 for none of them.
template <class F, class... All>
constexpr int number_of(Types<All...>) {
  int at = 0, found = -1;
  for (const bool same : {std::is_same_v<F, All>...}) {
    if (same) found = at;
    ++at;
  }
  return found;
}

// A weight matrix of a launch.
struct FewTask {
  const uint8_t* data;
  float* y;
  int64_t rows, row_bytes;
  int type;        // among those of the launch
  bool quantised;  // whether it meets int8
  int lanes;       // of a warp that share a weight row, if it comes without tiles
  bool tiled;      // few_tiles.cuh
  int at_once;     // rows of a block
  int rounds;      // how often it takes as many
  int first_block;
};

// What meets `m` rows of `width`: x, or silu(x) * up.
struct FewTasks {
  static constexpr int kMost = 4;
  FewTask task[kMost];
  const float *x, *up;             // up: nullptr for rows as they are
  const char* prepared = nullptr;  // rows of x as int8, or nullptr
  int64_t width;
  int m, count, blocks;
  bool quantised;  // whether some task is
  int ring_bytes;  // of a warp, for weights that are on their way

  FewTasks(const float* x, const float* up, int64_t width, int64_t m);
  // Whether the rows are few, and fit into a block.
  static bool fit(int64_t width, int64_t m, bool gated);
  void add(const ProductKernel& kernel, const uint8_t* data, int64_t rows, int64_t row_bytes, float* y);
  int64_t bytes(int i) const { return task[i].rows * task[i].row_bytes; }
  // Shares rows out among blocks, in a launch that reads `bytes`, and shared memory but for `other_bytes`.
  void share(int64_t bytes, int64_t other_bytes);
  int64_t rings() const;  // bytes
};

// The (token, slot) pairs of a few tokens, in one launch with each pair's expert. A bad id is a device error.
struct FewPairs {
  static constexpr int kMost = 128;
  const int64_t* ids;
  int pairs, k, experts;
  int64_t first_token;  // of the step
  int64_t stride[2];    // of each task's stack, in bytes
  ErrorRecord* record;

  // Whether the pairs are few, and rows of `width` fit into a block.
  static bool fit(int64_t pairs, int64_t width);
};

// What becomes of the rows that a token's experts make: their sum in the order of slots, a shared expert's last.
struct SlotSum {
  static constexpr int64_t kMost = 16384;  // counters of a launch
  int k;
  int64_t width;
  const float* weights;               // [tokens, k]
  const float *shared, *shared_gate;  // [tokens, width] and logits [tokens], or nullptr
  float* y;                           // [tokens, width]

  // `sorted`: where a pair's row of products is, or nullptr for the order of pairs.
  __device__ void operator()(const float* products, const int* sorted, int64_t token, int64_t column) const {
    constexpr int kTogether = 8;  // that are waited for together
    float sum = 0;
    for (int64_t first = token * k, end = first + k; first < end; first += kTogether) {
      float weight[kTogether], product[kTogether];
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        const int64_t j = first + i;
        if (j < end) weight[i] = weights[j], product[i] = products[(sorted ? sorted[j] : j) * width + column];
      }
#pragma unroll
      for (int i = 0; i < kTogether; ++i)
        if (first + i < end) sum = fmaf(weight[i], product[i], sum);
    }
    if (shared) sum = fmaf(sigmoid(shared_gate[token]), shared[token * width + column], sum);
    y[token * width + column] = sum;
  }
  // Whether a launch has counters for so many tokens.
  static bool fit(int64_t tokens, int64_t width);
};

// A shared expert whose rows are still to be made, in a launch of those of pairs: from `hidden` and `up` [tokens, width
// of that launch] by the launch's second task.
struct FewShared {
  const float *hidden = nullptr, *up = nullptr;
};

// For weights of CommonTypes alone.
void few_common(const FewTasks& tasks, cudaStream_t stream);
// Row i of each task's y: pair i's expert and the row of its token.
void few_of_pairs(const FewTasks& tasks, const FewPairs& pairs, cudaStream_t stream);
// Row i of the first task's y: pair i's expert and row i; then the tokens' sums. `counters`: SlotSum::kMost, see
// cuda/last_block.cuh.
void few_sums(const FewTasks& tasks, const FewPairs& pairs, const FewShared& shared, const SlotSum& sum,
              unsigned* counters, cudaStream_t stream);

}  // namespace trigraph::TRIGRAPH_ISA
