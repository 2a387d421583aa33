// The two products of attention on a group of cache entries in float32. Each score is one chain of fma over the head
// dimension and each output element one chain over positions, so its bits do not depend on the rows beside it.
#pragma once

#include <algorithm>

#include "../simd.h"

namespace trigraph::TRIGRAPH_ISA {

constexpr int64_t kSplit = 256;   // positions that share one softmax; splits are merged in order
constexpr int64_t kGroup = 16;    // positions that are widened to float32 together: 16 KiB of a 256-wide head
constexpr int64_t kTileRows = 4;  // query rows in registers
constexpr int kDotPositions = VL == 8 ? 2 : 4;  // beside them: as many accumulators as the register file holds
constexpr int kSumVectors = VL == 8 ? 2 : 4;

template <int ROWS, int POSITIONS>
inline void dot_tile(const float* q, const float* k, int64_t width, float* scores) {
  vf sum[ROWS][POSITIONS];
  for (int m = 0; m < ROWS; ++m)
    for (int p = 0; p < POSITIONS; ++p) sum[m][p] = zero();
  for (int64_t i = 0; i < width; i += VL) {
    vf x[POSITIONS];
    for (int p = 0; p < POSITIONS; ++p) x[p] = load(k + p * width + i);
    for (int m = 0; m < ROWS; ++m) {
      const vf y = load(q + m * width + i);
      for (int p = 0; p < POSITIONS; ++p) sum[m][p] = fmadd(y, x[p], sum[m][p]);
    }
  }
  for (int m = 0; m < ROWS; ++m)
    for (int p = 0; p < POSITIONS; ++p) scores[m * kSplit + p] = reduce_add(sum[m][p]);
}

// scores[m][p] = q[m] . k[p] for ROWS rows (kSplit apart) and `count` positions.
template <int ROWS>
inline void dot(const float* q, const float* k, int64_t count, int64_t width, float* scores) {
  int64_t p = 0;
  for (; p + kDotPositions <= count; p += kDotPositions)
    dot_tile<ROWS, kDotPositions>(q, k + p * width, width, scores + p);
  for (; p < count; ++p) dot_tile<ROWS, 1>(q, k + p * width, width, scores + p);
}

template <int ROWS, int VECTORS>
inline void sum_tile(const float* weights, const float* v, int64_t count, int64_t width, float* out) {
  vf sum[ROWS][VECTORS];
  for (int m = 0; m < ROWS; ++m)
    for (int j = 0; j < VECTORS; ++j) sum[m][j] = load(out + m * width + j * VL);
  for (int64_t p = 0; p < count; ++p) {
    vf x[VECTORS];
    for (int j = 0; j < VECTORS; ++j) x[j] = load(v + p * width + j * VL);
    for (int m = 0; m < ROWS; ++m) {
      const vf y = splat(weights[m * kSplit + p]);
      for (int j = 0; j < VECTORS; ++j) sum[m][j] = fmadd(y, x[j], sum[m][j]);
    }
  }
  for (int m = 0; m < ROWS; ++m)
    for (int j = 0; j < VECTORS; ++j) store(out + m * width + j * VL, sum[m][j]);
}

// out[m] += sum over `count` positions of weights[m][p] * v[p].
template <int ROWS>
inline void weighted_sum(const float* weights, const float* v, int64_t count, int64_t width, float* out) {
  int64_t i = 0;
  for (; i + kSumVectors * VL <= width; i += kSumVectors * VL)
    sum_tile<ROWS, kSumVectors>(weights, v + i, count, width, out + i);
  for (; i < width; i += VL) sum_tile<ROWS, 1>(weights, v + i, count, width, out + i);
}

// Calls body(std::integral_constant<int, n>{}) for n = rows, 1 to kTileRows.
template <class Body>
inline void with_rows(int64_t rows, Body&& body) {
  switch (rows) {
    case 1:
      return body(std::integral_constant<int, 1>{});
    case 2:
      return body(std::integral_constant<int, 2>{});
    case 3:
      return body(std::integral_constant<int, 3>{});
    default:
      return body(std::integral_constant<int, kTileRows>{});
  }
}

// Turns `count` scores into exp(score - largest); returns largest and the sum.
struct Weights {
  float largest, sum;
};
inline Weights exponentiate(float* scores, int64_t count) {
  const int64_t whole = count / VL * VL, padded = whole < count ? whole + VL : whole;
  for (int64_t p = count; p < padded; ++p) scores[p] = scores[0];
  vf most = load(scores);
  for (int64_t p = VL; p < padded; p += VL) most = max(most, load(scores + p));
  float lanes[VL];
  store(lanes, most);
  const float largest = *std::max_element(lanes, lanes + VL);
  vf sum = zero();
  for (int64_t p = 0; p < padded; p += VL) {
    store(scores + p, exp(sub(load(scores + p), splat(largest))));
    if (p == whole) std::fill(scores + count, scores + padded, 0.0f);
    sum = add(sum, load(scores + p));
  }
  return {largest, reduce_add(sum)};
}

}  // namespace trigraph::TRIGRAPH_ISA
