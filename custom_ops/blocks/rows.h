// The loops of a row product, for every way in which weights meet activations. A Step has
//   Block                            one unpacked super-block of weights
//   kBytes                           of a super-block of weights
//   kPartBytes, header_bytes(width)  of a prepared row: a header, then one part for each super-block
//   kCached                          parts that stay in the first cache beside the weights
//   kPanel                           super-blocks of a tile of unpacked weights, 0: unpacking costs nothing
//   decode(row, width, super, block)
//   together(M)                      weight rows that meet M prepared rows at once
//   add<N, M>(blocks, rows, at, super, sums): adds the products of N blocks with M prepared rows whose parts lie at
//   byte `at`; sums [N, M]
#pragma once

#include "row_kernel.h"
#include "unpack.h"

namespace trigraph::TRIGRAPH_ISA {

constexpr int kAhead = 4096;  // bytes; measured: the processor's own prefetch stops at the end of a page

inline int64_t supers(int64_t width) { return ceil_div(width, kSuper); }

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
    if (width == 0) {  // empty sums
      for (int64_t i = 0; i < m; ++i) std::memset(y[i], 0, static_cast<size_t>(n) * 4);
      return;
    }
    const Weights weights{w, row_bytes, width};
    if constexpr (Step::kPanel > 0) {
      if (m > 2 * kRows) {  // for fewer, unpacking again costs less than a tile in memory
        for (int64_t i = 0; i < m; i += kGroup)
          for (int64_t j = 0; j < n; j += kLine) tile(weights, j, n, x + i, m - i < kGroup ? m - i : kGroup, y + i);
        return;
      }
    }
    static constexpr decltype(&line<1>) kLines[] = {line<1>,          line<at_most(2)>, line<at_most(3)>,
                                                    line<at_most(4)>, line<at_most(5)>, line<at_most(6)>,
                                                    line<at_most(7)>, line<at_most(8)>};
    for (int64_t i = 0; i < m; i += kRows)
      for (int64_t j = 0; j < n; j += kLine) kLines[(m - i < kRows ? m - i : kRows) - 1](weights, j, n, x + i, y + i);
  }

 private:
  using Block = typename Step::Block;
  static constexpr int kGroup = 64;  // activation rows that share a tile of unpacked weights

  struct Weights {
    const uint8_t* data;
    int64_t row_bytes, width;
  };
  // Where a weight row's super-blocks come from: unpacked on the spot, or from a tile that starts at super-block
  // `first`.
  struct Unpacked {
    const uint8_t* row;
    int64_t width, ahead;
    TRIGRAPH_INLINE const Block& operator()(int64_t super, Block* block) const {
      for (int i = 0; i < Step::kBytes; i += 64) prefetch(row + super * Step::kBytes + ahead + i);
      Step::decode(row, width, super, block);
      return *block;
    }
  };
  struct Tiled {
    const Block* blocks;
    int64_t first;
    TRIGRAPH_INLINE const Block& operator()(int64_t super, Block*) const { return blocks[super - first]; }
  };
  // Bytes from what is read to what is fetched, for `count` weight rows that are read in turn, N at once, each from
  // super-block `first` to `last`. Next comes a row below, then the following part of the rows above or the rows that
  // follow.
  struct Ahead {
    int64_t soon, below, after;
    int count;
    Ahead(const Weights& w, int count, int64_t first, int64_t last, int together) : count(count) {
      const int64_t blocks = supers(w.width), bytes = (last - first) * Step::kBytes;
      soon = (2 * kAhead / (bytes * together) + 1) * together;  // rows; measured: turns need more than one whole row
      below = together == 1 && last - first == blocks ? kAhead : soon * w.row_bytes;
      after = below + (last < blocks ? bytes - count * w.row_bytes : -first * Step::kBytes);
    }
    int64_t operator()(int k) const { return k + soon < count ? below : after; }
  };

  // Results of up to kLine weight rows. Rows of y are usually some power of two apart, in one set of the cache: results
  // go there a cache line at a time.
  template <int M>
  struct Results {
    alignas(64) float value[M][kLine];
    TRIGRAPH_INLINE void set(int k, const vf* sum) {
      alignas(64) float column[kRows];
      reduce_add<M>(sum, column);
      TRIGRAPH_UNROLL
      for (int i = 0; i < M; ++i) value[i][k] = column[i];
    }
    void copy(float* const* y, int64_t j, int count) const {
      for (int i = 0; i < M; ++i) std::memcpy(y[i] + j, value[i], static_cast<size_t>(count) * 4);
    }
  };

  // Up to kLine weight rows from j with M activation rows. Of wide rows a part of the super-blocks at a time, whose
  // activations stay cached; sums wait in memory.
  template <int M>
  static void line(const Weights& w, int64_t j, int64_t n, const void* const* x, float* const* y) {
    constexpr int N = Step::together(M);
    const int count = static_cast<int>(n - j < kLine ? n - j : kLine);
    const int64_t blocks = supers(w.width), parts = M == 1 ? 1 : ceil_div(blocks * M, Step::kCached);
    const int64_t part = ceil_div(blocks, parts);
    Results<M> results;
    vf waiting[kLine * M];
    for (int64_t first = 0, last; first < blocks; first = last) {
      last = blocks - first < part ? blocks : first + part;
      const Ahead ahead(w, count, first, last, N);
      for (int k = 0; k < count; k += N) {
        Unpacked row[N];
        for (int r = 0; r < N; ++r)  // the last of an odd number of rows meets itself
          row[r] = {w.data + (j + (k + r < count ? k + r : k)) * w.row_bytes, w.width, ahead(k)};
        dot<N, M>(row, w.width, first, last, x, waiting + k * M, &results, k);
      }
    }
    results.copy(y, j, count);
  }

  // A panel of super-blocks [first, last) of unpacked weight rows, and the sums of kGroup activation rows.
  struct Panel {
    Block block[kLine][Step::kPanel ? Step::kPanel : 1];
    vf sum[kGroup * kLine];
    int64_t j, width, first, last;
    int count;
  };

  // Up to kLine weight rows from j with up to kGroup activation rows: weights are unpacked once for all of them.
  static void tile(const Weights& w, int64_t j, int64_t n, const void* const* x, int64_t m, float* const* y) {
    auto& panel = *static_cast<Panel*>(scratch<Panel>(sizeof(Panel)));
    panel.j = j;
    panel.width = w.width;
    panel.count = static_cast<int>(n - j < kLine ? n - j : kLine);
    const int64_t blocks = supers(w.width);
    for (panel.first = 0; panel.first < blocks; panel.first = panel.last) {
      panel.last = blocks - panel.first < Step::kPanel ? blocks : panel.first + Step::kPanel;
      const Ahead ahead(w, panel.count, panel.first, panel.last, 1);
      for (int k = 0; k < panel.count; ++k) {
        const Unpacked row{w.data + (j + k) * w.row_bytes, w.width, ahead(k)};
        for (int64_t s = panel.first; s < panel.last; ++s) row(s, &panel.block[k][s - panel.first]);
      }
      // Whole groups, then the rest by powers of two: every size of its own would double the code.
      for (int64_t i = 0, rows; i < m; i += rows) {
        const int64_t left = m - i;
        rows = left >= kRows ? kRows : left >= 4 && kRows > 4 ? 4 : left >= 2 ? 2 : 1;
        const auto add = rows == 1   ? add_panel<1>
                         : rows == 2 ? add_panel<2>
                         : rows == 4 ? add_panel<at_most(4)>
                                     : add_panel<kRows>;
        add(panel, x + i, panel.sum + i * kLine, y + i);
      }
    }
  }

  template <int M>
  static void add_panel(const Panel& panel, const void* const* x, vf* waiting, float* const* y) {
    constexpr int N = Step::together(M);
    Results<M> results;
    for (int k = 0; k < panel.count; k += N) {
      Tiled row[N];
      for (int r = 0; r < N; ++r) row[r] = {panel.block[k + r < panel.count ? k + r : k], panel.first};
      dot<N, M>(row, panel.width, panel.first, panel.last, x, waiting + k * M, &results, k);
    }
    if (panel.last == supers(panel.width)) results.copy(y, panel.j, panel.count);
  }

  // Adds super-blocks [first, last) of N weight rows from k to their sums with M activation rows. Sums that are not
  // complete wait in memory.
  template <int N, int M, class Row>
  TRIGRAPH_INLINE static void dot(const Row* weight, int64_t width, int64_t first, int64_t last, const void* const* x,
                                  vf* waiting, Results<M>* results, int k) {
    vf sum[N * M];
    TRIGRAPH_UNROLL
    for (int i = 0; i < N * M; ++i) sum[i] = first == 0 ? zero() : waiting[i];
    const char* row[M];
    TRIGRAPH_UNROLL
    for (int i = 0; i < M; ++i) row[i] = static_cast<const char*>(x[i]);
    int64_t at = Step::header_bytes(width) + first * Step::kPartBytes;
    for (int64_t s = first; s < last; ++s, at += Step::kPartBytes) {
      opaque(&at);
      Block space[N];
      // No loop: GCC would leave the sums in memory.
      const Block* const block[] = {&weight[0](s, space), N > 1 ? &weight[N - 1](s, space + N - 1) : nullptr};
      Step::template add<N, M>(block, row, at, s, sum);
    }
    if (last == supers(width)) {
      TRIGRAPH_UNROLL
      for (int r = 0; r < N; ++r) results->set(k + r, sum + r * M);
    } else {
      TRIGRAPH_UNROLL
      for (int i = 0; i < N * M; ++i) waiting[i] = sum[i];
    }
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
  return {{F::kName, F::kDType, F::kBlock, F::kBytes},
          Rows<Step>::prepared_bytes,
          Step::prepare,
          Rows<Step>::product,
          unpack_row<F>};
}

template <template <class> class Step, class Types>
struct Kernels;
template <template <class> class Step, class... F>
struct Kernels<Step, Types<F...>> {
  static constexpr RowKernel all[] = {make_kernel<F, Step<F>>()...};
  static const RowKernel* find(const std::string& type) {
    for (const RowKernel& kernel : all)
      if (type == kernel.type) return &kernel;
    return nullptr;
  }
};

}  // namespace trigraph::TRIGRAPH_ISA
