// Root-mean-square norms of rows on a device.
#pragma once

#include "../cuda/kernel.h"

namespace trigraph::TRIGRAPH_ISA {

// Norms of the rows of x [rows, width], or of x + residual, and beside them of other [rows, other_width].
struct Norm {
  const float *x, *weight, *residual;  // residual: or nullptr
  int64_t width;
  const float *other = nullptr, *other_weight = nullptr;  // or nullptr
  int64_t other_width = 0;
  float eps = 0;
  float *y = nullptr, *sum = nullptr;  // [rows, width + other_width]; x + residual; each nullptr if nobody reads it
  char* prepared = nullptr;            // the rows of y as int8 in both forms (blocks/cuda/products.h), or nullptr
  int64_t prepared_bytes = 0;          // of such a row

  __host__ __device__ int64_t both() const { return width + other_width; }
  __device__ float factor(float squares, int64_t elements) const {
    return 1.0f / sqrtf(squares / static_cast<float>(elements) + eps);
  }
};

// Rows that are no wider may do without `y`.
constexpr int kStaged = 8192;
void normalize(const Norm& norm, int64_t rows, cudaStream_t stream);

// The norm of a node whose first inputs and outputs are those of PreparedRMSNorm, checked.
Norm prepared_norm(const Context& context, float eps);

}  // namespace trigraph::TRIGRAPH_ISA
