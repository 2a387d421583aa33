// int8 products by int8 matrix products (i8mm): one instruction multiplies eight codes of two weight rows with those of
// two activation rows, into a tile [w0 x0, w0 x1, w1 x0, w1 x1]. Weight rows are unpacked to a panel in the first
// cache, which then meets all pairs of activation rows.
#pragma once

#include "../../../scratch.h"
#include "../common/int8_products.h"
#include "../common/lanes.h"

namespace trigraph::TRIGRAPH_ISA {

TRIGRAPH_INLINE Ints add_tile(Ints sum, Ints weight, Ints x) { return vmmlaq_s32(sum, as8(weight), as8(x)); }
// Lanes a and b of rows 0 and 1, and of rows 2 and 3: as tiles take them.
TRIGRAPH_INLINE void pair_rows(Ints a, Ints b, Ints* out) { out[0] = vzip1q_s32(a, b), out[1] = vzip2q_s32(a, b); }
TRIGRAPH_INLINE void pair_rows(Floats x, Floats* out) { out[0] = vzip1q_f32(x, x), out[1] = vzip2q_f32(x, x); }
// Two numbers, twice.
TRIGRAPH_INLINE Ints twice(const int32_t* p) { return vcombine_s32(vld1_s32(p), vld1_s32(p)); }
TRIGRAPH_INLINE Floats twice(const float* p) { return vcombine_f32(vld1_f32(p), vld1_f32(p)); }

// A super-block of two activation rows for weights of type F.
template <class F>
struct alignas(64) Int8Pair {
  static constexpr int kRuns = kSuper / F::kRun, kDigits = kRuns / 8, kDigitBits = 6;

  Ints code[kSuper / 8];  // eight of either row
  // Sums of runs of either row: with scales eight together as high * 2^kDigitBits + low.
  Ints high[kDigits], low[kDigits];
  int32_t sum[kRuns][2];
  float scale[kSuper / kStep<F>][2];  // of steps

  void join(const Int8Of<F>& a, const Int8Of<F>& b) {
    for (int i = 0; i < kSuper / 16; ++i) {
      const int64x2_t x = load_longs(a.code + 16 * i), y = load_longs(b.code + 16 * i);
      code[2 * i] = vreinterpretq_s32_s64(vzip1q_s64(x, y)), code[2 * i + 1] = vreinterpretq_s32_s64(vzip2q_s64(x, y));
    }
    const int16_t *first = F::kRun == 16 ? a.sum16 : a.sum32, *second = F::kRun == 16 ? b.sum16 : b.sum32;
    if constexpr (kStep<F> == kSuper) {
      for (int i = 0; i < kDigits; ++i) {
        const int16x8_t x = vld1q_s16(first + 8 * i), y = vld1q_s16(second + 8 * i);
        const auto rest = [](int16x8_t sum) { return vmovn_s16(vandq_s16(sum, vdupq_n_s16((1 << kDigitBits) - 1))); };
        high[i] = both_rows(vshrn_n_s16(x, kDigitBits), vshrn_n_s16(y, kDigitBits));
        low[i] = both_rows(rest(x), rest(y));
      }
    } else {
      for (int i = 0; i < kRuns; ++i) sum[i][0] = first[i], sum[i][1] = second[i];
    }
    for (int i = 0; i < kSuper / kStep<F>; ++i) scale[i][0] = a.scale_of(i), scale[i][1] = b.scale_of(i);
  }

 private:
  static int64x2_t load_longs(const int8_t* p) { return vreinterpretq_s64_s8(vld1q_s8(p)); }
  static Ints both_rows(int8x8_t a, int8x8_t b) { return vreinterpretq_s32_s8(vcombine_s8(a, b)); }
};

// A super-block of kRows weight rows.
template <class F>
struct TilePanel {
  static constexpr int kTiles = 4, kRows = 2 * kTiles;
  static constexpr int kRuns = kStep<F> / F::kRun;  // of a step
  static constexpr bool kScaled = kStep<F> == kSuper, kBiased = kBias<F> != 0 && !kSignedCodes<F>;
  static constexpr bool kSums = kScaled && (F::kMin || kBiased);

