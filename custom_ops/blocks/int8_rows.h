// int8_product for one activation row: weight rows one after another, as they lie in memory, whose bandwidth is all
// that bounds it. Eight super-blocks are done at a time, one for each chain.
#pragma once

#include <algorithm>

#include "rows_avx512.h"

namespace trigraph::TRIGRAPH_ISA {

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
      part_[l] = x + s;
      scale_[l] = x[s].scale;
    }
  }

  void product(const uint8_t* w, int64_t n, float* y) const {
    for (int64_t j = 0; j < n; j += rows_) group(w + j * row_bytes_, std::min(rows_, n - j), y + j);
  }

 private:
  static constexpr int64_t kAhead = 4096;

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
        const Eight values = Rows<F>::values([p](int l) TRIGRAPH_INLINE_LAMBDA { return p + l * F::kBytes; },
                                             [x](int l) TRIGRAPH_INLINE_LAMBDA -> const Int8Part& { return x[l]; });
        float scale[kChains];
        TRIGRAPH_UNROLL
        for (int l = 0; l < kChains; ++l) scale[l] = x[l].scale;
        sum = fmadd(load_eight(scale), values, sum);
      }
      if (rest_)
        fetch(row + whole_ * F::kBytes, rest_ * F::kBytes);
      else
        y[r] = sum_of(sum);
      chains[r] = sum;
    }
    if (rest_) add_rest(w, rows, chains, y);
  }

  TRIGRAPH_INLINE void add_rest(const uint8_t* w, int64_t rows, const Eight* chains, float* y) const {
    const uint8_t* block[kChains];
    for (int64_t l = 0; l < kChains; ++l) block[l] = w + (l < rows * rest_ ? offset_[l] : 0);
    const Eight values = Rows<F>::values([&block](int l) TRIGRAPH_INLINE_LAMBDA { return block[l]; },
                                         [this](int l) TRIGRAPH_INLINE_LAMBDA -> const Int8Part& { return *part_[l]; });
    float lanes[2 * kChains] = {};
    if (!whole_ && rest_ <= 2) {  // what sum_of would add up, for all rows at once
      const Eight chain = fmadd(load_eight(scale_), values, zero_eight());
      store(lanes, add(rest_ == 2 ? add(chain, neighbours(chain)) : chain, zero_eight()));
      for (int64_t r = 0; r < rows; ++r) y[r] = lanes[r * rest_];
      return;
    }
    store(lanes, values);
    const Eight scale = first(load_eight(scale_), rest_);
    for (int64_t r = 0; r < rows; ++r) {
      const Eight own = first(load_eight(lanes + r * rest_), rest_);  // the others may be NaN
      y[r] = sum_of(fmadd(scale, own, chains[r]));
    }
  }

  // Asks memory for what comes a while after p: the processor's own prefetch stops at the end of a page.
  TRIGRAPH_INLINE static void fetch(const uint8_t* p, int64_t bytes) {
    for (int64_t i = 0; i < bytes; i += 64) prefetch(p + kAhead + i);
  }

  int64_t row_bytes_;
  const Int8Part* x_;
  int64_t whole_, rest_;  // super-blocks of a row in whole eights, and after them
  int64_t rows_ = 1;      // of which the rests fill eight lanes
  int64_t offset_[kChains];
  const Int8Part* part_[kChains];
  float scale_[kChains];
};

}  // namespace trigraph::TRIGRAPH_ISA
