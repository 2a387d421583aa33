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

// The weights of a super-block: plain types are converted on their way to the registers, blocks are unpacked before.
template <class F>
struct FloatBlock {
  static constexpr bool kPlain = F::kBlock == 1;
  alignas(64) uint8_t data[kSuper * (kPlain ? F::kBytes : 4)];
  const uint8_t* weight;

  FloatBlock(const uint8_t* p, int64_t left) : weight(data) {
    const int count = static_cast<int>(left < kSuper ? left : kSuper);
    if (count < kSuper) std::memset(data, 0, sizeof data);
    if constexpr (!kPlain)
      unpack<F>(p, count, reinterpret_cast<float*>(data));
    else if (count < kSuper)
      std::memcpy(data, p, static_cast<size_t>(count) * F::kBytes);
    else
      weight = p;
  }
  TRIGRAPH_INLINE vf vector(int i) const {
    return load_plain<std::conditional_t<kPlain, F, F32>>(weight + i * VL * (kPlain ? F::kBytes : 4));
  }
};

// Adds a super-block's products with M activation rows to their sums.
template <class F, int M>
TRIGRAPH_INLINE void add_super(const FloatBlock<F>& weight, const void* const* x, int64_t super, vf* sum) {
  const float* row[M];
  TRIGRAPH_UNROLL
  for (int i = 0; i < M; ++i) row[i] = static_cast<const FloatPart*>(x[i])[super].value;
  for (int v = 0; v < kSuper / VL; v += kChainVectors) {
    vf chain[M];
    const vf first = weight.vector(v);
    TRIGRAPH_UNROLL
    for (int i = 0; i < M; ++i) chain[i] = mul(first, load(row[i] + v * VL));
    TRIGRAPH_UNROLL
    for (int k = 1; k < kChainVectors; ++k) {
      const vf next = weight.vector(v + k);
      TRIGRAPH_UNROLL
      for (int i = 0; i < M; ++i) chain[i] = fmadd(next, load(row[i] + (v + k) * VL), chain[i]);
    }
    TRIGRAPH_UNROLL
    for (int i = 0; i < M; ++i) sum[i] = add(chain[i], sum[i]);
  }
}

template <class F>
void float_product(const uint8_t* w, int64_t n, int64_t row_bytes, int64_t width, const void* const* x, int64_t m,
                   float* const* y) {
  constexpr int kGroup = 64;  // activation rows for which a super-block is unpacked once
  for (int64_t first = 0; first < m; first += kGroup)
    for (int64_t j = 0; j < n; ++j) {
      const int64_t last = m - first < kGroup ? m : first + kGroup;
      vf sum[kGroup];
      for (int64_t i = first; i < last; ++i) sum[i - first] = zero();
      for (int64_t s = 0; s < supers(width); ++s) {
        const FloatBlock<F> block(w + j * row_bytes + s * kSuper / F::kBlock * F::kBytes, width - s * kSuper);
        int64_t i = first;
        for (; i + 4 <= last; i += 4) add_super<F, 4>(block, x + i, s, sum + i - first);
        for (; i < last; ++i) add_super<F, 1>(block, x + i, s, sum + i - first);
      }
      for (int64_t i = first; i < last; ++i) y[i][j] = reduce_add(sum[i - first]);
    }
}

}  // namespace trigraph::TRIGRAPH_ISA
