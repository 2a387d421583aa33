// The experts of a few tokens in one launch: gate and up, down, the shared expert's down, and the sum.
#pragma once

#include "../blocks/cuda/few_products.h"
#include "../cuda/device_error.cuh"
#include "../router/choose_experts.cuh"

namespace trigraph::TRIGRAPH_ISA {

// What becomes of the rows that a token's experts make: their sum in the order of slots, a shared expert's last.
struct SlotSum {
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
    finish(sum, token, column);
  }
  // Adds the shared expert's to the sum of the others.
  __device__ void finish(float sum, int64_t token, int64_t column) const {
    if (shared) sum = fmaf(sigmoid(shared_gate[token]), shared[token * width + column], sum);
    y[token * width + column] = sum;
  }
};

// A weight, or a stack of them.
struct ExpertTask {
  const uint8_t* data = nullptr;
  int64_t row_bytes = 0, stride = 0;  // of a row, and from a matrix to the next
  int type = 0, chains = 1;           // as in few_tiles.cuh
  bool by_runs = false;               // the form of int8 rows that it meets

  ExpertTask() = default;
  ExpertTask(const ProductKernel& kernel, const uint8_t* data, int64_t width, int64_t row_bytes, int64_t stride);
};

// A launch.
struct FewExperts {
  static constexpr int kMost = 128;  // pairs of a token and a slot
  // Tokens at most whose blocks choose and make the shared expert's output; of more, launches for these are faster.
  static constexpr int kAlone = 4;
  static constexpr int64_t kCounters = 1 + kMost;  // see cuda/last_block.cuh

  const int64_t* ids;  // [tokens, k], which may be bad; nullptr: blocks choose those of their token themselves
  int tokens, k, experts;
  int64_t first_token;  // of the step
  int width, ffn;
  const float* x;
  const char* prepared;               // rows of x as int8, or nullptr
  ExpertTask gate, up, down, shared;  // shared.data: of a shared expert whose output is still to be made, or nullptr
  const float *shared_hidden, *shared_up;
  float* hidden;  // [tokens, k, ffn]
  SlotSum sum;
  Routing routing;     // without ids
  unsigned* counters;  // kCounters
  ErrorRecord* record;

  // For weights of CommonTypes alone, with as many columns as `fit` allows. `gate` and `up` have one type.
  void launch(cudaStream_t stream);
  static bool fit(int64_t tokens, int64_t k, int64_t width, int64_t ffn);

  // What blocks do: of each token `makers` of them, `sharing` of which make the shared expert's output, and the others
  // hidden rows, `parts` of them those of a slot, from `made` tiles of gate and as many of up; then `takers` sum
  // `taken` tiles of columns each.
  int makers = 0, sharing = 0, parts = 0, made = 1, takers = 0, taken = 1;
  int ring_bytes = 0, rows_bytes = 0;  // of shared memory: a warp's weights, and a block's activations
};

}  // namespace trigraph::TRIGRAPH_ISA
