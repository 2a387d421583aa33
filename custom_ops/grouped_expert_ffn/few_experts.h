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
  const float *shared, *shared_gate;  // [tokens, width] and logits [tokens], or nullptr; see FewExperts::shared
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
  const uint8_t *data = nullptr, *end = nullptr;
  int64_t row_bytes = 0, stride = 0;  // of a row, and from a matrix to the next
  int type = 0, chain_bits = 0;       // as in few_tiles.cuh: 1 << chain_bits chains
  bool by_runs = false;               // the form of int8 rows that it meets

  ExpertTask() = default;
  ExpertTask(const ProductKernel& kernel, const uint8_t* data, const uint8_t* end, int64_t width, int64_t row_bytes,
             int64_t stride);
};

// What a block does of a token, in this order:
//   hidden  the hidden rows of its slots: units of 16 weight rows of gate and of up
//   shared  the shared expert's output, which waits for nobody: units of 16 columns
//   sum     what the slots make of their hidden rows: units of 16 columns of a slot
enum class Phase { hidden, shared, sum };

// A launch.
struct FewExperts {
  static constexpr int kMost = 128;                // pairs of a token and a slot
  static constexpr int64_t kCounters = 1 + kMost;  // see cuda/last_block.cuh

  const int64_t* ids;  // [tokens, k], which may be bad; nullptr: blocks choose them themselves
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

  // A token has so many blocks, all of which have a part in its hidden rows and then in their sum.
  int parts = 1;
  int at_once[3] = {};  // of each phase: units that are met between two barriers, in a sum whole ones
  // Bytes of shared memory: of a warp's weights, of one stage of `down` that comes ahead among them, and of a block's
  // activations; and chains of tiles.
  int ring_bytes = 0, ahead_bytes = 0, rows_bytes = 0, sums = 0;
};

}  // namespace trigraph::TRIGRAPH_ISA
