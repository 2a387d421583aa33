// Products of weight rows with float32 activations. The definition, which every instruction set and CUDA equal to the
// bit: weights are unpacked to float32; element e of a row belongs to lane e mod 16, and rows are padded with zeros to
// a multiple of 128 elements. Each 128 elements make a chain of eight vectors,
//
//   chain = w0 * x0, then fma(w1, x1, chain) .. fma(w7, x7, chain);   sum = chain + sum, in order, from +0;
//
// and the product is reduce_add(sum).
#pragma once

#include "activations.h"

namespace trigraph::TRIGRAPH_ISA {

constexpr int kChainVectors = 8, kChain = kChainVectors * VL;
// Weight rows of a tile in registers: with three activation rows it fills sixteen of them, or most of thirty-two.
constexpr int kColumns = kParts == 2 ? 4 : 8;

// A register of weights of a plain type.
template <class F>
TRIGRAPH_INLINE Part weight_part(const uint8_t* p) {
  if constexpr (std::is_same_v<F, F32>) return load_part(reinterpret_cast<const float*>(p));
  if constexpr (std::is_same_v<F, F16>) return load_f16_part(reinterpret_cast<const uint16_t*>(p));
  if constexpr (std::is_same_v<F, BF16>) return load_bf16_part(reinterpret_cast<const uint16_t*>(p));
}

// Adds chains of weights of a plain type, times those of an activation row, to its sum. A register's lanes are done at
// a time.
template <class F>
TRIGRAPH_INLINE void add_chains(const uint8_t* w, const float* x, int chains, vf* sum) {
  TRIGRAPH_UNROLL
  for (int p = 0; p < kParts; ++p)
    for (int c = 0; c < chains; ++c) {
      const int at = c * kChain + p * kPartLanes;
      Part chain = mul(weight_part<F>(w + at * F::kBytes), load_part(x + at));
      TRIGRAPH_UNROLL
      for (int v = 1; v < kChainVectors; ++v)
        chain = fmadd(weight_part<F>(w + (at + v * VL) * F::kBytes), load_part(x + at + v * VL), chain);
      sum->part[p] = add(chain, sum->part[p]);
    }
}

// Adds the products of a tile: M activation rows and kColumns rows of float32 weights, kSuper apart.
template <int M>
void add_tile(const float* w, const float* const* x, int chains, vf (*sum)[kColumns]) {
  for (int p = 0; p < kParts; ++p)
    for (int c = 0; c < chains; ++c) {
      const int start = c * kChain + p * kPartLanes;
      Part chain[M][kColumns];
      TRIGRAPH_UNROLL
      for (int v = 0; v < kChainVectors; ++v) {
        const int at = start + v * VL;
        Part row[M];
        TRIGRAPH_UNROLL
        for (int i = 0; i < M; ++i) row[i] = load_part(x[i] + at);
        TRIGRAPH_UNROLL
        for (int j = 0; j < kColumns; ++j) {
          const Part weight = load_once(w + j * kSuper + at);
          TRIGRAPH_UNROLL
          for (int i = 0; i < M; ++i) chain[i][j] = v ? fmadd(weight, row[i], chain[i][j]) : mul(weight, row[i]);
        }
      }
      TRIGRAPH_UNROLL
      for (int i = 0; i < M; ++i) {
        TRIGRAPH_UNROLL
        for (int j = 0; j < kColumns; ++j) sum[i][j].part[p] = add(chain[i][j], sum[i][j].part[p]);
      }
    }
}

// A weight matrix; `unpack` makes up to kSuper float32 weights of it.
struct FloatWeights {
  const uint8_t* data;
  int64_t row_bytes, width;
  int64_t bytes;  // of a super-block
  void (*unpack)(const uint8_t* p, int64_t count, float* out);

  int64_t elements(int64_t super) const { return width - super * kSuper < kSuper ? width - super * kSuper : kSuper; }
  int chains(int64_t super) const { return static_cast<int>(ceil_div(elements(super), kChain)); }

  // Super-block s of row j, padded to whole chains; `ahead` bytes on is what will be read later.
  void load(int64_t j, int64_t s, int64_t ahead, float* out) const {
    const uint8_t* p = data + j * row_bytes + s * bytes;
    TRIGRAPH_LOOP
    for (int64_t i = 0; i < bytes; i += 64) prefetch(p + ahead + i);
    const int64_t count = elements(s);
    unpack(p, count, out);
    if (count < kSuper) std::memset(out + count, 0, static_cast<size_t>(kSuper - count) * sizeof(float));
  }
};

// Two activation rows or more, up to kGroup: a super-block of kLine weight rows is unpacked once and meets all of them,
// in tiles. Many rows meet kWide weight rows before the next super-block, so that they come from memory less often.
class FloatTiles {
 public:
  static constexpr int64_t kLine = 16, kWide = 64, kGroup = 64, kFewRows = 16;
  struct Memory {
    vf sum[kWide / kColumns][kGroup][kColumns];
    float weight[kLine][kSuper];
  };

