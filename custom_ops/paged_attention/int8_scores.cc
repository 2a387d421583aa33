#include "int8_scores.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "../blocks/cpu/common/activations.h"
#include "entry.h"
#if defined(TRIGRAPH_ISA_avx512) || defined(TRIGRAPH_ISA_avx2)
#include "../blocks/cpu/common/block_lanes.h"
#include "../blocks/cpu/common/panel.h"
#endif

namespace trigraph::TRIGRAPH_ISA {
namespace {

constexpr int kBlocksOfSuper = kSuper / kQ8Width;

// Up to 256 elements of a query.
const Int8Blocks& part_of(const float* queries, int64_t row, int64_t width, int64_t part) {
  return reinterpret_cast<const Int8Blocks*>(queries + row * int8_query_floats(width))[part];
}

#if defined(TRIGRAPH_ISA_avx512) || defined(TRIGRAPH_ISA_avx2)
using Keys = Panel<ShapeOf<Q8_0>>;  // of Keys::kRows positions, side by side
static_assert(kSplit % Keys::kRows == 0);

#if defined(TRIGRAPH_ISA_avx512)
constexpr int kRowsAtOnce = 8;
#else
constexpr int kRowsAtOnce = 4;
#endif

// Adds what a part of N queries makes of the first `blocks` blocks of the keys; the first part begins from +0.
template <int N>
TRIGRAPH_NOINLINE void add_scores(const Keys& keys, int blocks, bool first, const Int8Blocks* const* part,
                                  float* scores) {
  constexpr int kGroups = Keys::kGroups;
  Floats score[N][kGroups];
  TRIGRAPH_UNROLL
  for (int i = 0; i < N; ++i) {
    TRIGRAPH_UNROLL
    for (int g = 0; g < kGroups; ++g) score[i][g] = floats(0);
    if (!first) std::memcpy(score[i], scores + i * kSplit, sizeof score[i]);
  }
  TRIGRAPH_LOOP
  for (int b = 0; b < blocks; ++b) {
    Floats value[N][kGroups];
    keys.block_values<N>(part, b, value);
    TRIGRAPH_UNROLL
    for (int i = 0; i < N; ++i) {
      TRIGRAPH_UNROLL
      for (int g = 0; g < kGroups; ++g) score[i][g] = fmadd(floats(part[i]->scales[b]), value[i][g], score[i][g]);
    }
  }
  TRIGRAPH_UNROLL
  for (int i = 0; i < N; ++i) std::memcpy(scores + i * kSplit, score[i], sizeof score[i]);
}

// Adds the scores of rows [m, rows), as many as N at once.
template <int N>
void add_rows(const Keys& keys, int blocks, int64_t part, const float* queries, int64_t m, int64_t rows, int64_t width,
              float* scores) {
  for (; m + N <= rows; m += N) {
    const Int8Blocks* own[N];
    for (int i = 0; i < N; ++i) own[i] = &part_of(queries, m + i, width, part);
    add_scores<N>(keys, blocks, part == 0, own, scores + m * kSplit);
  }
  if constexpr (N > 1)
    if (m < rows) add_rows<N / 2>(keys, blocks, part, queries, m, rows, width, scores);
}

// Whether the heads at entries [count] are one stride apart.
bool evenly_spaced(const Q8* const* entries, int64_t count, int64_t stride) {
  for (int64_t i = 1; i < count; ++i)
    if (entries[i] - entries[i - 1] != stride) return false;
  return true;
}
#endif

}  // namespace

int64_t int8_query_floats(int64_t width) { return int8_bytes<Int8Blocks>(width) / static_cast<int64_t>(sizeof(float)); }

void round_query(const float* q, int64_t width, float* out) { prepare_int8<Int8Blocks>(q, width, out); }

#if defined(TRIGRAPH_ISA_avx512) || defined(TRIGRAPH_ISA_avx2)
void int8_scores(const float* queries, int64_t rows, const Q8* const* entries, int64_t positions,
                 const CacheShape& cache, float* scores) {
  constexpr int64_t kPartBytes = kBlocksOfSuper * kQ8Bytes;
  Keys keys;
  for (int64_t p = 0; p < positions; p += Keys::kRows, entries += Keys::kRows) {
    const int64_t count = std::min<int64_t>(positions - p, Keys::kRows);
    for (int64_t i = 0; i < count; ++i)
      for (int64_t at = 0; at < cache.stride; at += 64) prefetch(entries[i + kKeysAhead] + at);
    const bool even = count == Keys::kRows && evenly_spaced(entries, count, cache.entry());
    for (int64_t part = 0; part < supers(cache.width); ++part) {
      const int64_t bytes = std::min(cache.stride - part * kPartBytes, kPartBytes);
      alignas(64) uint8_t copy[Keys::kRows * kPartBytes];
      if (even && bytes == kPartBytes) {
        keys.unpack<Q8_0>(&entries[0]->byte + part * kPartBytes, cache.entry());
      } else {
        std::memset(copy, 0, sizeof copy);
        for (int64_t i = 0; i < count; ++i)
          std::memcpy(copy + i * kPartBytes, entries[i] + part * kPartBytes, static_cast<size_t>(bytes));
        keys.unpack<Q8_0>(static_cast<const uint8_t*>(copy), kPartBytes);
      }
      add_rows<kRowsAtOnce>(keys, static_cast<int>(bytes / kQ8Bytes), part, queries, 0, rows, cache.width, scores + p);
    }
  }
}
#else
void int8_scores(const float* queries, int64_t rows, const Q8* const* entries, int64_t positions,
                 const CacheShape& cache, float* scores) {
  for (int64_t m = 0; m < rows; ++m) std::fill(scores + m * kSplit, scores + m * kSplit + positions, 0.0f);
  for (int64_t p = 0; p < positions; ++p)
    for (int64_t b = 0; b < cache.width / kQ8Width; ++b) {
      const Q8* block = entries[p] + b * kQ8Bytes;
      uint16_t half;
      int8_t key[kQ8Width];
      std::memcpy(&half, block, sizeof half);
      std::memcpy(key, block + sizeof half, sizeof key);
      const float d = fast_half(half);
      for (int64_t m = 0; m < rows; ++m) {
        const Int8Blocks& part = part_of(queries, m, cache.width, b / kBlocksOfSuper);
        const int8_t* code = part.code + b % kBlocksOfSuper * kQ8Width;
        int32_t dot = 0;
        for (int i = 0; i < kQ8Width; ++i) dot += code[i] * key[i];
        float& score = scores[m * kSplit + p];
        score = std::fma(part.scales[b % kBlocksOfSuper], d * static_cast<float>(dot), score);
      }
    }
}
#endif

}  // namespace trigraph::TRIGRAPH_ISA
