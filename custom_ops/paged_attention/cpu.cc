// PagedAttention: every row attends to the cache entries from 0 to its own position.
//
// A tile is some tokens of one sequence with all query heads of one kv head: its rows share one read of the cache. The
// cache is walked in splits of kSplit positions, each with a softmax of its own, merged in order; so a row's bits
// depend on its query and on the entries up to its position, not on its tile, the other splits' thread or its
// companions.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>
#include <vector>

#include "../kernel.h"
#include "../simd.h"
#include "entry.h"
#include "ragged.h"
#include "rotary.h"
#include "tile.h"

namespace trigraph::TRIGRAPH_ISA {
namespace {

constexpr int64_t kTargetRows = 64;   // rows of a prefill tile; its queries and sums stay in L2
constexpr int64_t kVerifyTokens = 8;  // a tile holds a whole verify
constexpr int64_t kAngleRows = 16;
constexpr int64_t kPartialFloats = int64_t{1} << 22;  // 16 MiB of splits that wait to be merged

struct HeadTile : Run {
  int64_t head;  // of the cache
  int64_t splits() const { return (position + count + kSplit - 1) / kSplit; }
};

// Softmax of a tile's rows over some positions. A row that has none of them has sum 0.
struct Softmax {
  float* values;   // [rows, width] sums of exp(score - largest) * value
  float* largest;  // [rows]
  float* sum;      // [rows] sums of exp(score - largest)

  // Floats, in whole cache lines.
  static int64_t size(int64_t rows, int64_t width) { return (rows * (width + 2) + 15) / 16 * 16; }
  static Softmax at(float* memory, int64_t rows, int64_t width) {
    return {memory, memory + rows * width, memory + rows * (width + 1)};
  }
};

template <class T>
struct AttentionStep {
  const CacheShape& cache;
  const Sequences& sequences;
  const Rotary& rotary;
  const float *q_gate, *norm, *angles;
  const T *keys, *values;
  float* out;
  int64_t group;  // query heads of a kv head
  int64_t rows;   // most rows of a tile

  static constexpr bool kRotated = std::is_same_v<T, Q8>;
  // Whether a head is widened once for all rows that read it.
  static constexpr bool kWiden = kRotated || kWidenFloats;

  int64_t width() const { return cache.width; }
  int64_t query_heads() const { return cache.heads * group; }
  const float* query(const HeadTile& tile, int64_t m) const {
    return q_gate + ((tile.row + m / group) * query_heads() + tile.head * group + m % group) * 2 * width();
  }
  int64_t softmax_size() const { return Softmax::size(rows, width()); }

