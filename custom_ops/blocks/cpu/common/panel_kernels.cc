// The products of panels: each shape's, and how the weights of its types become panels.
#include "../row_kernel.h"
#if defined(TRIGRAPH_ISA_avx2) || defined(TRIGRAPH_ISA_avx512)
#include <algorithm>

#include "block_lanes.h"
#include "grid_lanes.h"
#include "k_lanes.h"
#include "level_lanes.h"
#include "panel.h"
#include "panels.h"
#include "ternary_lanes.h"

namespace trigraph::TRIGRAPH_ISA {
namespace {

// n weight rows of a type of some shape, and how they become panels.
template <class S>
struct PanelWeights {
  static constexpr int kRows = Panel<S>::kRows;

  const uint8_t* w;
  int64_t n, row_bytes, width;
  int64_t block, block_bytes;  // elements and bytes of a block
  bool interleaved;
  void (*unpack)(const uint8_t* p, int64_t stride, Panel<S>* panel);

  int64_t bytes() const { return kSuper / block * block_bytes; }  // of a super-block
  // Elements of super-block s.
  int64_t elements(int64_t s) const { return width - s * kSuper < kSuper ? width - s * kSuper : kSuper; }

  // Super-block s of the rows from j on; what is not there is zero.
  void load(int64_t j, int64_t s, Panel<S>* panel) const {
    const uint8_t* p = w + j * row_bytes + s * bytes() * (interleaved ? kRowLanes : 1);
    const int64_t count = n - j < kRows ? n - j : kRows;
    if (count == kRows && elements(s) == kSuper) return unpack(p, row_bytes, panel);
    constexpr int64_t kMostBytes = 8 * 34;
    alignas(64) uint8_t copy[kRows * kMostBytes] = {};
    if (interleaved)
      std::memcpy(copy, p, static_cast<size_t>(kRowLanes * bytes()));  // whole groups
    else
      for (int64_t r = 0; r < count; ++r)
        std::memcpy(copy + r * bytes(), p + r * row_bytes, static_cast<size_t>(elements(s) / block * block_bytes));
    unpack(copy, bytes(), panel);
  }
};

// The products of a shape's weights with up to kGroup activation rows.
template <class S>
class PanelProduct {
 public:
  PanelProduct(const PanelWeights<S>& weights, const void* const* x, int64_t m) : weights_(weights), x_(x), m_(m) {}

  void run(float* const* y) {
    const PanelWeights<S>& all = weights_;
    for (int64_t i = 0; i < (all.n < kRows ? all.n : kRows) * all.row_bytes; i += 64) prefetch(all.w + i);
    for (int64_t j = 0; j < all.n; j += kRows) {
      for (auto& c : chain_)
        for (int64_t i = 0; i < m_; ++i)
          for (Floats& group : c[i]) group = floats(0);
      const uint8_t* next = all.w + (j + kRows) * all.row_bytes;
      for (int64_t s = 0; s < supers(all.width); ++s, next += kRows * all.bytes()) {
        all.load(j, s, &panel_);
        multiply(s, next);
      }
      results(y, j, all.n - j < kRows ? all.n - j : kRows);
    }
  }

 private:
  static constexpr int kAtOnce = 4;  // activation rows
  static constexpr int kRows = Panel<S>::kRows, kGroups = Panel<S>::kGroups;

  void results(float* const* y, int64_t j, int64_t count) const {
    for (int64_t i = 0; i < m_; ++i) {
      float lanes[kRows];
      float* out = count == kRows ? y[i] + j : lanes;
      for (int g = 0; g < kGroups; ++g) {
        const auto sum = [&](int k, int l) { return add(chain_[k][i][g], chain_[l][i][g]); };
        const auto both = [&](int k) { return add(sum(k, k + 4), sum(k + 2, k + 6)); };
        store(out + g * kRowLanes, add(both(0), both(1)));
      }
      if (count < kRows) std::memcpy(y[i] + j, lanes, static_cast<size_t>(count) * sizeof(float));
    }
  }

