// The int8 products of the instruction set that is compiled. Its dispatch.h says which loop is the fastest for weights
// of type F in the order of a file, plain_rows<F, M>, or interleaved, interleaved_rows<F, M>: with M activation rows,
// or with any number m up to kGroup for M = 0.
#pragma once

#include <utility>

#include "common/kernels.h"
#if defined(TRIGRAPH_ISA_avx512)
#include "avx512/dispatch.h"
#elif defined(TRIGRAPH_ISA_avx2)
#include "avx2/dispatch.h"
#elif defined(TRIGRAPH_ISA_neon)
#include "neon/dispatch.h"
#else
#include "common/int8_products.h"
#endif

namespace trigraph::TRIGRAPH_ISA {

using Product = decltype(RowKernel::product);

// For m rows: the kernel of as many; from `many` on the first one, of any number; between them, as many kernels as it
// takes, of nearly equal numbers.
template <size_t N>
void multiply(const Product (&kernels)[N], int64_t many, const uint8_t* w, int64_t n, int64_t row_bytes, int64_t width,
              const void* const* x, int64_t m, float* const* y) {
  constexpr int64_t kOwn = N - 1;
  const int64_t most = m >= many || !m ? kGroup : ceil_div(m, ceil_div(m, kOwn));
  for (int64_t i = 0; i < m; i += most) {
    const int64_t rows = m - i < most ? m - i : most;
    kernels[rows <= kOwn ? rows : 0](w, n, row_bytes, width, x + i, rows, y + i);
  }
}

#if defined(TRIGRAPH_ISA_portable)
template <class F>
void product(const uint8_t* w, int64_t n, int64_t row_bytes, int64_t width, const void* const* x, int64_t m,
             float* const* y) {
  int8_product<F>(w, n, row_bytes, width, x, m, y);
}
#else
template <class F, int... M>
void product_of(std::integer_sequence<int, M...>, const uint8_t* w, int64_t n, int64_t row_bytes, int64_t width,
                const void* const* x, int64_t m, float* const* y) {
  static constexpr Product kKernels[] = {plain_rows<F, M>...};
  multiply(kKernels, kMany<F>, w, n, row_bytes, width, x, m, y);
}
template <class F>
void product(const uint8_t* w, int64_t n, int64_t row_bytes, int64_t width, const void* const* x, int64_t m,
             float* const* y) {
  product_of<F>(std::make_integer_sequence<int, kOwnRows<F> + 1>(), w, n, row_bytes, width, x, m, y);
}
#endif

// The kernel of a name among Types.
template <class... F>
const RowKernel* find_int8_kernel(const std::string& type, Types<F...>) {
  static constexpr RowKernel kKernels[] = {
      {weight_type<F>(), int8_bytes<Int8Of<F>>, prepare_int8<Int8Of<F>>, product<F>, nullptr}...};
  return find(kKernels, type);
}

}  // namespace trigraph::TRIGRAPH_ISA
