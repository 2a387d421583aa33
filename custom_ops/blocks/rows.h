// The loops of a row product, for every way in which weights meet activations. A Step has
//   Block                            one unpacked super-block of weights
//   kPartBytes, header_bytes(width)  of a prepared row: a header, then one part for each super-block
//   kCached                          parts that stay in the first cache beside the weights
//   decode(row, width, super, block)
//   add<M>(block, rows, at, super, sums): adds the products with M prepared rows whose parts lie at byte `at`
#pragma once

#include "formats.h"
#include "row_kernel.h"

namespace trigraph::TRIGRAPH_ISA {

constexpr int kAhead = 4096;  // bytes; measured: the processor's own prefetch stops at the end of a page

inline int64_t supers(int64_t width) { return (width + kSuper - 1) / kSuper; }

template <class Step>
struct Rows {
// Activation rows that meet a weight block in registers.
#if defined(TRIGRAPH_ISA_portable)
  static constexpr int kRows = 2;  // for correctness, not speed: eight unrolled sizes would take minutes to compile
#else
  static constexpr int kRows = 8;
#endif
  static constexpr int at_most(int rows) { return rows < kRows ? rows : kRows; }
  static constexpr int kLine = 16;  // weight rows whose results fill a cache line

  static int64_t prepared_bytes(int64_t width) { return Step::header_bytes(width) + supers(width) * Step::kPartBytes; }

  static void product(const uint8_t* w, int64_t n, int64_t row_bytes, int64_t width, const void* const* x, int64_t m,
                      float* const* y) {
    static constexpr decltype(&line<1>) kLines[] = {line<1>,          line<at_most(2)>, line<at_most(3)>,
                                                    line<at_most(4)>, line<at_most(5)>, line<at_most(6)>,
                                                    line<at_most(7)>, line<at_most(8)>};
    const Weights weights{w, row_bytes, width};
    for (int64_t i = 0; i < m; i += kRows)
      for (int64_t j = 0; j < n; j += kLine) kLines[(m - i < kRows ? m - i : kRows) - 1](weights, j, n, x + i, y + i);
  }

 private:
  struct Weights {
    const uint8_t* data;
    int64_t row_bytes, width;
  };

  // Up to kLine weight rows from j with M activation rows. Rows of y are usually some power of two apart, in one set of
  // the cache: results go there a cache line at a time.
  template <int M>
  static void line(const Weights& w, int64_t j, int64_t n, const void* const* x, float* const* y) {
    const int count = static_cast<int>(n - j < kLine ? n - j : kLine);
    alignas(64) float result[M][kLine];
    auto finish = [&result](int k, const vf* sum) {
      alignas(64) float value[kRows];
      reduce_add<M>(sum, value);
      TRIGRAPH_UNROLL
      for (int i = 0; i < M; ++i) result[i][k] = value[i];
    };
    const int64_t blocks = supers(w.width), panel = Step::kCached / M;
    if (M == 1 || blocks <= panel) {
      for (int k = 0; k < count; ++k) {
        vf sum[M];
        clear<M>(sum);
        dot<M>(w, j + k, 0, blocks, x, sum);
        finish(k, sum);
      }
    } else {  // wide rows: panels of super-blocks whose activations stay cached, sums wait in memory
      vf sum[kLine][M];
      for (auto& s : sum) clear<M>(s);
      for (int64_t first = 0; first < blocks; first += panel)
        for (int k = 0; k < count; ++k)
          dot<M>(w, j + k, first, blocks - first < panel ? blocks : first + panel, x, sum[k]);
      for (int k = 0; k < count; ++k) finish(k, sum[k]);
    }
    for (int i = 0; i < M; ++i) std::memcpy(y[i] + j, result[i], static_cast<size_t>(count) * 4);
  }

  // Adds super-blocks [first, last) of one weight row to the sums of M activation rows.
  template <int M>
  TRIGRAPH_INLINE static void dot(const Weights& w, int64_t j, int64_t first, int64_t last, const void* const* x,
                                  vf* total) {
    vf sum[M];
    const char* row[M];
    TRIGRAPH_UNROLL
    for (int i = 0; i < M; ++i) {
      sum[i] = total[i];
      row[i] = static_cast<const char*>(x[i]);
    }
    int64_t at = Step::header_bytes(w.width) + first * Step::kPartBytes;
    for (int64_t s = first; s < last; ++s, at += Step::kPartBytes) {
      opaque(&at);
      typename Step::Block block;
      Step::decode(w.data + j * w.row_bytes, w.width, s, &block);
      Step::template add<M>(block, row, at, s, sum);
    }
    TRIGRAPH_UNROLL
    for (int i = 0; i < M; ++i) total[i] = sum[i];
  }

  template <int M>
  TRIGRAPH_INLINE static void clear(vf* sum) {
    TRIGRAPH_UNROLL
    for (int i = 0; i < M; ++i) sum[i] = zero();
  }
};

template <class F>
void unpack_row(const uint8_t* w, int64_t width, float* out) {
  for (int64_t start = 0; start < width; start += kSuper)
    unpack_super<F>(w + start / F::kBlock * F::kBytes,
                    static_cast<int>(width - start < kSuper ? width - start : kSuper), out + start);
}

template <class F, class Step>
constexpr RowKernel make_kernel() {
  return {F::kName,      F::kDType,           F::kBlock,    F::kBytes, Rows<Step>::prepared_bytes,
          Step::prepare, Rows<Step>::product, unpack_row<F>};
}

template <template <class> class Step, class... F>
struct Kernels {
  static constexpr RowKernel all[] = {make_kernel<F, Step<F>>()...};
  static const RowKernel* find(const std::string& type) {
    for (const RowKernel& kernel : all)
      if (type == kernel.type) return &kernel;
    return nullptr;
  }
};

#define TRIGRAPH_BLOCK_TYPES Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS

}  // namespace trigraph::TRIGRAPH_ISA
