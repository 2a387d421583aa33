// int8 products of interleaved weights, whole groups of rows of them: AVX2 and AVX-512.
#pragma once

#include "interleaved.h"
#include "lane_products.h"
#include "level_lanes.h"

namespace trigraph::TRIGRAPH_ISA {

// With M activation rows, or m of them for M = 0.
template <class F, int M>
void interleaved_lanes(const uint8_t* w, int64_t n, int64_t row_bytes, int64_t width, const void* const* x, int64_t m,
                       float* const* y) {
  // Bytes between those in use and those to ask memory for.
  constexpr bool kFar = kRowLanes == 16 ? M != 1 && M != 2 : 2 <= M && M <= 4;
  constexpr int64_t kDistance = kFar ? 8192 : 4096;
  for (int64_t i = 0; i < kDistance && i < n * row_bytes; i += 64) prefetch(w + i);
  for (int64_t j = 0; j < n; j += kRowLanes) {
    LaneGroup<F, M> group(x, m);
    for (int64_t s = 0; s < supers(width); ++s, w += kRowLanes * F::kBytes)
      group.add_scaled(Interleaved{w}, 0, s, {w + kDistance, false});
    group.results(y, j, kRowLanes);
  }
}

}  // namespace trigraph::TRIGRAPH_ISA
