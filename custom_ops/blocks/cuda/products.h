// Products of quantised weight rows with activation rows on a device: what the block matmul and the expert FFN are made
// of.
#pragma once

#include "../../cuda/platform.cuh"
#include "../formats/weight.h"

namespace trigraph::TRIGRAPH_ISA {

// Activation rows as weights meet them.
enum class Layout {
  float32,  // as they are
  int8,     // codes, with the sums of 16 of them
};

// The forms of a row as int8, which lie one behind the other: 256 codes to a scale, for types with blocks of as many
// elements, and 32, for all others.
enum Forms : unsigned { kNoForm = 0, kBySupers = 1, kByRuns = 2, kBothForms = 3 };

// Bytes of a prepared row.
int64_t prepared_bytes(Layout layout, int64_t width);
// Prepares `rows` rows of x as int8, in these forms; the others stay as they are.
void prepare(const float* x, int64_t rows, int64_t width, unsigned forms, void* prepared, cudaStream_t stream);
// Prepares rows of silu(gate) * up: as int8 in these forms, or as float32 for none.
void prepare_gated(const float* gate, const float* up, int64_t rows, int64_t width, unsigned forms, void* prepared,
                   cudaStream_t stream);
// Prepares rows of silu(scale * gate).
void prepare_gate(const float* gate, float scale, int64_t rows, int64_t width, unsigned forms, void* prepared,
                  cudaStream_t stream);

// The (token, slot) pairs of an expert FFN sorted by expert: pair i of that order reads activation row source[i] (i
// itself without a source).
struct Buckets {
  static constexpr int kMost = 32;  // pairs of a bucket, so that no thread block has much more to do than others
  const int* used;                  // how many buckets there are
  const int* matrix;                // [buckets] of the stack
  const int* first;                 // [buckets + 1] sorted indices
  const int* source;                // [pairs] or nullptr
  unsigned* taken;                  // how many tiles of a launch have been taken by blocks; zero between launches
  int most = kMost;                 // pairs of these buckets: more only where bucket_rows says so
};

struct FewTasks;
struct ManyTasks;
using ManyProducts = void (*)(const ManyTasks& tasks, const Buckets& buckets, int64_t max_buckets, int64_t rows,
                              cudaStream_t stream);

// y[i][j] of one weight type depends on activation row i and weight row j alone, and has the bits of the CPU's kernels:
// int8_products.h and float_products.h define them.
struct ProductKernel : WeightType {
  Layout layout;
  unsigned form;  // of int8 rows that it meets
  int alignment;  // of weight rows, in bytes
  // Products of a few rows that are not prepared, in one launch (few_products.h), and this type's number there.
  // Weights with the same function share a launch. nullptr: it takes none.
  void (*few)(const FewTasks& tasks, cudaStream_t stream);
  // The products of many rows (many_products.h).
  ManyProducts many;
  int few_type;
  // y [m, n] for m prepared rows and n weight rows of `row_bytes`.
  void (*product)(const uint8_t* w, int64_t n, int64_t row_bytes, int64_t width, const void* x, int64_t m, float* y,
                  cudaStream_t stream);
  // y [pairs, n] for the sorted pairs of at most `max_buckets` buckets; a matrix of the stack has `stride` bytes, of
  // which `w` is the first row that counts. `second`, or nullptr, is another stack alike, with a y of its own.
  void (*grouped)(const uint8_t* w, const uint8_t* second, int64_t stride, int64_t n, int64_t row_bytes, int64_t width,
                  const void* x, const Buckets& buckets, int64_t max_buckets, int64_t pairs, float* y, float* second_y,
                  cudaStream_t stream);
  // y [rows, width]: rows ids[i] of a table of `count` rows as float32. A bad id is a device error.
  void (*unpack)(const uint8_t* table, int64_t count, int64_t row_bytes, int64_t width, const int64_t* ids,
                 int64_t rows, float* y, cudaStream_t stream);
  int (*lanes)(int64_t width);  // of a warp that share a weight row
};

// The kernel of a ggml type with activations "float32" or "int8". Throws Error that names an unknown type or kind.
const ProductKernel& product_kernel(const std::string& type, const std::string& activations);

// Kernels load whole words: weight rows must lie as ONNX Runtime allocates them.
inline void check_alignment(const Tensor& weight, const ProductKernel& kernel) {
  if (reinterpret_cast<uintptr_t>(weight.data) % kernel.alignment)
    fail("input %s lies at an address that is no multiple of %d", weight.name, kernel.alignment);
}

}  // namespace trigraph::TRIGRAPH_ISA
