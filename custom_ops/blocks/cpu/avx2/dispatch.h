// The products of AVX2 and AVX-VNNI: the fastest loop for a type and a number of activation rows.
#pragma once

#include "../common/interleaved_products.h"
#include "../common/panels.h"
#include "../common/row_products.h"

namespace trigraph::TRIGRAPH_ISA {

// Numbers of activation rows that have a kernel of their own.
template <class F>
constexpr int kOwnRows = kRare<F>                        ? RowLoop<F>::kMost
                         : is_one_of<F>(FrequentTypes()) ? 8
                                                         : 4;

// Rows from which on they go together.
template <class F>
constexpr int64_t kMany = kOwnRows<F> + 1;

template <class F, int M>
void plain_rows(const uint8_t* w, int64_t n, int64_t row_bytes, int64_t width, const void* const* x, int64_t m,
                float* const* y) {
  if constexpr (kTakesAllRows<F, M>) {
    int8_rows<F, M>(w, n, row_bytes, width, x, y);
  } else {
    if constexpr (M > 0 && M <= RowLoop<F>::kMost)
      if (takes_rows<F, M>(n, row_bytes, width)) return int8_rows<F, M>(w, n, row_bytes, width, x, y);
    constexpr bool kByPanels = kManyByPanels<F> || (F::kBlock == kSuper && !kSignedCodes<F>);
    if constexpr (kRare<F> || (M == 0 && kByPanels))
      int8_panels<F>(w, n, row_bytes, width, x, m, y);
    else  // one row of Q8_0 has a width that few models have
      int8_lanes<F, M == 1 && RowLoop<F>::kMost ? 0 : M>(w, n, row_bytes, width, x, m, y);
  }
}

#define TRIGRAPH_INTERLEAVED(type) #type "_R8"  // rows side by side

}  // namespace trigraph::TRIGRAPH_ISA