  Ints code[kSuper / 8][kTiles];
  Ints scale[kRuns][kTiles], second[Int8Pair<F>::kDigits][kTiles];  // `second`: mins of eight runs, or else scales
  Floats d[kSuper / kStep<F>][kTiles], minus_dmin[kSuper / kStep<F>][kTiles];

  // Unpacks rows that lie `stride` bytes apart.
  void unpack(const uint8_t* p, int64_t stride, int blocks) {
    TRIGRAPH_LOOP
    for (int t = 0; t < kTiles; t += 2, p += kRowLanes * stride) {
      TRIGRAPH_LOOP
      for (int b = 0; b < blocks; ++b) {
        unpack_codes(p + b * F::kBytes, stride, b, t);
        if constexpr (kScaled) unpack_scales(p, stride, t);
        TRIGRAPH_UNROLL
        for (int step = 0; step < kSteps<F>; ++step) unpack_halves(p + b * F::kBytes, stride, b, step, t);
      }
    }
  }

  // Adds the products of a step of 32 with N pairs of activation rows to a chain of each.
  template <int N>
  TRIGRAPH_INLINE void add_step(const Int8Pair<F>* x, int step, Floats (*chain)[kTiles]) const {
    Ints S[N][kTiles], T[N][kTiles];
    each<N>([&](int i, int t) TRIGRAPH_INLINE_LAMBDA {
      S[i][t] = start(x[i], step * kRuns);
      T[i][t] = F::kPaired ? start(x[i], step * kRuns + 1) : twice(x[i].sum[step]);
    });
    add_run<N>(x, step * kRuns, S);
    if constexpr (F::kPaired) add_run<N>(x, step * kRuns + 1, T);
    each<N>([&](int i, int t) TRIGRAPH_INLINE_LAMBDA { add_value(x[i], S[i][t], T[i][t], step, t, chain[i] + t); });
  }

  // Adds the products of a step of 256.
  template <int N>
  TRIGRAPH_INLINE void add_super(const Int8Pair<F>* x, Floats (*chain)[kTiles]) const {
    Ints S[N][kTiles];
    each<N>([&](int i, int t) TRIGRAPH_INLINE_LAMBDA { S[i][t] = ints(0); });
    TRIGRAPH_LOOP
    for (int run = 0; run < kRuns; ++run) {
      Ints part[N][kTiles];
      each<N>([&](int i, int t) TRIGRAPH_INLINE_LAMBDA { part[i][t] = ints(0); });
      add_run<N>(x, run, part);
      each<N>([&](int i, int t) TRIGRAPH_INLINE_LAMBDA { S[i][t] = vmlaq_s32(S[i][t], part[i][t], scale[run][t]); });
    }
    each<N>([&](int i, int t) TRIGRAPH_INLINE_LAMBDA {
      Ints T = ints(0);
      if constexpr (kSums) {
        TRIGRAPH_UNROLL
        for (int k = 0; k < kRuns / 8; ++k) T = add_tile(T, second[k][t], x[i].high[k]);
        T = left32(T, Int8Pair<F>::kDigitBits);
        TRIGRAPH_UNROLL
        for (int k = 0; k < kRuns / 8; ++k) T = add_tile(T, second[k][t], x[i].low[k]);
      }
      if constexpr (kBiased) S[i][t] = sub32(S[i][t], left32(T, F::kBits - 1));
      add_value(x[i], S[i][t], T, 0, t, chain[i] + t);
    });
  }

 private:
  TRIGRAPH_INLINE void unpack_codes(const uint8_t* p, int64_t stride, int b, int t) {
    constexpr int kVectors = (kScaled ? F::kRun : 32) / 8;
    Ints(*const codes)[kTiles] = code + b * F::kBlock / 8;
    Lanes<F>::codes(p, stride, [codes, t](int at, const Ints* from) TRIGRAPH_INLINE_LAMBDA {
      TRIGRAPH_UNROLL
      for (int v = 0; v < kVectors; ++v) {
        Ints* to = codes[at * kVectors + v] + t;
        if constexpr (kRowPairs<F>)
          to[0] = from[2 * v], to[1] = from[2 * v + 1];
        else
          pair_rows(from[2 * v], from[2 * v + 1], to);
      }
    });
  }

