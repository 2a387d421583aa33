// A super-block of groups of weight rows side by side, unpacked to a panel in the first cache, which meets a few
// activation rows at a time: AVX2 and AVX-512. A broadcast of activations serves all groups, and a load of codes
// several activation rows. Products know the shape of a type alone, so that types share them.
#pragma once

#include "int8_products.h"
#include "interleaved.h"
#include "lanes.h"

namespace trigraph::TRIGRAPH_ISA {

// What products need to know of a type; stands for it where lanes.h asks about codes.
template <int kStepElements, int kRunElements, int kCodeBits, bool kWithMin, bool kWithPairs>
struct Shape {
  static constexpr int kBlock = kStepElements, kRun = kRunElements, kBits = kCodeBits;
  static constexpr bool kMin = kWithMin, kPaired = kWithPairs;
};
template <class F>
using ShapeOf = Shape<kStep<F>, F::kRun, kShapeBits<F>, F::kMin, F::kPaired>;

// A super-block of kRows weight rows.
template <class S>
struct Panel {
  static constexpr int kGroups = kPanelGroups, kRows = kGroups * kRowLanes;
  static constexpr int kRuns = kSuper / S::kRun, kVectors = S::kRun / 4, kStepCount = kSuper / S::kBlock;
  static constexpr bool kScaled = S::kBlock == kSuper;  // runs have scales
  static constexpr bool kBiased = !S::kMin && !kSignedCodes<S> && !kCentred<S>, kSums = S::kMin || kBiased;

  Ints code[kGroups][kSuper / 4];
  Ints scale[kGroups][kRuns], pairs[kGroups][kRuns / 2];     // kScaled: of mins, or of scales times the bias of codes
  Ints bias;                                                 // else: minus that of codes, twice in a lane
  Floats d[kGroups][kStepCount], less[kGroups][kStepCount];  // dmin, or with kPaired the scale of a step's second run

  // The rows from p on, `stride` bytes apart.
  template <class F, class At>
  void unpack(At p, int64_t stride) {
    bias = shorts(-kBias<F>);
    TRIGRAPH_LOOP
    for (int g = 0; g < kGroups; ++g, p = next_rows(p, stride)) {
      if constexpr (kScaled)
        unpack_scaled<F>(p, stride, g);
      else
        unpack_blocks<F>(p, stride, g);
    }
  }

  // Adds the products of the first `steps` steps with N activation rows to their chains, of which `chain` is the first
  // one's and kGroup the distance.
  template <int N>
  TRIGRAPH_INLINE void multiply(const Int8Of<S>* const* x, int steps, Floats (*chain)[kGroup][kGroups],
                                int64_t row) const {
    TRIGRAPH_LOOP
    for (int step = 0; step < (kScaled ? 1 : steps); ++step) {
      Floats value[N][kGroups];
      if constexpr (kScaled)
        scaled_values<N>(x, value);
      else
        block_values<N>(x, step, value);
      each<N>([&](int i, int g) TRIGRAPH_INLINE_LAMBDA {
        Floats& c = chain[step][row + i][g];
        c = fmadd(floats(x[i]->scale_of(step)), value[i][g], c);
      });
    }
  }

  // What step `step` makes of N activation rows, but for their scale.
  template <int N>
  TRIGRAPH_INLINE void block_values(const Int8Of<S>* const* x, int step, Floats (*value)[kGroups]) const {
    Ints sum[N][kGroups];
    const auto dots = [&](int run, int sums) TRIGRAPH_INLINE_LAMBDA {  // `sums`: which sum16 the run begins with
      each<N>([&](int i, int g) TRIGRAPH_INLINE_LAMBDA {
        sum[i][g] = ints(0);
        if constexpr (kBiased && S::kPaired) sum[i][g] = add_pairs(sum[i][g], ints(x[i]->sum16[sums] & 0xffff), bias);
        if constexpr (kBiased && !S::kPaired) sum[i][g] = add_pairs(sum[i][g], broadcast(x[i]->sum16 + sums), bias);
      });
      add_run<N>(run, x, sum);
    };
    if constexpr (S::kPaired) {
      dots(2 * step + 1, 2 * step + 1);
      each<N>([&](int i, int g) TRIGRAPH_INLINE_LAMBDA { value[i][g] = mul(less[g][step], to_floats(sum[i][g])); });
      dots(2 * step, 2 * step);
      each<N>([&](int i, int g)
                  TRIGRAPH_INLINE_LAMBDA { value[i][g] = fmadd(d[g][step], to_floats(sum[i][g]), value[i][g]); });
    } else {
      dots(step, 2 * step);
      each<N>([&](int i, int g) TRIGRAPH_INLINE_LAMBDA {
        const Floats first = to_floats(sum[i][g]);
        if constexpr (S::kMin)
          value[i][g] = fmsub(d[g][step], first, mul(less[g][step], to_floats(ints(x[i]->sum32[step]))));
        else
          value[i][g] = mul(d[g][step], first);
      });
    }
  }

