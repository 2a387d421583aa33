// int8 products of weight rows side by side: kRowLanes at a time meet all activation rows, and nothing is ever added up
// across lanes.
#pragma once

#include "block_lanes.h"
#include "grid_lanes.h"
#include "int8_products.h"
#include "k_lanes.h"
#include "ternary_lanes.h"

namespace trigraph::TRIGRAPH_ISA {

// kRowLanes weight rows from w on with M activation rows, or m of them.
template <class F, int M>
struct LaneGroup {
  static constexpr int kMost = M ? M : kGroup, kRuns = F::kBlock / F::kRun;
  static constexpr bool kScaled = F::kBlock == kSuper, kBiased = kBias<F> != 0 && !kSignedCodes<F> && !kCentred<F>;

  const void* const* x;
  int m;
  Floats chain[kChains][kMost];

  LaneGroup(const void* const* x, int64_t m) : x(x), m(static_cast<int>(m)) {
    for (auto& c : chain) each_row([&c](int i) { c[i] = floats(0); });
  }
  // body(i) for each activation row.
  template <class Body>
  TRIGRAPH_INLINE void each_row(Body&& body) const {
    if constexpr (M > 0) {
      TRIGRAPH_UNROLL
      for (int i = 0; i < M; ++i) body(i);
    } else {
      for (int i = 0; i < m; ++i) body(i);
    }
  }
  TRIGRAPH_INLINE const Int8Of<F>& part(int i, int64_t super) const {
    return static_cast<const Int8Of<F>*>(x[i])[super];
  }

  // The weight rows that come next: fetched meanwhile, a share at a time, in the order in which they lie in memory.
  // Wide rows would not fit the first cache beside the current ones.
  struct Next {
    const uint8_t* data;
    bool wide;
    TRIGRAPH_INLINE void fetch(int step, int steps) const {
      fetch_share<kRowLanes * super_bytes<F>>(data, wide, step, steps);
    }
  };

  // A super-block of a type with scales.
  template <class At>
  TRIGRAPH_INLINE void add_scaled(At p, int64_t stride, int64_t super, const Next& next) {
    Ints scales[kRuns / 4], mins[kRuns / 4], scale[kRuns], pairs[kRuns / 2], sum[kMost];
    Lanes<F>::scales(p, stride, scales, mins);
    TRIGRAPH_UNROLL
    for (int run = 0; run < kRuns; ++run) scale[run] = scale_of(scales[run / 4], run % 4);
    if constexpr (F::kMin || kBiased) {
      TRIGRAPH_UNROLL
      for (int k = 0; k < kRuns / 2; ++k) pairs[k] = pair_of(F::kMin ? mins[k / 2] : scales[k / 2], k % 2);
    }
    each_row([&](int i) TRIGRAPH_INLINE_LAMBDA { sum[i] = ints(0); });
    int step = 0;
    Lanes<F>::codes(p, stride, [&](int run, const Ints* code) TRIGRAPH_INLINE_LAMBDA {
      next.fetch(step++, kRuns);
      each_row([&](int i) TRIGRAPH_INLINE_LAMBDA {
        sum[i] = add_dot<F, F::kRun / 4>(sum[i], code, part(i, super), run * F::kRun, scale[run]);
      });
    });
    const Ints bits = Lanes<F>::halves(p, stride);
    const Floats d = block_scales<F>(bits), dmin = halves(right32(bits, 16));
    each_row([&](int i) TRIGRAPH_INLINE_LAMBDA {
      const Int8Of<F>& a = part(i, super);
      const int16_t* sums = F::kRun == 16 ? a.sum16 : a.sum32;
      Ints second = ints(0);
      if constexpr (F::kMin || kBiased) {
        TRIGRAPH_UNROLL
        for (int k = 0; k < kRuns / 2; ++k) second = add_pairs(second, pairs[k], broadcast(sums + 2 * k));
      }
      if constexpr (kBiased) sum[i] = sub32(sum[i], left32(second, F::kBits - 1));
      Floats value = mul(d, to_floats(sum[i]));
      if constexpr (F::kMin) value = fmsub(d, to_floats(sum[i]), mul(dmin, to_floats(second)));
      Floats& c = chain[super % kChains][i];
      c = fmadd(floats(a.scale), value, c);
    });
  }

