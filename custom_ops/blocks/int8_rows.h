// int8_product for one activation row: weight rows one after another, as they lie in memory, whose bandwidth is all
// that bounds it. Eight super-blocks are done at a time, one for each chain.
#pragma once

#include <algorithm>

#if defined(TRIGRAPH_ISA_avx512)
#include "rows_avx512.h"
#else
#include "rows_avx2.h"
#endif

namespace trigraph::TRIGRAPH_ISA {

constexpr int64_t kAhead = 4096;  // bytes between blocks in use and those to ask memory for

template <class F>
class RowProduct {
 public:
  RowProduct(int64_t row_bytes, int64_t width, const Int8Part* x)
      : row_bytes_(row_bytes), x_(x), whole_(supers(width) / kChains * kChains), rest_(supers(width) % kChains) {
    if (!rest_) return;
    rows_ = kChains / rest_;
    for (int64_t l = 0; l < kChains; ++l) {
      const int64_t r = l / rest_, s = whole_ + l % rest_;
      offset_[l] = r < rows_ ? r * row_bytes + s * F::kBytes : 0;
      part_[l] = x[s];
    }
  }

  void product(const uint8_t* w, int64_t n, float* y) const {
    int64_t j = 0;
    if (!whole_ && rows_ * rest_ == kChains)
      for (; j + rows_ <= n; j += rows_) short_rows(w + j * row_bytes_, y + j);
    for (; j < n; j += rows_) group(w + j * row_bytes_, std::min(rows_, n - j), y + j);
  }

 private:
  // Up to rows_ weight rows: first the whole eights of each, then the super-blocks after them, side by side.
  TRIGRAPH_INLINE void group(const uint8_t* w, int64_t rows, float* y) const {
    Eight chains[kChains];
    for (int64_t r = 0; r < rows; ++r) {
      const uint8_t* row = w + r * row_bytes_;
      Eight sum = zero_eight();
      for (int64_t s = 0; s < whole_; s += kChains) {
        const uint8_t* p = row + s * F::kBytes;
        const Int8Part* x = x_ + s;
        fetch(p, kChains * F::kBytes);
        sum = fmadd(scales(x), values([p](int l) TRIGRAPH_INLINE_LAMBDA { return p + l * F::kBytes; }, x), sum);
      }
      if (rest_)
        fetch(row + whole_ * F::kBytes, rest_ * F::kBytes);
      else
        y[r] = sum_of(sum);
      chains[r] = sum;
    }
    if (rest_) add_rest(w, rows, chains, y);
  }

  // Rows of one, two or four super-blocks, which fill an eight together.
  TRIGRAPH_INLINE void short_rows(const uint8_t* w, float* y) const {
    fetch(w, kChains * F::kBytes);
    const auto block = [w](int l) TRIGRAPH_INLINE_LAMBDA { return w + l * F::kBytes; };
    Eight sum = fmadd(scales(part_), values(block, part_), zero_eight());
    if (rest_ == 4) sum = add(sum, swapped_pairs(sum));
    if (rest_ >= 2) sum = add(sum, swapped_neighbours(sum));
    float lanes[kChains];  // as sum_of adds them up; the chains that are missing are 0
    store(lanes, add(sum, zero_eight()));
    for (int64_t r = 0; r < rows_; ++r) y[r] = lanes[r * rest_];
  }

  TRIGRAPH_INLINE void add_rest(const uint8_t* w, int64_t rows, const Eight* chains, float* y) const {
    const uint8_t* block[kChains];
    for (int64_t l = 0; l < kChains; ++l) block[l] = w + (l < rows * rest_ ? offset_[l] : 0);
    float lanes[2 * kChains] = {};
    store(lanes, values([&block](int l) TRIGRAPH_INLINE_LAMBDA { return block[l]; }, part_));
    const Eight scale = first(scales(part_), rest_);
    for (int64_t r = 0; r < rows; ++r) {
      const Eight own = first(load_eight(lanes + r * rest_), rest_);  // the others may be NaN
      y[r] = sum_of(fmadd(scale, own, chains[r]));
    }
  }

  template <class Block>
  TRIGRAPH_INLINE static Eight values(Block&& block, const Int8Part* x) {
    return Rows<F>::values(block, [x](int l) TRIGRAPH_INLINE_LAMBDA -> const Int8Part& { return x[l]; });
  }
  TRIGRAPH_INLINE static Eight scales(const Int8Part* x) {
    float scale[kChains];
    TRIGRAPH_UNROLL
    for (int l = 0; l < kChains; ++l) scale[l] = x[l].scale;
    return load_eight(scale);
  }

  // Asks memory for what comes a while after p: the processor's own prefetch stops at the end of a page.
  TRIGRAPH_INLINE static void fetch(const uint8_t* p, int64_t bytes) {
    for (int64_t i = 0; i < bytes; i += 64) prefetch(p + kAhead + i);
  }

  int64_t row_bytes_;
  const Int8Part* x_;
  int64_t whole_, rest_;     // super-blocks of a row in whole eights, and after them
  int64_t rows_ = 1;         // of which the rests fill eight lanes
  int64_t offset_[kChains];  // of their super-blocks
  Int8Part part_[kChains];   // which these meet
};

// The same for blocks of 32, of which a super-block holds one for each chain.
template <class F>
void block_rows(const uint8_t* w, int64_t n, int64_t row_bytes, int64_t width, const Int8Part* x, float* y) {
  for (int64_t j = 0; j < n; ++j, w += row_bytes) {
    Eight sum = zero_eight();
    for (int64_t s = 0; s < supers(width); ++s) {
      const uint8_t* p = w + s * super_bytes<F>;
      for (int i = 0; i < super_bytes<F>; i += 64) prefetch(p + kAhead + i);
      sum = fmadd(splat_eight(x[s].scale), Rows<F>::values(p, x[s]), sum);
    }
    y[j] = sum_of(sum);
  }
}

// One activation row x of whole super-blocks, for a type with Rows.
template <class F>
void int8_rows(const uint8_t* w, int64_t n, int64_t row_bytes, int64_t width, const Int8Part* x, float* y) {
  if constexpr (F::kBlock == kSuper)
    RowProduct<F>(row_bytes, width, x).product(w, n, y);
  else
    block_rows<F>(w, n, row_bytes, width, x, y);
}

}  // namespace trigraph::TRIGRAPH_ISA
