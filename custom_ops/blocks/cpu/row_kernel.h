// Products of quantised weight rows with activation rows: what the block matmul and the expert FFN are made of.
#pragma once

#include <cstdint>
#include <string>

#include "../formats/weight.h"

namespace trigraph {

// How the rows of one weight type meet activations of one kind. y[i][j] depends on x[i] and weight row j alone, bit for
// bit: never on m, n or the tiling. Every function may be called from any thread; weights may lie at any alignment.
struct RowKernel : WeightType {
  // Bytes of one prepared activation row, a multiple of 64. Rows must start at multiples of 64. Kernels with the same
  // `prepare` read the same rows.
  int64_t (*prepared_bytes)(int64_t width);
  void (*prepare)(const float* x, int64_t width, void* prepared);  // one row; quantised when activations are int8
  // y[i][j] for m prepared rows x[i] and n weight rows that start at w, row_bytes apart. A weight row is unpacked once
  // for all m rows, so give it every row of the step at once; m = 0 and n = 0 are allowed.
  void (*product)(const uint8_t* w, int64_t n, int64_t row_bytes, int64_t width, const void* const* x, int64_t m,
                  float* const* y);
  // One weight row to float32, exactly as ggml defines it; of kernels for float32 alone.
  void (*unpack)(const uint8_t* w, int64_t width, float* out);
};

}  // namespace trigraph

// Where an instruction set differs from another one in its products with int8 alone, all else is that one's.
#ifndef TRIGRAPH_BASE
#define TRIGRAPH_BASE TRIGRAPH_ISA
#endif

namespace trigraph::TRIGRAPH_BASE {

const RowKernel* find_float_kernel(const std::string& type);  // nullptr: none

}  // namespace trigraph::TRIGRAPH_BASE

namespace trigraph::TRIGRAPH_ISA {

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The kernels for int8; nullptr: none. Each list of types is its own unit of compilation.
const RowKernel* find_frequent_kernel(const std::string& type);
const RowKernel* find_rare_kernel(const std::string& type);
const RowKernel* find_interleaved_kernel(const std::string& type);

// The kernel of a ggml type with activations "float32" or "int8" (F32, F16 and BF16 weights always meet float32). The
// reference stays valid for ever. Throws Error that names the value of an unknown type or kind.
const RowKernel& row_kernel(const std::string& type, const std::string& activations);

}  // namespace trigraph::TRIGRAPH_ISA