 private:
  template <class F, class At>
  TRIGRAPH_INLINE void unpack_scaled(At p, int64_t stride, int g) {
    Ints scales[kRuns / 4], mins[kRuns / 4];
    Lanes<F>::scales(p, stride, scales, mins);
    TRIGRAPH_UNROLL
    for (int run = 0; run < kRuns; ++run) scale[g][run] = scale_of(scales[run / 4], run % 4);
    if constexpr (kSums) {
      TRIGRAPH_UNROLL
      for (int k = 0; k < kRuns / 2; ++k)
        pairs[g][k] = F::kMin ? pair_of(mins[k / 2], k % 2) : left16(pair_of(scales[k / 2], k % 2), F::kBits - 1);
    }
    if constexpr (std::is_base_of_v<DecodedLanes<F>, Lanes<F>>)
      Lanes<F>::decode(p, stride, code[g]);
    else
      Lanes<F>::codes(p, stride, [this, g](int run, const Ints* from) TRIGRAPH_INLINE_LAMBDA {
        TRIGRAPH_UNROLL
        for (int v = 0; v < kVectors; ++v) code[g][run * kVectors + v] = from[v];
      });
    const Ints bits = Lanes<F>::halves(p, stride);
    d[g][0] = block_scales<F>(bits), less[g][0] = halves(right32(bits, 16));
  }

  template <class F>
  TRIGRAPH_INLINE void unpack_blocks(const uint8_t* p, int64_t stride, int g) {
    TRIGRAPH_LOOP
    for (int block = 0; block < kBlocks<F>; ++block, p += F::kBytes)
      Lanes<F>::codes(p, stride, [&](int part, const Ints* from) TRIGRAPH_INLINE_LAMBDA {
        const int step = block * kSteps<F> + part;
        TRIGRAPH_UNROLL
        for (int v = 0; v < 8; ++v) code[g][8 * step + v] = from[v];
        Ints bits;
        if constexpr (kSteps<F> == 1)
          bits = Lanes<F>::halves(p, stride);
        else
          bits = Lanes<F>::part_halves(p, stride, part);
        d[g][step] = block_scales<F>(bits);
        const Ints second = right32(bits, 16);
        less[g][step] = F::kPaired ? block_scales<F>(second) : halves(second);
      });
  }

  template <int N, class Body>
  TRIGRAPH_INLINE static void each(Body&& body) {
    TRIGRAPH_UNROLL
    for (int i = 0; i < N; ++i) {
      TRIGRAPH_UNROLL
      for (int g = 0; g < kGroups; ++g) body(i, g);
    }
  }

  template <int N>
  TRIGRAPH_INLINE void scaled_values(const Int8Of<S>* const* x, Floats (*value)[kGroups]) const {
    Floats second[N][kGroups];
    Ints sum[N][kGroups];
    if constexpr (kSums) add_sums<N>(x, sum);
    each<N>([&](int i, int g) TRIGRAPH_INLINE_LAMBDA {
      if constexpr (S::kMin) second[i][g] = mul(less[g][0], to_floats(sum[i][g]));
      sum[i][g] = kBiased ? sub32(ints(0), sum[i][g]) : ints(0);
    });
    TRIGRAPH_LOOP
    for (int run = 0; run < kRuns; ++run) add_run<N>(run, x, sum);
    each<N>([&](int i, int g) TRIGRAPH_INLINE_LAMBDA {
      const Floats first = to_floats(sum[i][g]);
      value[i][g] = S::kMin ? fmsub(d[g][0], first, second[i][g]) : mul(d[g][0], first);
    });
  }

  // What mins make of the sums of activations, or what scales do.
  template <int N>
  TRIGRAPH_INLINE void add_sums(const Int8Of<S>* const* x, Ints (*sum)[kGroups]) const {
    each<N>([&](int i, int g) TRIGRAPH_INLINE_LAMBDA { sum[i][g] = ints(0); });
    TRIGRAPH_UNROLL
    for (int k = 0; k < kRuns / 2; ++k) {
      TRIGRAPH_UNROLL
      for (int i = 0; i < N; ++i) {
        const Ints a = broadcast((S::kRun == 16 ? x[i]->sum16 : x[i]->sum32) + 2 * k);
        TRIGRAPH_UNROLL
        for (int g = 0; g < kGroups; ++g) {
          sum[i][g] = add_pairs(sum[i][g], pairs[g][k], a);
          keep_order(&sum[i][g]);
        }
      }
    }
  }

  template <int N>
  TRIGRAPH_INLINE void add_run(int run, const Int8Of<S>* const* x, Ints (*sum)[kGroups]) const {
    constexpr int kAtOnce = kTogether<S, kVectors>;
    TRIGRAPH_UNROLL
    for (int start = 0; start < kVectors; start += kAtOnce) {
      Ints part[N][kGroups];
      TRIGRAPH_UNROLL
      for (int v = start; v < start + kAtOnce; ++v) {
        TRIGRAPH_UNROLL
        for (int i = 0; i < N; ++i) {
          const Ints a = broadcast(x[i]->code + run * S::kRun + 4 * v);
          TRIGRAPH_UNROLL
          for (int g = 0; g < kGroups; ++g) {
            const Ints codes = code[g][run * kVectors + v];
            part[i][g] = v == start ? first_dots<S>(codes, a, *x[i], run * S::kRun + 4 * start)
                                    : add_dots<S>(part[i][g], codes, a);
          }
        }
      }
      each<N>([&](int i, int g) TRIGRAPH_INLINE_LAMBDA {
        if constexpr (kScaled)
          sum[i][g] = add_scaled_dots(sum[i][g], part[i][g], scale[g][run]);
        else
          sum[i][g] = add_dots_once(sum[i][g], part[i][g]);
      });
    }
  }
};

}  // namespace trigraph::TRIGRAPH_ISA
