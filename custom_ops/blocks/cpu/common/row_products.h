// int8 products of a few activation rows: weight rows one after another, as they lie in memory, whose bandwidth is all
// that bounds it. Eight super-blocks are done at a time, one for each chain.
#pragma once

#include <algorithm>
#include <type_traits>

#if defined(TRIGRAPH_ISA_avx512)
#include "../avx512/grid_rows.h"
#include "../avx512/q8_rows.h"
#else
#include "../avx2/grid_rows.h"
#include "../avx2/q8_rows.h"
#endif

namespace trigraph::TRIGRAPH_ISA {

template <>
struct RowLoop<Q8_0> {
  static constexpr int kMost = 8;
};

// Q8_0 is the only type of smaller blocks with rows of its own.
template <class F, int M>
void block_rows(const uint8_t* w, int64_t n, int64_t row_bytes, int64_t width, const void* const* x, float* const* y) {
  static_assert(std::is_same_v<F, Q8_0>);
  Q8Rows<M>(row_bytes, width, x).product(w, n, y);
}

template <class F, int M>
class RowProduct {
 public:
  RowProduct(int64_t row_bytes, int64_t width, const void* const* x)
      : row_bytes_(row_bytes), whole_(supers(width) / kChains * kChains), rest_(supers(width) % kChains) {
    for (int i = 0; i < M; ++i) x_[i] = static_cast<const Int8Super*>(x[i]);
    if (!rest_) return;
    rows_ = kChains / rest_;
    for (int64_t l = 0; l < kChains; ++l) {
      const int64_t r = l / rest_, s = whole_ + l % rest_;
      offset_[l] = r < rows_ ? r * row_bytes + s * F::kBytes : 0;
      for (int i = 0; i < M; ++i) part_[i][l] = x_[i][s];
    }
    for (int i = 0; i < M; ++i) rest_scale_[i] = scales(part_[i]);
  }

  void product(const uint8_t* w, int64_t n, float* const* y) const {
    int64_t j = 0;
    if (!whole_ && rows_ * rest_ == kChains)
      for (; j + rows_ <= n; j += rows_) short_rows(w + j * row_bytes_, y, j);
    for (; j < n; j += rows_) group(w + j * row_bytes_, std::min(rows_, n - j), y, j);
  }

 private:
  // Up to rows_ weight rows: first the whole eights of each, then the super-blocks after them, side by side.
  TRIGRAPH_INLINE void group(const uint8_t* w, int64_t rows, float* const* y, int64_t j) const {
    Float8 chains[kChains][M];
    const uint8_t* ahead = w;  // in the order of memory, also where rests wait for each other
    for (int64_t r = 0; r < rows; ++r) {
      const uint8_t* row = w + r * row_bytes_;
      Float8 sum[M];
      each_row([&](int i) TRIGRAPH_INLINE_LAMBDA { sum[i] = zero_float8(); });
      for (int64_t s = 0; s < whole_; s += kChains) {
        const uint8_t* p = row + s * F::kBytes;
        const Int8Super* x[M];
        Float8 value[M];
        each_row([&](int i) TRIGRAPH_INLINE_LAMBDA { x[i] = x_[i] + s; });
        RowLoop<F>::template values<M>([p](int l) TRIGRAPH_INLINE_LAMBDA { return p + l * F::kBytes; },
                                       [&x](int i, int l)
                                           TRIGRAPH_INLINE_LAMBDA -> const Int8Super& { return x[i][l]; },
                                       [ahead](int l) TRIGRAPH_INLINE_LAMBDA { fetch(ahead, l); }, value);
        ahead += kChains * F::kBytes;
        each_row([&](int i) TRIGRAPH_INLINE_LAMBDA { sum[i] = fmadd(scales(x[i]), value[i], sum[i]); });
      }
      each_row([&](int i) TRIGRAPH_INLINE_LAMBDA {
        if (!rest_) y[i][j + r] = sum_of(sum[i]);
        chains[r][i] = sum[i];
      });
    }
    if (rest_) add_rest(w, ahead, rows, chains, y, j);
  }

  // Rows of one, two or four super-blocks, which fill an eight together.
  TRIGRAPH_INLINE void short_rows(const uint8_t* w, float* const* y, int64_t j) const {
    Float8 value[M];
    rest_values([w](int l) TRIGRAPH_INLINE_LAMBDA { return w + l * F::kBytes; },
                [w](int l) TRIGRAPH_INLINE_LAMBDA { fetch(w, l); }, value);
    each_row([&](int i) TRIGRAPH_INLINE_LAMBDA {
      Float8 sum = fmadd(rest_scale_[i], value[i], zero_float8());
      if (rest_ == 4) sum = add(sum, swapped_pairs(sum));
      if (rest_ >= 2) sum = add(sum, swapped_neighbours(sum));
      float lanes[kChains];  // as sum_of adds them up; the chains that are missing are 0
      store(lanes, add(sum, zero_float8()));
      for (int64_t r = 0; r < rows_; ++r) y[i][j + r] = lanes[r * rest_];
    });
  }

