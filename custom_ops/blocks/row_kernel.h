// Products of quantised weight rows with activation rows: what the block matmul and the expert FFN are made of.
#pragma once

#include <cstdint>

#include "../kernel.h"

namespace trigraph::TRIGRAPH_ISA {

enum class Activations { float32, int8 };

// How the rows of one weight type meet activations of one kind. y[i][j] depends on x[i] and weight row j alone, bit for
// bit: never on m, n or the tiling.
struct RowKernel {
  const char* type;         // ggml name, "Q4_K"
  int64_t block;            // elements in a block (1 for F32, F16, BF16)
  int64_t block_bytes;      // bytes of a block
  int64_t (*prepared_bytes)(int64_t width);                         // of one prepared activation row, a multiple of 64
  void (*prepare)(const float* x, int64_t width, void* prepared);   // one row; quantised when activations are int8
  // y[i][j] for m prepared rows x[i] and n weight rows that start at w, row_bytes apart.
  void (*product)(const uint8_t* w, int64_t n, int64_t row_bytes, int64_t width, const void* const* x, int64_t m,
                  float* const* y);
  void (*unpack)(const uint8_t* w, int64_t width, float* out);      // one weight row to float32, exactly as ggml defines it
};

// Throws Error that names the attribute for an unknown type or kind.
const RowKernel& row_kernel(const std::string& type, const std::string& activations);

// Checks a weight tensor ([.., N, row_bytes] uint8, or [.., N, width] of the type's own dtype) and returns bytes of a row.
int64_t check_weight(const Tensor& weight, const RowKernel& kernel, int64_t width);

}  // namespace trigraph::TRIGRAPH_ISA
