// int8 products of many activation rows: two groups of weight rows side by side are unpacked to a panel in the first
// cache, which then meets a few activation rows at a time. A broadcast of activations serves both groups, and a load of
// codes all those rows.
#pragma once

#include "../common/int8_products.h"
#include "../common/interleaved.h"
#include "../common/lanes.h"

namespace trigraph::TRIGRAPH_ISA {

// A super-block of kRows weight rows of a type with scales.
template <class F>
struct Panel {
  static constexpr int kGroups = 2, kRows = kGroups * kRowLanes, kRuns = F::kBlock / F::kRun, kVectors = F::kRun / 4;
  static constexpr bool kFast = F::kBlock == kSuper && !kSignedCodes<F>;
  static constexpr bool kBiased = kBias<F> != 0 && !kSignedCodes<F> && !kCentred<F>, kSums = F::kMin || kBiased;

  Ints code[kSuper / 4][kGroups];
  Ints scale[kRuns][kGroups], pairs[kRuns / 2][kGroups];  // of mins, or else of scales
  Floats d[kGroups], dmin[kGroups];

  // Of rows that lie `stride` bytes apart.
  template <class At>
  TRIGRAPH_INLINE void unpack(At p, int64_t stride) {
    TRIGRAPH_LOOP
    for (int g = 0; g < kGroups; ++g, p = next_rows(p, stride)) {
      Ints scales[kRuns / 4], mins[kRuns / 4];
      Lanes<F>::scales(p, stride, scales, mins);
      TRIGRAPH_UNROLL
      for (int run = 0; run < kRuns; ++run) scale[run][g] = scale_of(scales[run / 4], run % 4);
      if constexpr (kSums) {
        TRIGRAPH_UNROLL
        for (int k = 0; k < kRuns / 2; ++k) pairs[k][g] = pair_of(F::kMin ? mins[k / 2] : scales[k / 2], k % 2);
      }
      Lanes<F>::codes(p, stride, [this, g](int run, const Ints* from) TRIGRAPH_INLINE_LAMBDA {
        TRIGRAPH_UNROLL
        for (int v = 0; v < kVectors; ++v) code[run * kVectors + v][g] = from[v];
      });
      const Ints bits = Lanes<F>::halves(p, stride);
      d[g] = block_scales<F>(bits), dmin[g] = halves(right32(bits, 16));
    }
  }

  // Adds the products with N activation rows to a chain of each.
  template <int N>
  TRIGRAPH_INLINE void multiply(const Int8Super* const* x, Floats (*chain)[kGroups]) const {
    Floats less[N][kGroups];
    Ints sum[N][kGroups];
    if constexpr (kSums) {
      add_sums<N>(x, sum);
      each<N>([&](int i, int g) TRIGRAPH_INLINE_LAMBDA {
        if constexpr (F::kMin) less[i][g] = mul(dmin[g], to_floats(sum[i][g]));
      });
    }
    each<N>([&](int i, int g) TRIGRAPH_INLINE_LAMBDA {
      sum[i][g] = kBiased ? sub32(ints(0), left32(sum[i][g], F::kBits - 1)) : ints(0);
    });
    TRIGRAPH_LOOP
    for (int run = 0; run < kRuns; ++run) add_run<N>(run, x, sum);
    each<N>([&](int i, int g) TRIGRAPH_INLINE_LAMBDA {
      const Floats first = to_floats(sum[i][g]);
      const Floats value = F::kMin ? fmsub(d[g], first, less[i][g]) : mul(d[g], first);
      chain[i][g] = fmadd(floats(x[i]->scale), value, chain[i][g]);
    });
  }

 private:
  template <int N, class Body>
  TRIGRAPH_INLINE static void each(Body&& body) {
    TRIGRAPH_UNROLL
    for (int i = 0; i < N; ++i) {
      TRIGRAPH_UNROLL
      for (int g = 0; g < kGroups; ++g) body(i, g);
    }
  }

  // What mins make of the sums of activations, or what scales do.
  template <int N>
  TRIGRAPH_INLINE void add_sums(const Int8Super* const* x, Ints (*sum)[kGroups]) const {
    each<N>([&](int i, int g) TRIGRAPH_INLINE_LAMBDA { sum[i][g] = ints(0); });
    TRIGRAPH_UNROLL
    for (int k = 0; k < kRuns / 2; ++k) {
      TRIGRAPH_UNROLL
      for (int i = 0; i < N; ++i) {
        const Ints a = broadcast((F::kRun == 16 ? x[i]->sum16 : x[i]->sum32) + 2 * k);
        TRIGRAPH_UNROLL
        for (int g = 0; g < kGroups; ++g) {
          sum[i][g] = add_pairs(sum[i][g], pairs[k][g], a);
          asm("" : "+x"(sum[i][g]));  // in this order, for the sake of registers
        }
      }
    }
  }

