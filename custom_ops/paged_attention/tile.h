// The two products of attention between query rows in float32 and cache entries in the cache's type. Each score is one
// chain of fma over the head dimension and each output element one chain over positions, so its bits do not depend on
// the rows beside it.
#pragma once

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "../simd.h"
#include "../softmax.h"
#include "entry.h"
#include "split.h"

namespace trigraph::TRIGRAPH_ISA {

#if defined(TRIGRAPH_ISA_avx512) || defined(TRIGRAPH_ISA_neon)  // 32 vector registers, elsewhere 16
constexpr int kTileRows = 6, kTileColumns = 4;
#define TRIGRAPH_TILE inline
#else
constexpr int kTileRows = 4, kTileColumns = 3;
#define TRIGRAPH_TILE TRIGRAPH_NOINLINE  // among callers' values a tile loses registers
#endif
#if defined(TRIGRAPH_ISA_portable)  // GCC vectorises a loop over lanes, but not one unrolled around it
#define TRIGRAPH_TILE_UNROLL
#else
#define TRIGRAPH_TILE_UNROLL TRIGRAPH_UNROLL
#endif
constexpr int64_t kGroup = 24;  // positions whose entries stay in L1 while all rows use them, at most kAhead
constexpr int64_t kAhead = kKeysAhead;

// Whether an entry of floats or halves is widened once for all rows. On x86-64 the conversion is part of the load that
// each use makes anyway.
#if defined(TRIGRAPH_ISA_avx512) || defined(TRIGRAPH_ISA_avx2)
constexpr bool kWidenFloats = false;
#else
constexpr bool kWidenFloats = true;
#endif

template <class T>
TRIGRAPH_INLINE void prefetch(const T* from, int64_t count) {
  for (int64_t i = 0; i < count; i += 64 / sizeof(T)) prefetch(from + i);
}

// The entries of consecutive positions. With a use of one of the positions from `first` on, `share` of them, memory is
// asked for what comes kAhead further on: a little every time, since a burst would stall. The other uses ask for what
// is at hand, which is cheaper than a branch.
template <class T>
struct Entries {
  const T* const* list;
  int64_t first, share;

