// The products of AVX-512: the fastest loop for a type and a number of activation rows.
#pragma once

#include "../common/interleaved_products.h"
#include "../common/row_products.h"
#include "tile_products.h"

namespace trigraph::TRIGRAPH_ISA {

template <class F, int M>
void plain_rows(const uint8_t* w, int64_t n, int64_t row_bytes, int64_t width, const void* const* x, int64_t m,
                float* const* y) {
  if constexpr (M >= KTile<F>::kLeast && M <= KTile<F>::kMost)
    if (width % kSuper == 0) return tile_rows<F, M>(w, n, row_bytes, width, x, y);
  if constexpr (M > 0 && M <= RowLoop<F>::kMost)
    if (takes_rows<F, M>(n, row_bytes, width)) return int8_rows<F, M>(w, n, row_bytes, width, x, y);
  int8_lanes<F, M>(w, n, row_bytes, width, x, m, y);
}

#define TRIGRAPH_INTERLEAVED(type) #type "_R16"  // rows side by side
template <class F, int M>
void interleaved_rows(const uint8_t* w, int64_t n, int64_t row_bytes, int64_t width, const void* const* x, int64_t m,
                      float* const* y) {
  interleaved_lanes<F, M>(w, n, row_bytes, width, x, m, y);
}

}  // namespace trigraph::TRIGRAPH_ISA
