// Products of weight rows with float32 activations. The definition, which every instruction set and CUDA equal to the
// bit: weights are unpacked to float32; element e of a row belongs to lane e mod 16, and rows are padded with zeros to
// a multiple of 256 elements. Each 128 elements make a chain of eight vectors,
//
//   chain = w0 * x0, then fma(w1, x1, chain) .. fma(w7, x7, chain);   sum = chain + sum, in order, from +0;
//
// and the product is reduce_add(sum).
#pragma once

#include "activations.h"

namespace trigraph::TRIGRAPH_ISA {

constexpr int kChainVectors = 8;

// A super-block of weights of a plain type, or unpacked to F32. Registers convert it on their way.
template <class F>
struct PlainBlock {
  const uint8_t* weight;
  TRIGRAPH_INLINE Part part(int at) const {
    const uint8_t* p = weight + at * F::kBytes;
    if constexpr (std::is_same_v<F, F32>) return load_part(reinterpret_cast<const float*>(p));
    if constexpr (std::is_same_v<F, F16>) return load_f16_part(reinterpret_cast<const uint16_t*>(p));
    if constexpr (std::is_same_v<F, BF16>) return load_bf16_part(reinterpret_cast<const uint16_t*>(p));
  }
};

// Adds a super-block's products with M activation rows to their sums. A register's lanes are done at a time.
template <class F, int M>
void add_super(const PlainBlock<F>& block, const void* const* x, int64_t super, vf* sum) {
  const float* row[M];
  TRIGRAPH_UNROLL
  for (int i = 0; i < M; ++i) row[i] = static_cast<const FloatSuper*>(x[i])[super].value;
  for (int p = 0; p < kParts; ++p) {
    Part total[M];
    TRIGRAPH_UNROLL
    for (int i = 0; i < M; ++i) total[i] = sum[i].part[p];
    for (int at = p * kPartLanes; at < kSuper; at += kChainVectors * VL) {
      Part chain[M];
      const Part first = block.part(at);
      TRIGRAPH_UNROLL
      for (int i = 0; i < M; ++i) chain[i] = mul(first, load_part(row[i] + at));
      TRIGRAPH_UNROLL
      for (int v = 1; v < kChainVectors; ++v) {
        const Part next = block.part(at + v * VL);
        TRIGRAPH_UNROLL
        for (int i = 0; i < M; ++i) chain[i] = fmadd(next, load_part(row[i] + at + v * VL), chain[i]);
      }
      TRIGRAPH_UNROLL
      for (int i = 0; i < M; ++i) total[i] = add(chain[i], total[i]);
    }
    TRIGRAPH_UNROLL
    for (int i = 0; i < M; ++i) sum[i].part[p] = total[i];
  }
}

// Weight rows of a plain type F, or of blocks that `unpack` turns into F32.
template <class F>
struct FloatProduct {
  static constexpr int kRows = 8;                    // activation rows that a vector of weights meets in registers
  static constexpr int kLine = 16, kGroup = 64;      // weight rows and activation rows of a tile
  static constexpr int64_t kCachedBytes = 24 << 10;  // of activations that stay in the first cache

  const uint8_t* w;
  int64_t row_bytes, width;
  int64_t bytes;                                                // of a super-block
  void (*unpack)(const uint8_t* p, int64_t count, float* out);  // nullptr: weights are plain

  struct Sums {
    vf sum[kLine][kGroup];
    alignas(64) uint8_t data[kSuper * F::kBytes];
  };

  // Super-block s of weight row j; `ahead` bytes on is what will be read later.
  PlainBlock<F> block(int64_t j, int64_t s, int64_t ahead, uint8_t* data) const {
    const uint8_t* p = w + j * row_bytes + s * bytes;
    TRIGRAPH_LOOP
    for (int64_t i = 0; i < bytes; i += 64) prefetch(p + ahead + i);
    const int count = static_cast<int>(width - s * kSuper < kSuper ? width - s * kSuper : kSuper);
    if (!unpack && count == kSuper) return {p};
    if (count < kSuper) std::memset(data, 0, kSuper * F::kBytes);
    if (unpack)
      unpack(p, count, reinterpret_cast<float*>(data));
    else
      std::memcpy(data, p, static_cast<size_t>(count) * F::kBytes);
    return {data};
  }

  // Weight rows [first, last) with up to kGroup activation rows.
  void tile(int64_t first, int64_t last, const void* const* x, int64_t m, float* const* y, Sums* t) const {
    static constexpr decltype(&add_super<F, 1>) kAdd[] = {add_super<F, 1>, add_super<F, 2>, add_super<F, 3>,
                                                          add_super<F, 4>, add_super<F, 5>, add_super<F, 6>,
                                                          add_super<F, 7>, add_super<F, 8>};
    const int64_t ahead = last - first == 1 ? 4096 : (last - first) * row_bytes;
    for (int64_t j = first; j < last; ++j)
      for (int64_t i = 0; i < m; ++i) t->sum[j - first][i] = zero();
    for (int64_t s = 0; s < supers(width); ++s)
      for (int64_t j = first; j < last; ++j) {
        const PlainBlock<F> weight = block(j, s, ahead, t->data);
        for (int64_t i = 0; i < m; i += kRows)
          kAdd[(m - i < kRows ? m - i : kRows) - 1](weight, x + i, s, t->sum[j - first] + i);
      }
    for (int64_t i = 0; i < m; ++i)
      for (int64_t j = first; j < last; ++j) y[i][j] = reduce_add(t->sum[j - first][i]);
  }

  void run(int64_t n, const void* const* x, int64_t m, float* const* y) const {
    auto* sums = static_cast<Sums*>(scratch<Sums>(sizeof(Sums)));
    for (int64_t i = 0; i < m; i += kGroup) {
      const int64_t rows = m - i < kGroup ? m - i : kGroup;
      // Weights are read in their order where the activations stay cached, and else a super-block of several rows.
      const int64_t line = rows * float_bytes(width) <= kCachedBytes ? 1 : kLine;
      for (int64_t j = 0; j < n; j += line) tile(j, j + line < n ? j + line : n, x + i, rows, y + i, sums);
    }
  }
};

// One activation row and a plain type: weight rows one after another, with the sum in registers.
template <class F>
void float_row(const uint8_t* w, int64_t n, int64_t row_bytes, int64_t width, const void* const* x, float* y) {
  constexpr int64_t kAhead = 4096, kBytes = kSuper * F::kBytes;
  for (int64_t j = 0; j < n; ++j, w += row_bytes) {
    vf sum = zero();
    for (int64_t s = 0; s < width / kSuper; ++s) {
      const uint8_t* p = w + s * kBytes;
      TRIGRAPH_LOOP
      for (int64_t i = 0; i < kBytes; i += 64) prefetch(p + kAhead + i);
      add_super<F, 1>(PlainBlock<F>{p}, x, s, &sum);
    }
    y[j] = reduce_add(sum);
  }
}

template <class F>
void float_product(const uint8_t* w, int64_t n, int64_t row_bytes, int64_t width, const void* const* x, int64_t m,
                   float* const* y) {
  if constexpr (F::kBlock == 1) {
    if (m == 1 && width % kSuper == 0) return float_row<F>(w, n, row_bytes, width, x, y[0]);
    FloatProduct<F>{w, row_bytes, width, kSuper * F::kBytes, nullptr}.run(n, x, m, y);
  } else {
    FloatProduct<F32>{w, row_bytes, width, super_bytes<F>, unpack<F>}.run(n, x, m, y);
  }
}

}  // namespace trigraph::TRIGRAPH_ISA