  TRIGRAPH_INLINE void unpack_scales(const uint8_t* p, int64_t stride, int t) {
    Ints scales[kRuns / 4], mins[kRuns / 4];
    Lanes<F>::scales(p, stride, scales, mins);
    TRIGRAPH_UNROLL
    for (int run = 0; run < kRuns; ++run) {
      const Ints one = scale_of(scales[run / 4], run % 4);
      pair_rows(one, one, scale[run] + t);
    }
    TRIGRAPH_UNROLL
    for (int i = 0; i < kRuns / 8; ++i) {
      const Ints* of = (F::kMin ? mins : scales) + 2 * i;
      pair_rows(of[0], of[1], second[i] + t);
    }
  }

  TRIGRAPH_INLINE void unpack_halves(const uint8_t* p, int64_t stride, int b, int step, int t) {
    const int at = b * kSteps<F> + step;
    Ints bits;
    if constexpr (kSteps<F> == 1)
      bits = Lanes<F>::halves(p, stride);
    else
      bits = Lanes<F>::part_halves(p, stride, step);
    pair_rows(block_scales<F>(bits), d[at] + t);
    if constexpr (F::kMin) pair_rows(vnegq_f32(halves(right32(bits, 16))), minus_dmin[at] + t);
    if constexpr (F::kPaired) pair_rows(block_scales<F>(right32(bits, 16)), minus_dmin[at] + t);
  }

  // What the products of a run of biased codes are added to.
  TRIGRAPH_INLINE static Ints start(const Int8Pair<F>& x, int run) {
    return kBiased ? vmulq_n_s32(twice(x.sum[run]), -kBias<F>) : ints(0);
  }

  template <int N, class Body>
  TRIGRAPH_INLINE static void each(Body&& body) {
    TRIGRAPH_UNROLL
    for (int i = 0; i < N; ++i) {
      TRIGRAPH_UNROLL
      for (int t = 0; t < kTiles; ++t) body(i, t);
    }
  }

  // Adds the products of run `run` of a super-block.
  template <int N>
  TRIGRAPH_INLINE void add_run(const Int8Pair<F>* x, int run, Ints (*sum)[kTiles]) const {
    constexpr int kVectors = F::kRun / 8;
    TRIGRAPH_UNROLL
    for (int v = 0; v < kVectors; ++v)
      each<N>([&](int i, int t) TRIGRAPH_INLINE_LAMBDA {
        sum[i][t] = add_tile(sum[i][t], code[run * kVectors + v][t], x[i].code[run * kVectors + v]);
      });
  }

  // The float operations of a step, by its exact integers.
  TRIGRAPH_INLINE void add_value(const Int8Pair<F>& x, Ints S, Ints T, int step, int t, Floats* chain) const {
    Floats value = mul(d[step][t], to_floats(S));
    if constexpr (kTwoSums<F>) value = fmadd(d[step][t], to_floats(S), mul(minus_dmin[step][t], to_floats(T)));
    *chain = fmadd(twice(x.scale[step]), value, *chain);
  }
};

// kRows weight rows, `count` of which exist, with pairs of activation rows [super-blocks, pairs].
template <class F>
struct TileProduct {
  using Panel = TilePanel<F>;
  static constexpr int kAtOnce = 2;  // pairs
  static constexpr int kRows = Panel::kRows, kTiles = Panel::kTiles;

  const Int8Pair<F>* x;
  int64_t pairs;
  Floats chain[kChains][kGroup / 2][kTiles];
  Panel panel;

  TileProduct(const Int8Pair<F>* x, int64_t pairs) : x(x), pairs(pairs) {}

