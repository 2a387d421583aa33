#include "row_kernel.h"

namespace trigraph::TRIGRAPH_ISA {

// nullptr: no kernel of that kind. Each kind is its own unit of compilation.
const RowKernel* find_float_kernel(const std::string& type);
const RowKernel* find_int8_kernel(const std::string& type);

namespace {

const char* name(DType type) {
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

}  // namespace

const RowKernel& row_kernel(const std::string& type, const std::string& activations) {
  if (activations != "float32" && activations != "int8")
    fail("attribute activations is \"%s\", expected float32 or int8", activations.c_str());
  const RowKernel* kernel = activations == "int8" ? find_int8_kernel(type) : nullptr;
  if (!kernel) kernel = find_float_kernel(type);
  if (kernel) return *kernel;
  fail(
      "type \"%s\" has no kernel, expected F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, "
      "IQ4_NL or IQ4_XS",
      type.c_str());
}

int64_t check_weight(const Tensor& weight, const RowKernel& kernel, int64_t width) {
  if (weight.type != kernel.dtype)
    fail("input %s holds %s, expected %s for type %s", weight.name, name(weight.type), name(kernel.dtype), kernel.type);
  if (weight.rank < 2) fail("input %s has %d dimensions, expected [.., rows, row]", weight.name, weight.rank);
  if (width % kernel.block)
    fail("input %s: width %lld is no multiple of the %lld elements in a block of %s", weight.name,
         static_cast<long long>(width), static_cast<long long>(kernel.block), kernel.type);
  const int64_t bytes = width / kernel.block * kernel.block_bytes;
  const int64_t last = weight.dims[weight.rank - 1], expected = kernel.dtype == DType::u8 ? bytes : width;
  if (last != expected)
    fail("input %s has rows of %lld %s, expected %lld for a width of %lld as %s", weight.name,
         static_cast<long long>(last), kernel.dtype == DType::u8 ? "bytes" : "elements",
         static_cast<long long>(expected), static_cast<long long>(width), kernel.type);
  return bytes;
}

}  // namespace trigraph::TRIGRAPH_ISA