  FloatTiles(const FloatWeights& weights, const void* const* x, int64_t m)
      : weights_(weights), x_(x), m_(m), memory_(*static_cast<Memory*>(scratch<Memory>(sizeof(Memory)))) {}

  TRIGRAPH_NOINLINE void run(int64_t n, float* const* y) {
    const int64_t most = m_ > kFewRows ? kWide : kLine;
    if (n % kLine) std::memset(memory_.weight, 0, sizeof memory_.weight);  // rows that fill a tile
    for (int64_t j = 0; j < n; j += most) columns(j, n - j < most ? n - j : most, y);
  }

 private:
  // Weight rows [first, first + count).
  void columns(int64_t first, int64_t count, float* const* y) {
    for (int64_t g = 0; g < ceil_div(count, kColumns); ++g)
      for (int64_t i = 0; i < m_; ++i)
        for (vf& sum : memory_.sum[g][i]) sum = zero();
    for (int64_t s = 0; s < supers(weights_.width); ++s)
      for (int64_t j = 0; j < count; j += kLine)
        line(first + j, s, count - j < kLine ? count - j : kLine, j / kColumns);
    for (int64_t i = 0; i < m_; ++i) {
      float result[kWide];
      for (int64_t j = 0; j < count; j += 4) {
        const vf* sum = memory_.sum[j / kColumns][i] + j % kColumns;
        reduce_add4(sum[0], sum[1], sum[2], sum[3], result + j);
      }
      std::memcpy(y[i] + first, result, static_cast<size_t>(count) * sizeof(float));
    }
  }

  // A super-block of weight rows [first, first + count), whose sums begin with group `group`.
  void line(int64_t first, int64_t super, int64_t count, int64_t group) {
    for (int64_t j = 0; j < count; ++j) weights_.load(first + j, super, kLine * weights_.row_bytes, memory_.weight[j]);
    const int chains = weights_.chains(super);
    for (int64_t i = 0; i < m_;) {
      const int rows = m_ - i == 2 || m_ - i == 4 ? 2 : 3;  // never one alone
      const float* x[3];
      for (int k = 0; k < rows; ++k) x[k] = static_cast<const FloatSuper*>(x_[i + k])[super].value;
      for (int64_t g = 0; g < ceil_div(count, kColumns); ++g)
        (rows == 2 ? add_tile<2> : add_tile<3>)(memory_.weight[g * kColumns], x, chains, memory_.sum[group + g] + i);
      i += rows;
    }
  }

  const FloatWeights weights_;
  const void* const* x_;
  int64_t m_;
  Memory& memory_;
};

// One activation row: weight rows one after another. F: the type of plain weights, which come straight from memory, or
// what others are unpacked to.
template <class F>
void float_row(const FloatWeights& weights, bool plain, int64_t n, const void* x, float* y) {
  constexpr int64_t kAhead = 4096, kBytes = kSuper * F::kBytes;
  alignas(64) float unpacked[kSuper];
  for (int64_t j = 0; j < n; ++j) {
    vf sum = zero();
    for (int64_t s = 0; s < supers(weights.width); ++s) {
      const float* row = static_cast<const FloatSuper*>(x)[s].value;
      if (plain && weights.elements(s) == kSuper) {
        const uint8_t* p = weights.data + j * weights.row_bytes + s * kBytes;
        TRIGRAPH_LOOP
        for (int64_t i = 0; i < kBytes; i += 64) prefetch(p + kAhead + i);
        add_chains<F>(p, row, kSuper / kChain, &sum);
      } else {
        weights.load(j, s, kAhead, unpacked);
        add_chains<F32>(reinterpret_cast<const uint8_t*>(unpacked), row, weights.chains(s), &sum);
      }
    }
    y[j] = reduce_add(sum);
  }
}

template <class F>
void float_product(const uint8_t* w, int64_t n, int64_t row_bytes, int64_t width, const void* const* x, int64_t m,
                   float* const* y) {
  constexpr bool kPlain = F::kBlock == 1;
  const FloatWeights weights{w, row_bytes, width, super_bytes<F>, unpack<F>};
  for (int64_t i = 0; i < m; i += FloatTiles::kGroup) {
    const int64_t rows = m - i < FloatTiles::kGroup ? m - i : FloatTiles::kGroup;
    if (rows == 1)
      float_row<std::conditional_t<kPlain, F, F32>>(weights, kPlain, n, x[i], y[i]);
    else
      FloatTiles(weights, x + i, rows).run(n, y + i);
  }
}

}  // namespace trigraph::TRIGRAPH_ISA
