// The products of NEON: the fastest loop for a number of activation rows.
#pragma once

#include "../common/lane_products.h"
#if defined(__ARM_FEATURE_MATMUL_INT8)
#include "tile_products.h"
#endif

namespace trigraph::TRIGRAPH_ISA {

// Numbers of activation rows that have a kernel of their own.
template <class F>
constexpr int kOwnRows = is_one_of<F>(FrequentTypes())                 ? 8
                         : is_one_of<F>(Types<Q4_0, IQ3_S, IQ3_XXS>()) ? 4
                                                                       : 1;

// Rows from which on they go together.
template <class F>
constexpr int64_t kMany = kOwnRows<F> + 1;

template <class F, int M>
void plain_rows(const uint8_t* w, int64_t n, int64_t row_bytes, int64_t width, const void* const* x, int64_t m,
                float* const* y) {
#if defined(__ARM_FEATURE_MATMUL_INT8)
  if constexpr (M != 1) return int8_tiles<F>(w, n, row_bytes, width, x, m, y);
#endif
  int8_lanes<F, M>(w, n, row_bytes, width, x, m, y);
}

}  // namespace trigraph::TRIGRAPH_ISA
