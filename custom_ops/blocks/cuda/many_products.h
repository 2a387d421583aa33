// Products of many rows with several weights in one launch.
#pragma once

#include "few_products.h"

namespace trigraph::TRIGRAPH_ISA {

// A weight matrix of a launch, or a stack of them.
struct ManyTask {
  const uint8_t* data;
  float* y;
  int64_t stride, rows, row_bytes;  // stride: from a matrix of the stack to the next
  int type;                         // among those of the launch
  int chains;                       // of a product with int8; 0 for a plain weight, which meets rows as they are
  int64_t form_offset;              // of a prepared row
  int columns, first_block;         // columns: weight rows of a block
  int wide_columns;                 // of a block of wide_tiles.cuh
};

// What meets rows of `width`: `prepared` ones, or x itself.
struct ManyTasks {
  static constexpr int kMost = 4;
  ManyTask task[kMost];
  const float* x;
  const char* prepared;
  int64_t width;
  int count, blocks;

  ManyTasks(const float* x, const void* prepared, int64_t width);
  // The tasks whose types `takes`, with blocks of wide_tiles.cuh where types have them.
  template <class Takes>
  ManyTasks widened(const Takes& takes) const;
  void add(const ProductKernel& kernel, const uint8_t* data, int64_t stride, int64_t rows, int64_t row_bytes, float* y);
};

// Rows of a bucket that matrices of these kernels should have, if each meets so many rows on average.
int bucket_rows(int64_t mean, std::initializer_list<const ProductKernel*> kernels);

// For weights of CommonTypes alone: `rows` rows, or those of at most `max_buckets` buckets.
void many_common(const ManyTasks& tasks, const Buckets& buckets, int64_t max_buckets, int64_t rows,
                 cudaStream_t stream);

}  // namespace trigraph::TRIGRAPH_ISA
