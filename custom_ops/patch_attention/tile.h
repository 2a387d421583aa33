// Products of attention between queries and one image's keys and values, as tiles of registers. Each score is one chain
// of fma over the head's dimensions and each output element one chain over a split's keys, so no bit depends on how
// tiles are cut.
#pragma once

#include <algorithm>

#include "../simd.h"

namespace trigraph::TRIGRAPH_ISA {

// Rows and columns of a tile: its sums fill the registers, but for those of one row of columns and of a factor.
#if defined(TRIGRAPH_ISA_avx512)
constexpr int kPatchRows = 12, kPatchParts = 2;
#elif defined(TRIGRAPH_ISA_avx2)
constexpr int kPatchRows = 6, kPatchParts = 2;
#elif defined(TRIGRAPH_ISA_neon)
constexpr int kPatchRows = 6, kPatchParts = 4;
#else
constexpr int kPatchRows = 4, kPatchParts = 1;
#endif
#if defined(TRIGRAPH_ISA_portable)  // GCC vectorises a loop over lanes, but not one unrolled around it
#define TRIGRAPH_PATCH_UNROLL
#else
#define TRIGRAPH_PATCH_UNROLL TRIGRAPH_UNROLL
#endif
constexpr int64_t kPatchColumns = kPatchParts * kPartLanes;

inline int64_t round_up(int64_t count, int64_t step) { return (count + step - 1) / step * step; }

// out[m][j] = sum over n of a[m * ROW + n * STEP] * b[n][j], for kPatchRows rows and the columns of PARTS parts.
template <int PARTS, int ROW, int STEP>
TRIGRAPH_NOINLINE void multiply_tile(const float* a, const float* b, int64_t count, float* out, int64_t out_width) {
  Part sum[kPatchRows * PARTS];
  TRIGRAPH_PATCH_UNROLL
  for (int i = 0; i < kPatchRows * PARTS; ++i) sum[i] = zero_part();
  for (int64_t n = 0; n < count; ++n, a += STEP, b += PARTS * kPartLanes) {
    Part x[PARTS];
    TRIGRAPH_PATCH_UNROLL
    for (int j = 0; j < PARTS; ++j) x[j] = load_part(b + j * kPartLanes);
    TRIGRAPH_PATCH_UNROLL
    for (int m = 0; m < kPatchRows; ++m) {
      const Part y = splat_part(a[m * ROW]);
      TRIGRAPH_PATCH_UNROLL
      for (int j = 0; j < PARTS; ++j) sum[m * PARTS + j] = fmadd(y, x[j], sum[m * PARTS + j]);
    }
  }
  TRIGRAPH_PATCH_UNROLL
  for (int m = 0; m < kPatchRows; ++m) TRIGRAPH_PATCH_UNROLL
  for (int j = 0; j < PARTS; ++j) store_part(out + m * out_width + j * kPartLanes, sum[m * PARTS + j]);
}

// Multiplies panels of b side by side, each [count][kPatchColumns] but the last, which has what is left of `width`, a
// multiple of kPartLanes.
template <int ROW, int STEP, int PARTS = kPatchParts>
inline void multiply_panels(const float* a, const float* b, int64_t count, int64_t width, float* out,
                            int64_t out_width) {
  for (; width >= PARTS * kPartLanes; width -= PARTS * kPartLanes) {
    multiply_tile<PARTS, ROW, STEP>(a, b, count, out, out_width);
    b += count * PARTS * kPartLanes;
    out += PARTS * kPartLanes;
  }
  if constexpr (PARTS > 1)
    if (width) multiply_panels<ROW, STEP, PARTS - 1>(a, b, count, width, out, out_width);
}

}  // namespace trigraph::TRIGRAPH_ISA