  // A super-block of `blocks` smaller blocks, whose steps have halves of their own.
  TRIGRAPH_INLINE void add_blocks(const uint8_t* p, int64_t stride, int64_t super, int blocks, const Next& next) {
    TRIGRAPH_LOOP
    for (int block = 0; block < blocks; ++block) {
      const uint8_t* q = p + block * F::kBytes;
      next.fetch(block, kBlocks<F>);
      Lanes<F>::codes(q, stride, [&](int step, const Ints* code) TRIGRAPH_INLINE_LAMBDA {
        const int b = block * kSteps<F> + step;
        const Ints bits = step_halves(q, stride, step);
        const Floats d = block_scales<F>(bits);
        each_row([&](int i) TRIGRAPH_INLINE_LAMBDA {
          const Int8Of<F>& a = part(i, super);
          Floats& c = chain[b][i];
          c = fmadd(floats(a.scale_of(b)), step_value(d, bits, code, a, b), c);
        });
      });
    }
  }

  TRIGRAPH_INLINE static Ints step_halves(const uint8_t* p, int64_t stride, int step) {
    if constexpr (kSteps<F> == 1)
      return Lanes<F>::halves(p, stride);
    else
      return Lanes<F>::part_halves(p, stride, step);
  }
  // What step b makes of an activation row.
  TRIGRAPH_INLINE static Floats step_value(Floats d, Ints bits, const Ints* code, const Int8Of<F>& a, int b) {
    if constexpr (F::kPaired) {
      const auto dot = [&](int run) TRIGRAPH_INLINE_LAMBDA {
        const Ints bias = ints(kBiased ? -kBias<F> * a.sum16[2 * b + run] : 0);
        return to_floats(add_dot<F, 4>(bias, code + 4 * run, a, 32 * b + 16 * run, shorts(1)));
      };
      return fmadd(d, dot(0), mul(block_scales<F>(right32(bits, 16)), dot(1)));
    }
    Ints sum = ints(0);
    if constexpr (kBiased) sum = add_pairs(sum, broadcast(a.sum16 + 2 * b), shorts(-kBias<F>));
    sum = add_dot<F, 8>(sum, code, a, 32 * b, shorts(1));
    if constexpr (F::kMin) return fmsub(d, to_floats(sum), mul(halves(right32(bits, 16)), to_floats(ints(a.sum32[b]))));
    return mul(d, to_floats(sum));
  }

  void results(float* const* y, int64_t j, int64_t count) const {
    each_row([&](int i) {
      const auto sum = [this, i](int k, int l) { return add(chain[k][i], chain[l][i]); };
      const Floats total = add(add(sum(0, 4), sum(2, 6)), add(sum(1, 5), sum(3, 7)));
      if (count == kRowLanes) {
        store(y[i] + j, total);
      } else {
        float lanes[kRowLanes];
        store(lanes, total);
        std::memcpy(y[i] + j, lanes, static_cast<size_t>(count) * sizeof(float));
      }
    });
  }
};

template <class F, int M>
void int8_lanes(const uint8_t* w, int64_t n, int64_t row_bytes, int64_t width, const void* const* x, int64_t m,
                float* const* y) {
  using Group = LaneGroup<F, M>;
  constexpr int64_t kDistance = 4096;  // bytes between the rows in use and those to ask memory for, or more
  const int64_t ahead = ceil_div(kDistance, kRowLanes * row_bytes) * kRowLanes;
  if (M > 0)  // nothing has fetched the first rows
    for (int64_t i = 0; i < (n < ahead ? n : ahead) * row_bytes; i += 64) prefetch(w + i);
  for (int64_t j = 0; j < n; j += kRowLanes) {
    Group group(x, m);
    const int64_t count = n - j < kRowLanes ? n - j : kRowLanes;
    const int64_t total = supers(width);
    for (int64_t s = 0; s < total; ++s) {
      const uint8_t* p = w + j * row_bytes + s * super_bytes<F>;
      const typename Group::Next next{w + (j + ahead) * row_bytes + s * kRowLanes * super_bytes<F>,
                                      kRowLanes * row_bytes > 24 << 10};
      const int64_t left = width / F::kBlock - s * kBlocks<F>;
      const int blocks = static_cast<int>(left < kBlocks<F> ? left : kBlocks<F>);
      int64_t stride = row_bytes;
      alignas(64) uint8_t copy[kRowLanes * super_bytes<F>];
      if (count < kRowLanes || (Group::kScaled && blocks < kBlocks<F>)) {  // what is not there is zero
        std::memset(copy, 0, sizeof copy);
        for (int64_t r = 0; r < count; ++r)
          std::memcpy(copy + r * super_bytes<F>, p + r * row_bytes, static_cast<size_t>(blocks * F::kBytes));
        p = copy, stride = super_bytes<F>;
      }
      if constexpr (Group::kScaled)
        group.add_scaled(p, stride, s, next);
      else
        group.add_blocks(p, stride, s, blocks, next);
    }
    group.results(y, j, count);
  }
}

}  // namespace trigraph::TRIGRAPH_ISA
