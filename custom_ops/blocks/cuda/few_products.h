// Products of a few rows with several weights in one launch. Rows that are not prepared each block prepares for itself:
// for a step that reads its weights in microseconds a launch less matters more than work done twice.
#pragma once

#include "../../cuda/device_error.cuh"
#include "../../rms_norm/norm_rows.h"
#include "products.h"

namespace trigraph::TRIGRAPH_ISA {

// The types of nearly all files: weights of any of these share a launch.
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
  int type;       // among those of the launch
  unsigned form;  // of int8 rows that it meets, or kNoForm
  int lanes;      // of a warp that share a weight row, if it comes without tiles
  bool tiled;     // few_tiles.cuh
  bool staged;    // whether rows come through shared memory, though no tiles
  int at_once;    // rows of a block
  int rounds;     // how often it takes as many
  int first_block;
};

// The kernels for the fewest rows meet weights of float32 too; with more rows, tiles meet those faster.
constexpr int kFirstRows = 2;

// What meets `m` rows of `width`.
struct FewTasks {
  static constexpr int kMost = 4;
  FewTask task[kMost];
  const float* x;
  const char* prepared = nullptr;  // rows of x as int8, in the forms of tasks, or nullptr
  int64_t width;
  int m, count, blocks;
  unsigned forms;  // of all tasks
  int ring_bytes;  // of a warp, for weights that are on their way

  FewTasks(const float* x, int64_t width, int64_t m);
  // Whether the rows are few, and fit into a block; and whether one that is to be normed does.
  static bool fit(int64_t width, int64_t m);
  static bool fit_norm(int64_t width);
  void add(const ProductKernel& kernel, const uint8_t* data, int64_t rows, int64_t row_bytes, float* y);
  // What rows take of a block's shared memory.
  int64_t rows_bytes() const;
  // Shares rows out among blocks, and shared memory but for `other_bytes`: how much a block has.
  size_t share(int64_t other_bytes);
};

// For weights of CommonTypes alone.
void few_common(const FewTasks& tasks, cudaStream_t stream);

// The products of rows that are made in the launch: normed, or int8 of rows that are there. `counters`: kRowCounters
// (see cuda/last_block.cuh).
constexpr int64_t kRowCounters = 2;
void few_normed(FewTasks tasks, const Norm& norm, unsigned* counters, cudaStream_t stream);
void few_quantised(FewTasks tasks, char* prepared, unsigned* counters, cudaStream_t stream);

}  // namespace trigraph::TRIGRAPH_ISA