  void run(const uint8_t* w, int64_t count, int64_t row_bytes, int64_t width) {
    for (auto& c : chain)
      for (int64_t i = 0; i < pairs; ++i)
        for (Floats& tile : c[i]) tile = floats(0);
    const uint8_t* next = w + kRows * row_bytes;
    for (int64_t s = 0; s < supers(width); ++s, w += super_bytes<F>, next += kRows * super_bytes<F>) {
      const int64_t left = width / F::kBlock - s * kBlocks<F>;
      const int blocks = static_cast<int>(left < kBlocks<F> ? left : kBlocks<F>);
      if (count == kRows) {
        panel.unpack(w, row_bytes, blocks);
      } else {
        alignas(64) uint8_t copy[kRows * super_bytes<F>] = {};
        for (int64_t r = 0; r < count; ++r)
          std::memcpy(copy + r * super_bytes<F>, w + r * row_bytes, static_cast<size_t>(blocks * F::kBytes));
        panel.unpack(copy, super_bytes<F>, blocks);
      }
      multiply(s, blocks, next);
    }
  }

  void results(float* const* y, int64_t m, int64_t j, int64_t count) const {
    for (int64_t i = 0; i < pairs; ++i) {
      Floats total[kTiles];
      for (int t = 0; t < kTiles; ++t) {
        const auto sum = [&](int k, int l) { return add(chain[k][i][t], chain[l][i][t]); };
        total[t] = add(add(sum(0, 4), sum(2, 6)), add(sum(1, 5), sum(3, 7)));
      }
      for (int64_t row = 2 * i; row < m && row < 2 * i + 2; ++row) {
        float lanes[kRows];
        for (int t = 0; t < kTiles; t += 2)
          store(lanes + 2 * t, row % 2 ? vuzp2q_f32(total[t], total[t + 1]) : vuzp1q_f32(total[t], total[t + 1]));
        std::memcpy(y[row] + j, lanes, static_cast<size_t>(count) * sizeof(float));
      }
    }
  }

 private:
  // Meanwhile memory is asked for the rows that come next, a share at a time, in the order in which they lie there.
  void multiply(int64_t super, int blocks, const uint8_t* next) {
    const int64_t share = ceil_div(kRows * super_bytes<F>, ceil_div(pairs, kAtOnce));
    for (int64_t i = 0; i < pairs; i += kAtOnce, next += share) {
      for (int64_t at = 0; at < share; at += 64) __builtin_prefetch(next + at, 0, 2);
      if (pairs - i == 1)
        multiply<1>(super, blocks, i);
      else
        multiply<kAtOnce>(super, blocks, i);
    }
  }

  template <int N>
  TRIGRAPH_INLINE void multiply(int64_t super, int blocks, int64_t i) {
    const Int8Pair<F>* from = x + super * pairs + i;
    if constexpr (Panel::kScaled) {
      panel.template add_super<N>(from, chain[super % kChains] + i);
    } else {
      TRIGRAPH_LOOP
      for (int step = 0; step < blocks * kSteps<F>; ++step) panel.template add_step<N>(from, step, chain[step] + i);
    }
  }
};

struct ActivationPairs;

// Two activation rows or more, up to kGroup; the last one of an odd number makes a pair with itself.
template <class F>
void int8_tiles(const uint8_t* w, int64_t n, int64_t row_bytes, int64_t width, const void* const* x, int64_t m,
                float* const* y) {
  const int64_t pairs = ceil_div(m, 2), total = supers(width);
  auto* pair =
      static_cast<Int8Pair<F>*>(scratch<ActivationPairs>(static_cast<size_t>(pairs * total) * sizeof(Int8Pair<F>)));
  for (int64_t s = 0; s < total; ++s)
    for (int64_t i = 0; i < m; i += 2)
      pair[s * pairs + i / 2].join(static_cast<const Int8Of<F>*>(x[i])[s],
                                   static_cast<const Int8Of<F>*>(x[i + 1 < m ? i + 1 : i])[s]);
  TileProduct<F> product(pair, pairs);
  for (int64_t i = 0; i < (n < product.kRows ? n : product.kRows) * row_bytes; i += 64) prefetch(w + i);
  for (int64_t j = 0; j < n; j += product.kRows) {
    const int64_t count = n - j < product.kRows ? n - j : product.kRows;
    product.run(w + j * row_bytes, count, row_bytes, width);
    product.results(y, m, j, count);
  }
}

}  // namespace trigraph::TRIGRAPH_ISA
