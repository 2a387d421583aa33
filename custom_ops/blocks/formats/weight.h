// What a weight tensor of a ggml type looks like, checked; shared by the kernels of every device.
#pragma once

#include <cstdint>

#include "formats.h"

namespace trigraph {

struct WeightType {
  const char* type;     // ggml name, "Q4_K"
  DType dtype;          // of the weight tensor: u8, or the type's own for F32, F16 and BF16
  int64_t block;        // elements in a block (1 for F32, F16, BF16)
  int64_t block_bytes;  // bytes of a block
  int64_t rows = 1;     // of a matrix, which a repacked one holds in whole groups of as many
};

}  // namespace trigraph

namespace trigraph::TRIGRAPH_ISA {

inline const char* name(DType type) {
  switch (type) {
    case DType::f32:
      return "float32";
    case DType::f16:
      return "float16";
    case DType::bf16:
      return "bfloat16";
    case DType::u8:
      return "uint8";
    default:
      return "another type";
  }
}

inline void check_activations(const std::string& kind) {
  if (kind != "float32" && kind != "int8")
    fail("attribute activations is \"%s\", expected float32 or int8", kind.c_str());
}

template <class... F>
std::string names(Types<F...>) {
  std::string all;
  for (const char* name : {F::kName...}) all += (all.empty() ? "" : ", ") + std::string(name);
  return all;
}

[[noreturn]] inline void fail_type(const std::string& type) {
  fail("type \"%s\" has no kernel, expected one of %s, %s", type.c_str(), names(PlainTypes()).c_str(),
       names(BlockTypes()).c_str());
}

// Checks a weight tensor ([.., N, row_bytes] uint8, or [.., N, width] of the type's own dtype) and returns bytes of a
// row.
inline int64_t check_weight(const Tensor& weight, const WeightType& type, int64_t width) {
  if (weight.type != type.dtype)
    fail("input %s holds %s, expected %s for type %s", weight.name, name(weight.type), name(type.dtype), type.type);
  if (weight.rank < 2) fail("input %s has %d dimensions, expected [.., rows, row]", weight.name, weight.rank);
  if (width % type.block)
    fail("input %s: width %lld is no multiple of the %lld elements in a block of %s", weight.name,
         static_cast<long long>(width), static_cast<long long>(type.block), type.type);
  if (weight.dims[weight.rank - 2] % type.rows)
    fail("input %s has %lld rows, expected a multiple of %lld for type %s", weight.name,
         static_cast<long long>(weight.dims[weight.rank - 2]), static_cast<long long>(type.rows), type.type);
  const int64_t bytes = width / type.block * type.block_bytes;
  const int64_t last = weight.dims[weight.rank - 1], expected = type.dtype == DType::u8 ? bytes : width;
  if (last != expected)
    fail("input %s has rows of %lld %s, expected %lld for a width of %lld as %s", weight.name,
         static_cast<long long>(last), type.dtype == DType::u8 ? "bytes" : "elements", static_cast<long long>(expected),
         static_cast<long long>(width), type.type);
  return bytes;
}

// Elements in a row of a table whose blocks are not known to be whole.
inline int64_t table_width(const Tensor& table, const WeightType& type) {
  if (table.rank != 2) fail("input %s has %d dimensions, expected 2", table.name, table.rank);
  return type.dtype == DType::u8 ? table.dims[1] / type.block_bytes * type.block : table.dims[1];
}

}  // namespace trigraph::TRIGRAPH_ISA