  template <int N>
  TRIGRAPH_INLINE void add_run(int run, const Int8Super* const* x, Ints (*sum)[kGroups]) const {
    constexpr int kStep = kTogether<F, kVectors>;
    TRIGRAPH_UNROLL
    for (int start = 0; start < kVectors; start += kStep) {
      Ints part[N][kGroups];
      TRIGRAPH_UNROLL
      for (int v = start; v < start + kStep; ++v) {
        const Ints* codes = code[run * kVectors + v];
        TRIGRAPH_UNROLL
        for (int i = 0; i < N; ++i) {
          const Ints a = broadcast(x[i]->code + run * F::kRun + 4 * v);
          TRIGRAPH_UNROLL
          for (int g = 0; g < kGroups; ++g)
            part[i][g] =
                v == start ? first_dots<F>(codes[g], a, *x[i], run * F::kRun) : add_dots<F>(part[i][g], codes[g], a);
        }
      }
      each<N>([&](int i, int g)
                  TRIGRAPH_INLINE_LAMBDA { sum[i][g] = add_scaled_dots(sum[i][g], part[i][g], scale[run][g]); });
    }
  }
};

// kRows weight rows, `count` of which exist, with m activation rows.
template <class F>
struct PanelProduct {
  static constexpr int kAtOnce = 4;  // activation rows
  static constexpr int kRows = Panel<F>::kRows, kGroups = Panel<F>::kGroups;

  const void* const* x;
  int64_t m;
  Floats chain[kChains][kGroup][kGroups];
  Panel<F> panel;

  PanelProduct(const void* const* x, int64_t m) : x(x), m(m) {}

  template <class At>
  void run(At w, int64_t count, int64_t row_bytes, int64_t width) {
    for (auto& c : chain)
      for (int64_t i = 0; i < m; ++i)
        for (Floats& group : c[i]) group = floats(0);
    const uint8_t* next = first_byte(w) + kRows * row_bytes;
    for (int64_t s = 0; s < supers(width); ++s, w = w + F::kBytes) {
      if (count == kRows) {
        panel.unpack(w, row_bytes);
      } else {
        alignas(64) uint8_t copy[kRows * F::kBytes] = {};
        panel.unpack(copied(w, count, row_bytes, F::kBytes, copy), F::kBytes);
      }
      multiply(s, next);
    }
  }

  void results(float* const* y, int64_t j, int64_t count) const {
    for (int64_t i = 0; i < m; ++i) {
      float lanes[kRows];
      float* out = count == kRows ? y[i] + j : lanes;
      for (int g = 0; g < kGroups; ++g) {
        const auto sum = [&](int k, int l) { return add(chain[k][i][g], chain[l][i][g]); };
        const auto both = [&](int k) { return add(sum(k, k + 4), sum(k + 2, k + 6)); };
        store(out + g * kRowLanes, add(both(0), both(1)));
      }
      if (count < kRows) std::memcpy(y[i] + j, lanes, static_cast<size_t>(count) * sizeof(float));
    }
  }

 private:
  // Meanwhile memory is asked for the rows that come next, a share at a time, in the order in which they lie there.
  void multiply(int64_t super, const uint8_t* next) {
    constexpr int64_t kBytes = kRows * F::kBytes;
    const int64_t share = ceil_div(kBytes, ceil_div(m, kAtOnce));
    next += super * kBytes;
    for (int64_t i = 0; i < m; i += kAtOnce, next += share) {
      for (int64_t at = 0; at < share; at += 64) __builtin_prefetch(next + at, 0, 2);
      fetch_rows(super, i + kAtOnce);
      switch (m - i) {
        case 1:
          multiply<1>(super, i);
          break;
        case 2:
          multiply<2>(super, i);
          break;
        case 3:
          multiply<3>(super, i);
          break;
        default:
          multiply<kAtOnce>(super, i);
      }
    }
  }

  // The activation rows from i on; after the last one comes the next super-block of the first.
  TRIGRAPH_INLINE void fetch_rows(int64_t super, int64_t i) const {
    TRIGRAPH_LOOP
    for (int64_t k = i; k < i + kAtOnce; ++k) {
      const int64_t over = k >= m;
      const auto* part = reinterpret_cast<const char*>(static_cast<const Int8Super*>(x[k - over * m]) + super + over);
      TRIGRAPH_UNROLL
      for (size_t at = 0; at < sizeof(Int8Super); at += 64) prefetch(part + at);
    }
  }

  template <int N>
  TRIGRAPH_INLINE void multiply(int64_t super, int64_t i) {
    const Int8Super* part[N];
    for (int k = 0; k < N; ++k) part[k] = static_cast<const Int8Super*>(x[i + k]) + super;
    panel.template multiply<N>(part, chain[super % kChains] + i);
  }
};

// Up to kGroup activation rows.
template <class F, class At>
void int8_panels(At w, int64_t n, int64_t row_bytes, int64_t width, const void* const* x, int64_t m, float* const* y) {
  PanelProduct<F> product(x, m);
  for (int64_t i = 0; i < (n < product.kRows ? n : product.kRows) * row_bytes; i += 64) prefetch(first_byte(w) + i);
  for (int64_t j = 0; j < n; j += product.kRows) {
    const int64_t count = n - j < product.kRows ? n - j : product.kRows;
    product.run(w, count, row_bytes, width);
    product.results(y, j, count);
    for (int g = 0; g < product.kGroups; ++g) w = next_rows(w, row_bytes);
  }
}

}  // namespace trigraph::TRIGRAPH_ISA