  // Where the tile's kv head has its keys, or values, of positions [first, first + count).
  void locate(const HeadTile& tile, const T* base, int64_t first, int64_t count, const T** entries) const {
    for (int64_t p = 0; p < count;) {
      const T* entry = base + sequences.entry(tile.sequence, first + p) * cache.entry() + tile.head * cache.stride;
      const int64_t end = std::min(count, p + sequences.page_size() - (first + p) % sequences.page_size());
      for (; p < end; ++p, entry += cache.entry()) entries[p] = entry;
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
        prefetch(entries[p + i + kAhead], cache.stride);
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

  // The tile's queries, normed, rotated and scaled: [rows, width].
  void prepare(const HeadTile& tile, float* q) const {
    const float scale = 1.0f / std::sqrt(static_cast<float>(width()));
    for (int64_t m = 0; m < tile.count * group; ++m) {
      rotary.apply(query(tile, m), norm, angles + (tile.row + m / group) * rotary.angle_size(), width(), scale,
                   q + m * width());
      if (kRotated) rotate(q + m * width(), width(), key_rotation(width()));
    }
  }

  void walk(const HeadTile& tile, const float* q, int64_t split, const Softmax& result) const {
    struct Memory;
    const int64_t tile_rows = tile.count * group, first = split * kSplit;
    auto* scores = static_cast<float*>(scratch<Memory>((rows * kSplit + kGroup * width()) * sizeof(float)));
    float* wide = scores + rows * kSplit;
    const auto seen = [&](int64_t m) {  // positions of the split that row m attends to
      return std::clamp<int64_t>(tile.position + m / group + 1 - first, 0, kSplit);
    };
    const int64_t positions = seen(tile_rows - 1), shared = seen(0);
    const int64_t next = std::min(kAhead, tile.position + tile.count - first - positions);
    const T* entries[2 * kSplit + kAhead];  // keys, values, and the first keys of the next split
    locate(tile, keys, first, positions, entries);
    locate(tile, values, first, positions, entries + positions);
    locate(tile, keys, first + positions, next, entries + 2 * positions);
    std::fill(entries + 2 * positions + next, entries + 2 * positions + kAhead, entries[2 * positions - 1]);

    for_groups(entries, positions, tile_rows, wide,
               [&](int64_t m, auto n, int64_t p, int64_t count, const auto& group_entries) {
                 dot<n>(q + m * width(), group_entries, count, width(), scores + m * kSplit + p);
               });
    for (int64_t m = 0; m < tile_rows; ++m) {
      const Weights weights = seen(m) ? exponentiate(scores + m * kSplit, seen(m)) : Weights{0, 0};
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

  // total = total and, after it, one more split.
  void merge(const HeadTile& tile, const Softmax& total, const Softmax& split) const {
    for (int64_t m = 0; m < tile.count * group; ++m) {
      if (split.sum[m] == 0) continue;
      const float largest = std::max(total.largest[m], split.largest[m]);
      const vf keep = exp(splat(total.largest[m] - largest)), take = exp(splat(split.largest[m] - largest));
      total.largest[m] = largest;
      total.sum[m] = lane0(fmadd(splat(total.sum[m]), keep, mul(splat(split.sum[m]), take)));
      float* values = total.values + m * width();
      for (int64_t i = 0; i < width(); i += VL)
        store(values + i, fmadd(load(values + i), keep, mul(load(split.values + m * width() + i), take)));
    }
  }

  void finish(const HeadTile& tile, const Softmax& total) const {
    for (int64_t m = 0; m < tile.count * group; ++m) {
      const vf inverse = splat(1.0f / total.sum[m]);
      const float *gate = query(tile, m) + width(), *values = total.values + m * width();
      float* y = out + ((tile.row + m / group) * query_heads() + tile.head * group + m % group) * width();
      for (int64_t i = 0; i < width(); i += VL) store(y + i, mul(load(values + i), inverse));
      if (kRotated) rotate(y, width(), value_rotation(width()));
      for (int64_t i = 0; i < width(); i += VL) store(y + i, mul(load(y + i), sigmoid(load(gate + i))));
    }
  }

  // Tiles are the parallel work: right when there are many, or when nobody has more than one split.
  void run_tiles(const Context& context, const std::vector<HeadTile>& tiles) const {
    const auto count = static_cast<int64_t>(tiles.size());
    context.parallel_for(count, [&](int64_t i) {
      struct Memory;
      auto* q = static_cast<float*>(scratch<Memory>((rows * width() + 2 * softmax_size()) * sizeof(float)));
      const Softmax total = Softmax::at(q + rows * width(), rows, width());
      const Softmax next = Softmax::at(q + rows * width() + softmax_size(), rows, width());
      const HeadTile& tile = tiles[count - 1 - i];  // the last tiles of a sequence are the longest: they start first
      prepare(tile, q);
      walk(tile, q, 0, total);
      for (int64_t split = 1; split < tile.splits(); ++split) {
        walk(tile, q, split, next);
        merge(tile, total, next);
      }
      finish(tile, total);
    });
  }

  // Splits are the parallel work; those of a wave wait in memory, then every tile merges its own in order.
  void run_splits(const Context& context, const std::vector<HeadTile>& tiles, int64_t most_splits) const {
    struct Memory;
    const auto count = static_cast<int64_t>(tiles.size());
    const int64_t wave = std::clamp<int64_t>(kPartialFloats / (count * softmax_size()), 1, most_splits);
    const int64_t q_size = rows * width();
    auto* memory = static_cast<float*>(scratch<Memory>(count * ((wave + 1) * softmax_size() + q_size) * sizeof(float)));
    float* queries = memory + count * (wave + 1) * softmax_size();
    const auto partial = [&](int64_t tile, int64_t i) {  // the last one of a tile is its total
      return Softmax::at(memory + (tile * (wave + 1) + i) * softmax_size(), rows, width());
    };
    context.parallel_for(count, [&](int64_t i) { prepare(tiles[i], queries + i * q_size); });
    for (int64_t first = 0; first < most_splits; first += wave) {
      const auto end = [&](const HeadTile& tile) { return std::min(tile.splits(), first + wave); };
      context.parallel_for(count * wave, [&](int64_t i) {
        const int64_t t = i % count, split = first + i / count;
        if (split < end(tiles[t]))
          walk(tiles[t], queries + t * q_size, split, partial(t, split == 0 ? wave : split - first));
      });
      context.parallel_for(count, [&](int64_t i) {
        const HeadTile& tile = tiles[i];
        for (int64_t split = std::max<int64_t>(first, 1); split < end(tile); ++split)
          merge(tile, partial(i, wave), partial(i, split - first));
        if (first < tile.splits() && end(tile) == tile.splits()) finish(tile, partial(i, wave));
      });
    }
  }

  void run(const Context& context) const {
    std::vector<HeadTile> tiles;
    int64_t all_splits = 0, most_splits = 0;
    for (const Run& run : sequences.runs(rows / group))
      for (int64_t head = 0; head < cache.heads; ++head) {
        tiles.push_back({run, head});
        all_splits += tiles.back().splits();
        most_splits = std::max(most_splits, tiles.back().splits());
      }
    if (most_splits <= 1 || 16 * most_splits <= all_splits)
      run_tiles(context, tiles);
    else
      run_splits(context, tiles, most_splits);
  }
};

template <class T>
struct PagedAttention : PagedAttentionSignature<T> {
  explicit PagedAttention(const KernelInfo& info) : rotary_(info) { check_cache_type<T>(info); }

  void compute(Context& context) const {
    const CacheShape cache(context.input(2), context.input(3));
    const Tensor q_gate = context.input(0), norm = context.input(1);
    const int64_t count = q_gate.dims[0], columns = q_gate.dims[1], group = query_group(q_gate, cache);
    rotary_.check(norm, cache.width);
    const Sequences sequences(context.input(4), context.input(5), context.input(6), count, cache, true);
    const Tensor out = context.output(0, {count, columns / 2});

    struct Angles;
    auto* angles = static_cast<float*>(scratch<Angles>(count * rotary_.angle_size() * sizeof(float)));
    const std::vector<Run> runs = sequences.runs(kAngleRows);
    context.parallel_for(static_cast<int64_t>(runs.size()), [&](int64_t i) {
      rotary_.angles(runs[i].position, runs[i].count, angles + runs[i].row * rotary_.angle_size());
    });
    const int64_t tokens = std::min(sequences.longest(), std::max(kVerifyTokens, kTargetRows / group));
    const AttentionStep<T> step{cache,
                                sequences,
                                rotary_,
                                q_gate.as<const float>(),
                                norm.as<const float>(),
                                angles,
                                context.input(2).as<const T>(),
                                context.input(3).as<const T>(),
                                out.as<float>(),
                                group,
                                tokens * group};
    if (count > 0) step.run(context);
  }

 private:
  Rotary rotary_;
};

}  // namespace

const OrtCustomOp* paged_attention_f16() {
  static const Op<PagedAttention<uint16_t>> op;
  return &op;
}
const OrtCustomOp* paged_attention_f32() {
  static const Op<PagedAttention<float>> op;
  return &op;
}
const OrtCustomOp* paged_attention_q8_0() {
  static const Op<PagedAttention<Q8>> op;
  return &op;
}

}  // namespace trigraph::TRIGRAPH_ISA
