#include "split.h"

#include <algorithm>
#include <type_traits>

#include "entry.h"
#include "int8_scores.h"
#include "tile.h"

namespace trigraph::TRIGRAPH_ISA {
namespace {

// A split of a cache of T.
template <class T>
struct SplitWalk {
  const AttentionStep& step;

  // Whether a head is widened once for all rows that read it.
  static constexpr bool kWiden = std::is_same_v<T, Q8> || kWidenFloats;

  const CacheShape& cache() const { return step.cache; }
  int64_t width() const { return step.cache.width; }

  // Where the tile's kv head has its keys, or values, of positions [first, first + count).
  void locate(const HeadTile& tile, const void* base, int64_t first, int64_t count, const T** entries) const {
    if (tile.selection.groups) {
      for (int64_t p = 0; p < count; ++p)
        entries[p] = static_cast<const T*>(base) +
                     step.sequences.entry(tile.sequence, tile.selection.position(first + p)) * cache().entry() +
                     tile.head * cache().stride;
      return;
    }
    first += tile.selection.tail;
    for (int64_t p = 0; p < count;) {
      const T* entry = static_cast<const T*>(base) + step.sequences.entry(tile.sequence, first + p) * cache().entry() +
                       tile.head * cache().stride;
      const int64_t end = std::min(count, p + step.sequences.page_size() - (first + p) % step.sequences.page_size());
      for (; p < end; ++p, entry += cache().entry()) entries[p] = entry;
    }
  }

  // Calls body(m, n, p, count, entries) for positions [0, count) in groups and, in each, for the tile's rows in blocks
  // of n, nearly equal, which share the work of asking memory for what comes later.
  template <class Body>
  void for_groups(const T* const* entries, int64_t positions, int64_t tile_rows, float* wide, Body&& body) const {
    const float* wide_entries[kGroup];
    for (int64_t i = 0; i < kGroup; ++i) wide_entries[i] = wide + i * width();
    const int64_t blocks = (tile_rows + kTileRows - 1) / kTileRows, share = (kGroup + blocks - 1) / blocks;
    for (int64_t p = 0; p < positions; p += kGroup) {
      const int64_t count = std::min(kGroup, positions - p);
      for (int64_t i = 0; kWiden && i < count; ++i) {
        prefetch(entries[p + i + kAhead], cache().stride);
        widen(entries[p + i], width(), wide + i * width());
      }
      for (int64_t block = 0, m = 0; block < blocks; ++block) {
        const int64_t block_rows = tile_rows / blocks + (block < tile_rows % blocks);
        with_rows(block_rows, [&](auto n) {
          if constexpr (kWiden)
            body(m, n, p, count, Entries<float>{wide_entries, 0, 0});
          else
            body(m, n, p, count, Entries<T>{entries + p, block * share, share});
        });
        m += block_rows;
      }
    }
  }

  void run(const HeadTile& tile, const float* q, int64_t split, const Softmax& result) const {
    struct Memory;
    const int64_t tile_rows = tile.count * step.group, first = split * kSplit;
    auto* scores = static_cast<float*>(scratch<Memory>((step.rows * kSplit + kGroup * width()) * sizeof(float)));
    float* wide = scores + step.rows * kSplit;
    const auto seen = [&](int64_t m) {  // positions of the split that row m attends to, but for hidden ones before
      return std::clamp<int64_t>(tile.seen_by(m / step.group) - first, 0, kSplit);
    };
    const auto hidden = [&](int64_t m) {
      return std::clamp<int64_t>(tile.hidden_from(m / step.group) - first, 0, seen(m));
    };
    const int64_t positions = seen(tile_rows - 1), shared = seen(0);
    const int64_t next = std::min(kAhead, tile.all_seen() - first - positions);
    const T* entries[2 * kSplit + kAhead];  // keys, values, and the first keys of the next split
    locate(tile, step.keys, first, positions, entries);
    locate(tile, step.values, first, positions, entries + positions);
    locate(tile, step.keys, first + positions, next, entries + 2 * positions);
    std::fill(entries + 2 * positions + next, entries + 2 * positions + kAhead, entries[2 * positions - 1]);

    if constexpr (std::is_same_v<T, Q8>)
      int8_scores(q, tile_rows, entries, positions, cache(), scores);
    else
      for_groups(entries, positions, tile_rows, wide,
                 [&](int64_t m, auto n, int64_t p, int64_t count, const auto& group_entries) {
                   dot<n>(q + m * width(), group_entries, count, width(), scores + m * kSplit + p);
                 });
    for (int64_t m = 0; m < tile_rows; ++m) {
      const Weights weights = seen(m) ? exponentiate(scores + m * kSplit, seen(m), hidden(m)) : Weights{kNoScore, 0};
      result.largest[m] = weights.largest;
      result.sum[m] = weights.sum;
    }
    std::fill(result.values, result.values + tile_rows * width(), 0.0f);
    for_groups(entries + positions, positions, tile_rows, wide,
               [&](int64_t m, auto n, int64_t p, int64_t count, const auto& group_entries) {
                 const auto add = [&](auto rows, int64_t row, int64_t from, int64_t to) {
                   weighted_sum<rows>(scores + row * kSplit + p, group_entries, from, to, width(),
                                      result.values + row * width());
                 };
                 if (p + count <= shared) return add(n, m, 0, count);
                 const auto inside = [&](int64_t row) { return std::clamp<int64_t>(seen(row) - p, 0, count); };
                 add(n, m, 0, inside(m));
                 for (int64_t i = m + 1; i < m + n; ++i)  // rows of later tokens see a few positions more
                   add(std::integral_constant<int, 1>{}, i, inside(m), inside(i));
               });
  }
};

}  // namespace

template <class T>
void walk_split(const AttentionStep& step, const HeadTile& tile, const float* q, int64_t split, const Softmax& result) {
  SplitWalk<T>{step}.run(tile, q, split, result);
}
template WalkSplit walk_split<float>;
template WalkSplit walk_split<uint16_t>;
template WalkSplit walk_split<Q8>;

}  // namespace trigraph::TRIGRAPH_ISA