  // Meanwhile memory is asked for the rows that come next, a share at a time, in the order in which they lie there.
  void multiply(int64_t super, const uint8_t* next) {
    const int64_t share = ceil_div(kRows * weights_.bytes(), ceil_div(m_, kAtOnce));
    for (int64_t i = 0; i < m_; i += kAtOnce, next += share) {
      for (int64_t at = 0; at < share; at += 64) __builtin_prefetch(next + at, 0, 2);
      fetch_rows(super, i + kAtOnce);
      switch (m_ - i) {
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

  // The activation rows from i on; after the last one come the first ones of the next super-block.
  TRIGRAPH_INLINE void fetch_rows(int64_t super, int64_t i) const {
    if (i >= m_) i = 0, ++super;
    const int64_t last = std::min(i + kAtOnce, m_);
    TRIGRAPH_LOOP
    for (int64_t k = i; k < last; ++k) {
      const auto* part = reinterpret_cast<const char*>(static_cast<const Int8Of<S>*>(x_[k]) + super);
      TRIGRAPH_UNROLL
      for (size_t at = 0; at < sizeof(Int8Of<S>); at += 64) prefetch(part + at);
    }
  }

  template <int N>
  TRIGRAPH_INLINE void multiply(int64_t super, int64_t i) {
    const Int8Of<S>* part[N];
    for (int k = 0; k < N; ++k) part[k] = static_cast<const Int8Of<S>*>(x_[i + k]) + super;
    const auto steps = static_cast<int>(weights_.elements(super) / S::kBlock);
    panel_.template multiply<N>(part, steps, chain_ + (Panel<S>::kScaled ? super % kChains : 0), i);
  }

  const PanelWeights<S> weights_;
  const void* const* x_;
  int64_t m_;
  Floats chain_[kChains][kGroup][kGroups];
  Panel<S> panel_;
};

template <class F, class At>
void unpack_panel(const uint8_t* p, int64_t stride, Panel<ShapeOf<F>>* panel) {
  panel->template unpack<F>(At{p}, stride);
}

}  // namespace

template <class F, class At>
void int8_panels(At w, int64_t n, int64_t row_bytes, int64_t width, const void* const* x, int64_t m, float* const* y) {
  constexpr bool kInterleaved = std::is_same_v<At, Interleaved>;
  using S = ShapeOf<F>;
  PanelProduct<S>({first_byte(w), n, row_bytes, width, F::kBlock, F::kBytes, kInterleaved, unpack_panel<F, At>}, x, m)
      .run(y);
}

#define TRIGRAPH_PANELS(F, At) \
  template void int8_panels<F>(At, int64_t, int64_t, int64_t, const void* const*, int64_t, float* const*)
TRIGRAPH_PANELS(Q4_K, const uint8_t*);
TRIGRAPH_PANELS(Q4_K, Interleaved);
TRIGRAPH_PANELS(Q5_K, const uint8_t*);
TRIGRAPH_PANELS(Q5_K, Interleaved);
TRIGRAPH_PANELS(Q6_K, const uint8_t*);
TRIGRAPH_PANELS(Q6_K, Interleaved);
TRIGRAPH_PANELS(Levels<IQ3_XXS>, Interleaved);
TRIGRAPH_PANELS(Levels<IQ3_S>, Interleaved);
TRIGRAPH_PANELS(Levels<IQ2_XXS>, Interleaved);
TRIGRAPH_PANELS(Levels<IQ2_XS>, Interleaved);
TRIGRAPH_PANELS(Levels<IQ2_S>, Interleaved);
#if defined(TRIGRAPH_ISA_avx512)
TRIGRAPH_PANELS(Q8_0, const uint8_t*);
TRIGRAPH_PANELS(Q4_0, const uint8_t*);
#endif
#if defined(TRIGRAPH_ISA_avx512) || defined(__AVXVNNI__)
TRIGRAPH_PANELS(IQ4_XS, const uint8_t*);
#endif
TRIGRAPH_PANELS(Q4_1, const uint8_t*);
TRIGRAPH_PANELS(Q5_0, const uint8_t*);
TRIGRAPH_PANELS(Q5_1, const uint8_t*);
TRIGRAPH_PANELS(IQ4_NL, const uint8_t*);
TRIGRAPH_PANELS(MXFP4, const uint8_t*);
TRIGRAPH_PANELS(NVFP4, const uint8_t*);
TRIGRAPH_PANELS(Q1_0, const uint8_t*);
TRIGRAPH_PANELS(Q2_K, const uint8_t*);
TRIGRAPH_PANELS(Q3_K, const uint8_t*);
TRIGRAPH_PANELS(IQ3_S, const uint8_t*);
TRIGRAPH_PANELS(IQ3_XXS, const uint8_t*);
TRIGRAPH_PANELS(IQ2_S, const uint8_t*);
TRIGRAPH_PANELS(IQ2_XS, const uint8_t*);
TRIGRAPH_PANELS(IQ2_XXS, const uint8_t*);
TRIGRAPH_PANELS(IQ1_M, const uint8_t*);
TRIGRAPH_PANELS(IQ1_S, const uint8_t*);
TRIGRAPH_PANELS(TQ2_0, const uint8_t*);
TRIGRAPH_PANELS(TQ1_0, const uint8_t*);

}  // namespace trigraph::TRIGRAPH_ISA
#endif