  const T* const* ahead(int64_t p) const {
    return list + p + (static_cast<uint64_t>(p - first) < static_cast<uint64_t>(share) ? kAhead : 0);
  }
};

// Products of ROWS rows with POSITIONS entries, in the lanes of one part.
template <int ROWS, int POSITIONS, class T>
TRIGRAPH_INLINE void dot_part(const float* q, const T* const* entry, const T* const* ahead, int64_t width, int part,
                              Part* sum) {
  TRIGRAPH_TILE_UNROLL
  for (int i = 0; i < ROWS * POSITIONS; ++i) sum[i] = zero_part();
  q += part * kPartLanes;
  for (int64_t i = 0; i < width; i += VL) {
    Part x[POSITIONS];
    TRIGRAPH_TILE_UNROLL
    for (int p = 0; p < POSITIONS; ++p) x[p] = load_entry_part(entry[p] + part * kPartLanes + i);
    if (!kWidenFloats && i * static_cast<int>(sizeof(T)) % (64 * kParts) == 64 * part)
      for (int p = 0; p < POSITIONS; ++p) prefetch(ahead[p] + i);
    TRIGRAPH_TILE_UNROLL
    for (int m = 0; m < ROWS; ++m) {
      const Part y = load_part(q + m * width + i);
      TRIGRAPH_TILE_UNROLL
      for (int p = 0; p < POSITIONS; ++p) sum[m * POSITIONS + p] = fmadd(y, x[p], sum[m * POSITIONS + p]);
    }
  }
}

// Dot products of parts `part`, part + STEP ... added up as reduce_add does. Part by part, so that a tile's sums fit
// registers.
template <int ROWS, int POSITIONS, int STEP, class T>
TRIGRAPH_INLINE void dot_parts(const float* q, const T* const* entry, const T* const* ahead, int64_t width, int part,
                               Part* sum) {
  if constexpr (STEP == kParts) {
    dot_part<ROWS, POSITIONS>(q, entry, ahead, width, part, sum);
  } else {
    Part high[ROWS * POSITIONS];
    dot_parts<ROWS, POSITIONS, 2 * STEP>(q, entry, ahead, width, part, sum);
    dot_parts<ROWS, POSITIONS, 2 * STEP>(q, entry, ahead, width, part + STEP, high);
    TRIGRAPH_TILE_UNROLL
    for (int i = 0; i < ROWS * POSITIONS; ++i) sum[i] = add(sum[i], high[i]);
  }
}

template <int ROWS, int POSITIONS, class T>
TRIGRAPH_TILE void dot_tile(const float* q, const Entries<T>& entries, int64_t position, int64_t width, float* scores) {
  constexpr int kSums = ROWS * POSITIONS, kQuads = kSums / 4 * 4;
  Part sum[kSums];
  const T* entry[POSITIONS];
  const T* ahead[POSITIONS];
  for (int p = 0; p < POSITIONS; ++p) entry[p] = entries.list[position + p], ahead[p] = entries.ahead(position)[p];
  dot_parts<ROWS, POSITIONS, 1>(q, entry, ahead, width, 0, sum);
  float lanes[kSums];
  TRIGRAPH_TILE_UNROLL
  for (int i = 0; i < kQuads; i += 4) reduce_add4(sum[i], sum[i + 1], sum[i + 2], sum[i + 3], lanes + i);
  TRIGRAPH_TILE_UNROLL
  for (int i = kQuads; i < kSums; ++i) lanes[i] = reduce_add(sum[i]);
  for (int m = 0; m < ROWS; ++m) std::memcpy(scores + m * kSplit, lanes + m * POSITIONS, POSITIONS * sizeof(float));
}

// scores[m][p] = q[m] . entries[p] for ROWS rows (scores kSplit apart) and positions [0, count).
template <int ROWS, class T>
inline void dot(const float* q, const Entries<T>& entries, int64_t count, int64_t width, float* scores) {
  int64_t p = 0;
  for (; p + kTileColumns <= count; p += kTileColumns) dot_tile<ROWS, kTileColumns>(q, entries, p, width, scores + p);
  for (; p < count; ++p) dot_tile<ROWS, 1>(q, entries, p, width, scores + p);
}

template <int ROWS, int PARTS, class T>
TRIGRAPH_TILE void sum_tile(const float* weights, const Entries<T>& entries, int64_t first, int64_t last, int64_t width,
                            int64_t column, float* out) {
  Part sum[ROWS * PARTS];
  TRIGRAPH_TILE_UNROLL
  for (int m = 0; m < ROWS; ++m) TRIGRAPH_TILE_UNROLL
  for (int j = 0; j < PARTS; ++j) sum[m * PARTS + j] = load_part(out + m * width + column + j * kPartLanes);
  for (int64_t p = first; p < last; ++p) {
    const T* entry = entries.list[p] + column;
    const T* ahead = *entries.ahead(p) + column;
    Part x[PARTS];
    TRIGRAPH_TILE_UNROLL
    for (int j = 0; j < PARTS; ++j) x[j] = load_entry_part(entry + j * kPartLanes);
    if (!kWidenFloats) prefetch(ahead, PARTS * kPartLanes);
    TRIGRAPH_TILE_UNROLL
    for (int m = 0; m < ROWS; ++m) {
      const Part y = splat_part(weights[m * kSplit + p]);
      TRIGRAPH_TILE_UNROLL
      for (int j = 0; j < PARTS; ++j) sum[m * PARTS + j] = fmadd(y, x[j], sum[m * PARTS + j]);
    }
  }
  TRIGRAPH_TILE_UNROLL
  for (int m = 0; m < ROWS; ++m) TRIGRAPH_TILE_UNROLL
  for (int j = 0; j < PARTS; ++j) store_part(out + m * width + column + j * kPartLanes, sum[m * PARTS + j]);
}

// out[m] += sum over positions [first, last) of weights[m][p] * entries[p].
template <int ROWS, class T>
inline void weighted_sum(const float* weights, const Entries<T>& entries, int64_t first, int64_t last, int64_t width,
                         float* out) {
  if (first >= last) return;
  int64_t i = 0;
  for (; i + kTileColumns * kPartLanes <= width; i += kTileColumns * kPartLanes)
    sum_tile<ROWS, kTileColumns>(weights, entries, first, last, width, i, out);
  for (; i + 2 * kPartLanes <= width; i += 2 * kPartLanes)
    sum_tile<ROWS, 2>(weights, entries, first, last, width, i, out);
  if (i < width) sum_tile<ROWS, 1>(weights, entries, first, last, width, i, out);
}

// Calls body(std::integral_constant<int, n>{}) for n = rows, 1 to kTileRows.
template <int n = kTileRows, class Body>
inline void with_rows(int64_t rows, Body&& body) {
  if constexpr (n > 1)
    if (rows < n) return with_rows<n - 1>(rows, body);
  body(std::integral_constant<int, n>{});
}

}  // namespace trigraph::TRIGRAPH_ISA
