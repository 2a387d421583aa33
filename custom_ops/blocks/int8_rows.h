// Products with int8 activations. A prepared row is, for each super-block of 256 elements, the codes in the lane order
// of the weight type and one number a lane (see accumulate); after the blocks one float32 scale for each. Sums inside a
// super-block are exact integers; super-blocks add up in order, then the lanes.
#pragma once

#include "float_rows.h"
#if defined(TRIGRAPH_ISA_avx512)
#include "lanes_avx512.h"
#elif defined(TRIGRAPH_ISA_avx2)
#include "lanes_avx2.h"
#else
#include "lanes_generic.h"
#endif

namespace trigraph::TRIGRAPH_ISA {

constexpr int kLanes = 16;
constexpr int kAhead = 4096;  // bytes; measured: the processor's own prefetch stops at the end of a page

struct Int8Block {
  alignas(64) int8_t code[kSuper];
  alignas(64) int32_t lane[kLanes];
};

template <class F>
struct Int8Rows {
  using Layout = typename Lanes<F>::Layout;

  static int64_t scale_bytes(int64_t width) { return (supers(width) * 4 + 63) / 64 * 64; }
  static int64_t prepared_bytes(int64_t width) {
    return scale_bytes(width) + supers(width) * static_cast<int64_t>(sizeof(Int8Block));
  }

  static void prepare(const float* x, int64_t width, void* prepared) {
    auto* scale = static_cast<float*>(prepared);
    auto* block = reinterpret_cast<Int8Block*>(static_cast<char*>(prepared) + scale_bytes(width));
    for (int64_t start = 0; start < width; start += kSuper, ++block) {
      const int count = static_cast<int>(width - start < kSuper ? width - start : kSuper);
      alignas(64) float part[kSuper];
      const float* values = x + start;
      if (count < kSuper) {
        std::memset(part, 0, sizeof part);
        std::memcpy(part, values, static_cast<size_t>(count) * 4);
        values = part;
      }
      *scale++ = quantise(values, block);
    }
  }

  static void product(const uint8_t* w, int64_t n, int64_t row_bytes, int64_t width, const void* const* x, int64_t m,
                      float* const* y) {
    static constexpr decltype(&line<1>) kLines[] = {line<1>, line<2>, line<3>, line<4>,
                                                    line<5>, line<6>, line<7>, line<8>};
    const Weights weights{w, row_bytes, width};
    for (int64_t i = 0; i < m; i += kRows)
      for (int64_t j = 0; j < n; j += kLine) kLines[(m - i < kRows ? m - i : kRows) - 1](weights, j, n, x + i, y + i);
  }

 private:
  // Codes in [-127, 127], rounded to nearest even; a row that is not finite gives a scale of NaN, so that its products
  // are NaN too; one too small for a float32 reciprocal counts as zero.
  static float quantise(const float* x, Int8Block* block) {
    alignas(64) uint32_t bits[kSuper];
    std::memcpy(bits, x, sizeof bits);
    uint32_t largest = 0;
    for (uint32_t b : bits) largest = (b & 0x7fffffff) > largest ? (b & 0x7fffffff) : largest;
    float magnitude;
    std::memcpy(&magnitude, &largest, 4);
    const bool finite = largest < 0x7f800000, usable = finite && magnitude > 1e-36f;
    const float inverse = usable ? 127.0f / magnitude : 0.0f;
    alignas(64) int8_t natural[kSuper];
    for (int i = 0; i < kSuper; ++i) {
      const float shifted =
          (usable ? x[i] : 0.0f) * inverse + 12582912.0f;  // the integer part ends in the fraction's last bits
      int32_t code;
      std::memcpy(&code, &shifted, 4);
      natural[i] = static_cast<int8_t>(code - 0x4b400000);
    }
    for (int group = 0; group < kGroups; ++group)
      for (int vector = 0; vector < 4; ++vector)
        for (int lane = 0; lane < VL; ++lane)
          std::memcpy(block->code + ((group * 4 + vector) * VL + lane) * 4,
                      natural + Layout::element(group, vector, lane), 4);
    lane_values<F>(natural, block->code, block->lane);
    return finite ? magnitude / 127.0f * static_cast<float>(usable) : std::nanf("");
  }

  struct Weights {
    const uint8_t* data;
    int64_t row_bytes, width;
  };

  static constexpr int kRows = 8;     // activation rows that meet a weight block in registers
  static constexpr int kLine = 16;    // weight rows whose results fill a cache line
  static constexpr int kCached = 72;  // super-blocks of activations that stay in the first cache beside the weights

  TRIGRAPH_INLINE static void decode(const Weights& w, int64_t row, int64_t super, LaneBlock* out) {
    constexpr int kWhole = kSuper / F::kBlock;
    const uint8_t* p = w.data + row * w.row_bytes + super * kWhole * F::kBytes;
    for (int ahead = 0; ahead < kWhole * F::kBytes; ahead += 64) prefetch(p + ahead + kAhead);
    if constexpr (kWhole > 1) {
      alignas(16) uint8_t padded[kWhole * F::kBytes];
      const int64_t left = w.width / F::kBlock - super * kWhole;
      const bool whole = left >= kWhole;
      if (!whole) {
        std::memset(padded, 0, sizeof padded);
        std::memcpy(padded, p, static_cast<size_t>(left * F::kBytes));
      }
      Lanes<F>::decode(whole ? p : padded, out);
    } else {
      Lanes<F>::decode(p, out);
    }
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
    int64_t at = scale_bytes(w.width) + first * static_cast<int64_t>(sizeof(Int8Block));
    for (int64_t s = first; s < last; ++s, at += sizeof(Int8Block)) {
      opaque(&at);
      LaneBlock block;
      decode(w, j, s, &block);
      TRIGRAPH_UNROLL
      for (int i = 0; i < M; ++i) {
        const auto* part = reinterpret_cast<const Int8Block*>(row[i] + at);
        sum[i] = accumulate<F>(block, part->code, part->lane, reinterpret_cast<const float*>(row[i])[s], sum[i]);
      }
    }
    TRIGRAPH_UNROLL
    for (int i = 0; i < M; ++i) total[i] = sum[i];
  }

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
    const int64_t blocks = supers(w.width), panel = kCached / M;
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

  template <int M>
  TRIGRAPH_INLINE static void clear(vf* sum) {
    TRIGRAPH_UNROLL
    for (int i = 0; i < M; ++i) sum[i] = zero();
  }
};

}  // namespace trigraph::TRIGRAPH_ISA
