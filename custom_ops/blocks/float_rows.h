// Products with float32 activations. A prepared row is the row padded with zeros to whole super-blocks. The order of a
// sum is fixed: chains of eight vectors, added up one after another in one vector, then its lanes.
#pragma once

#include "formats.h"

namespace trigraph::TRIGRAPH_ISA {

constexpr int kChain = 8;

inline int64_t supers(int64_t width) { return (width + kSuper - 1) / kSuper; }

template <class F>
struct FloatRows {
  static int64_t prepared_bytes(int64_t width) { return supers(width) * kSuper * 4; }

  static void prepare(const float* x, int64_t width, void* prepared) {
    std::memcpy(prepared, x, static_cast<size_t>(width) * 4);
    std::memset(static_cast<float*>(prepared) + width, 0, static_cast<size_t>(prepared_bytes(width) - width * 4));
  }

  // One weight row with M activation rows.
  template <int M>
  static void dot(const uint8_t* w, int64_t width, const void* const* x, float* const* y, int64_t column) {
    vf sum[M];
    for (int i = 0; i < M; ++i) sum[i] = zero();
    alignas(64) float tile[kSuper];
    for (int64_t start = 0; start < width; start += kSuper) {
      const int count = static_cast<int>(width - start < kSuper ? width - start : kSuper);
      if (count < kSuper) std::memset(tile, 0, sizeof tile);
      unpack_super<F>(w + start / F::kBlock * F::kBytes, count, tile);
      for (int k = 0; k < kSuper; k += kChain * VL)
        for (int i = 0; i < M; ++i) {
          const float* row = static_cast<const float*>(x[i]) + start + k;
          vf t = mul(load(tile + k), load(row));
          for (int v = 1; v < kChain; ++v) t = fmadd(load(tile + k + v * VL), load(row + v * VL), t);
          sum[i] = add(sum[i], t);
        }
    }
    for (int i = 0; i < M; ++i) y[i][column] = reduce_add(sum[i]);
  }

  static void product(const uint8_t* w, int64_t n, int64_t row_bytes, int64_t width, const void* const* x, int64_t m,
                      float* const* y) {
    static constexpr decltype(&dot<1>) kDot[] = {dot<1>, dot<2>, dot<3>, dot<4>, dot<5>, dot<6>, dot<7>, dot<8>};
    for (int64_t j = 0; j < n; ++j)
      for (int64_t i = 0; i < m; i += 8) kDot[(m - i < 8 ? m - i : 8) - 1](w + j * row_bytes, width, x + i, y + i, j);
  }

  static void unpack(const uint8_t* w, int64_t width, float* out) {
    for (int64_t start = 0; start < width; start += kSuper)
      unpack_super<F>(w + start / F::kBlock * F::kBytes,
                      static_cast<int>(width - start < kSuper ? width - start : kSuper), out + start);
  }
};

}  // namespace trigraph::TRIGRAPH_ISA
