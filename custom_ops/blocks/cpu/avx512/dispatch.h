// The products of AVX-512: the fastest loop for a type and a number of activation rows.
#pragma once

#include "../common/interleaved_products.h"
#include "../common/panels.h"
#include "../common/row_products.h"
#include "tile_products.h"

namespace trigraph::TRIGRAPH_ISA {

// Numbers of activation rows that have a kernel of their own.
template <class F>
constexpr int kOwnRows = kRare<F>                        ? RowLoop<F>::kMost
                         : is_one_of<F>(FrequentTypes()) ? 8
                                                         : 4;

// Types of which many rows go eight at a time, faster than any number.
template <class F>
constexpr bool kManyByEight = std::is_same_v<F, Q4_K>;

template <class F, int M>
void plain_rows(const uint8_t* w, int64_t n, int64_t row_bytes, int64_t width, const void* const* x, int64_t m,
                float* const* y) {
  if constexpr (M >= KTile<F>::kLeast && M <= KTile<F>::kMost) {
    if (width % (2 * kSuper) == 0)
      tile_rows<F, M>(w, n, row_bytes, width, x, y);
    else  // a width that few models have
      int8_lanes<F, 0>(w, n, row_bytes, width, x, m, y);
  } else if constexpr (kTakesAllRows<F, M>) {
    int8_rows<F, M>(w, n, row_bytes, width, x, y);
  } else {
    if constexpr (M > 0 && M <= RowLoop<F>::kMost)
      if (takes_rows<F, M>(n, row_bytes, width)) return int8_rows<F, M>(w, n, row_bytes, width, x, y);
    if constexpr (kRare<F> || (M == 0 && kManyByPanels<F>))
      int8_panels<F>(w, n, row_bytes, width, x, m, y);
    else  // one row of Q8_0 has a width that few models have
      int8_lanes<F, M == 1 && RowLoop<F>::kMost ? 0 : M>(w, n, row_bytes, width, x, m, y);
  }
}

#define TRIGRAPH_INTERLEAVED(type) #type "_R16"  // rows side by side
template <class F, int M>
void interleaved_rows(const uint8_t* w, int64_t n, int64_t row_bytes, int64_t width, const void* const* x, int64_t m,
                      float* const* y) {
  interleaved_lanes<F, M>(w, n, row_bytes, width, x, m, y);
}
// Many rows: none, for eight at a time are faster than any number.
template <class F>
constexpr decltype(RowKernel::product) kManyInterleaved = nullptr;

}  // namespace trigraph::TRIGRAPH_ISA