  TRIGRAPH_INLINE void add_rest(const uint8_t* w, const uint8_t* ahead, int64_t rows, const Float8 (*chains)[M],
                                float* const* y, int64_t j) const {
    const uint8_t* block[kChains];
    for (int64_t l = 0; l < kChains; ++l) block[l] = w + (l < rows * rest_ ? offset_[l] : 0);
    Float8 value[M];
    rest_values([&block](int l) TRIGRAPH_INLINE_LAMBDA { return block[l]; },
                [ahead](int l) TRIGRAPH_INLINE_LAMBDA { fetch(ahead, l); }, value);
    for (int64_t r = 0; r < rows; ++r)
      each_row([&](int i) TRIGRAPH_INLINE_LAMBDA {
        const Float8 own = first(rotated(value[i], r * rest_), rest_);  // the others may be NaN
        y[i][j + r] = sum_of(fmadd(rest_scale_[i], own, chains[r][i]));
      });
  }

  template <class Block, class Fetch>
  TRIGRAPH_INLINE void rest_values(Block&& block, Fetch&& fetch, Float8* value) const {
    RowLoop<F>::template values<M>(
        block, [this](int i, int l) TRIGRAPH_INLINE_LAMBDA -> const Int8Super& { return part_[i][l]; }, fetch, value);
  }
  template <class Body>
  TRIGRAPH_INLINE static void each_row(Body&& body) {
    TRIGRAPH_UNROLL
    for (int i = 0; i < M; ++i) body(i);
  }
  TRIGRAPH_INLINE static Float8 scales(const Int8Super* x) {
    float scale[kChains];
    TRIGRAPH_UNROLL
    for (int l = 0; l < kChains; ++l) scale[l] = x[l].scale;
    return load_float8(scale);
  }

  // Asks memory for what comes a while after super-block l at p: the processor's own prefetch stops at the end of a
  // page.
  TRIGRAPH_INLINE static void fetch(const uint8_t* p, int64_t l) {
#if defined(TRIGRAPH_ISA_avx512)
    for (int64_t i = ceil_div(l * F::kBytes, 64); i < ceil_div((l + 1) * F::kBytes, 64); ++i)
      prefetch_here(p + kAhead<F> + 64 * i);
#else  // l is not known in advance: some lines twice
    TRIGRAPH_UNROLL
    for (int i = 0; i < F::kBytes; i += 64) __builtin_prefetch(p + l * F::kBytes + kAhead<F> + i, 0, 0);  // read once
#endif
  }

  int64_t row_bytes_;
  const Int8Super* x_[M];
  int64_t whole_, rest_;        // super-blocks of a row in whole eights, and after them
  int64_t rows_ = 1;            // of which the rests fill eight lanes
  int64_t offset_[kChains];     // of their super-blocks
  Int8Super part_[M][kChains];  // which these meet
  Float8 rest_scale_[M];
};

// Bytes of several activation rows, which are read once for each weight row.
template <class F>
constexpr int64_t kFewBytes = 12 << 10;
template <>
#ifdef TRIGRAPH_ISA_avx512
inline constexpr int64_t kFewBytes<Q8_0> = 31 << 10;
#else
inline constexpr int64_t kFewBytes<Q8_0> = 26 << 10;
#endif

// Whether int8_rows takes weight rows of any width with M activation rows.
template <class F, int M>
constexpr bool kTakesAllRows = M == 1 && F::kBlock == kSuper && RowLoop<F>::kMost >= 1;
// Whether int8_rows takes n weight rows like this with M activation rows.
template <class F, int M>
bool takes_rows(int64_t n, int64_t row_bytes, int64_t width) {
  if (M > 1 && M * int8_bytes<Int8Of<F>>(width) > kFewBytes<F>) return false;
  if (F::kBlock < kSuper && width == kSuper / 2) return n % 2 == 0 && 2 * row_bytes == super_bytes<F>;
  return width % kSuper == 0;
}

// M activation rows of whole super-blocks, for a type with a RowLoop.
template <class F, int M>
void int8_rows(const uint8_t* w, int64_t n, int64_t row_bytes, int64_t width, const void* const* x, float* const* y) {
  if constexpr (F::kBlock == kSuper)
    RowProduct<F, M>(row_bytes, width, x).product(w, n, y);
  else
    block_rows<F, M>(w, n, row_bytes, width, x, y);
}

}  // namespace trigraph::TRIGRAPH_ISA
