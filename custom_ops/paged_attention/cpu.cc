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
#include "ragged.h"
#include "rotary.h"
#include "tile.h"

namespace trigraph::TRIGRAPH_ISA {
namespace {

constexpr int64_t kTargetRows = 64;                   // rows of a prefill tile; its queries and sums stay in L2
constexpr int64_t kVerifyTokens = 8;                  // a tile holds a whole verify
constexpr int64_t kPartialFloats = int64_t{1} << 22;  // 16 MiB of splits that wait to be merged

void widen(const float* x, int64_t count, float* out) { std::memcpy(out, x, count * sizeof(float)); }
void widen(const uint16_t* x, int64_t count, float* out) {
  for (int64_t i = 0; i < count; i += VL) store(out + i, load_f16(x + i));
}

struct Tile {
  int64_t sequence, head, row, tokens, position;  // first row and its position
  int64_t splits() const { return (position + tokens + kSplit - 1) / kSplit; }
};

// Softmax of a tile's rows over some positions. A row that has none of them has sum 0.
struct Softmax {
  float* values;   // [rows, width] sums of exp(score - largest) * value
  float* largest;  // [rows]
  float* sum;      // [rows] sums of exp(score - largest)

  static int64_t size(int64_t rows, int64_t width) { return rows * (width + 2 + VL) / VL * VL; }
  static Softmax at(float* memory, int64_t rows, int64_t width) {
    return {memory, memory + rows * width, memory + rows * (width + 1)};
  }
};

template <class T>
struct Step {
  const CacheShape& cache;
  const Sequences& sequences;
  const Rotary& rotary;
  const float *q_gate, *norm, *angles;
  const T *keys, *values;
  float* out;
  int64_t group;  // query heads of a kv head
  int64_t rows;   // most rows of a tile

  int64_t width() const { return cache.width; }
  int64_t query_heads() const { return cache.heads * group; }
  const float* query(const Tile& tile, int64_t m) const {
    return q_gate + ((tile.row + m / group) * query_heads() + tile.head * group + m % group) * 2 * width();
  }
  int64_t softmax_size() const { return Softmax::size(rows, width()); }

  // Positions that row m of the tile sees in the split.
  static int64_t seen(int64_t position, int64_t split) {
    return std::clamp<int64_t>(position + 1 - split * kSplit, 0, kSplit);
  }

  // Entries [first, first + count) of one kv head, in float32.
  void gather(const T* from, const Tile& tile, int64_t first, int64_t count, float* group_out) const {
    for (int64_t p = 0; p < count; ++p)
      widen(from + sequences.entry(tile.sequence, first + p) * cache.entry() + tile.head * width(), width(),
            group_out + p * width());
  }

  void walk(const Tile& tile, int64_t split, const Softmax& result) const {
    struct Memory;
    const int64_t m_count = tile.tokens * group;
    auto* q = static_cast<float*>(scratch<Memory>((rows * (width() + kSplit) + kGroup * width()) * sizeof(float)));
    float *scores = q + rows * width(), *entries = scores + rows * kSplit;
    const float scale = 1.0f / std::sqrt(static_cast<float>(width()));
    for (int64_t m = 0; m < m_count; ++m)
      rotary.apply(query(tile, m), norm, angles + (tile.row + m / group) * rotary.angle_size(), width(), scale,
                   q + m * width());
    const auto count_of = [&](int64_t m) { return seen(tile.position + m / group, split); };
    const int64_t first = split * kSplit, last_count = count_of(m_count - 1);

    for (int64_t p = 0; p < last_count; p += kGroup) {
      const int64_t count = std::min(kGroup, last_count - p);
      gather(keys, tile, first + p, count, entries);
      for (int64_t m = 0; m < m_count; m += kTileRows)
        with_rows(std::min(kTileRows, m_count - m),
                  [&](auto n) { dot<n>(q + m * width(), entries, count, width(), scores + m * kSplit + p); });
    }
    for (int64_t m = 0; m < m_count; ++m) {
      const Weights weights = count_of(m) ? exponentiate(scores + m * kSplit, count_of(m)) : Weights{0, 0};
      result.largest[m] = weights.largest;
      result.sum[m] = weights.sum;
    }
    std::fill(result.values, result.values + m_count * width(), 0.0f);
    for (int64_t p = 0; p < last_count; p += kGroup) {
      gather(values, tile, first + p, std::min(kGroup, last_count - p), entries);
      const auto inside = [&](int64_t m) { return std::clamp<int64_t>(count_of(m) - p, 0, kGroup); };
      for (int64_t m = 0; m < m_count; m += kTileRows) {
        const int64_t n_rows = std::min(kTileRows, m_count - m), shared = inside(m);
        with_rows(n_rows, [&](auto n) {
          weighted_sum<n>(scores + m * kSplit + p, entries, shared, width(), result.values + m * width());
        });
        for (int64_t i = m; i < m + n_rows; ++i)  // rows of later tokens see a few positions more
          if (inside(i) > shared)
            weighted_sum<1>(scores + i * kSplit + p + shared, entries + shared * width(), inside(i) - shared, width(),
                            result.values + i * width());
      }
    }
  }

  // total = total and, after it, one more split.
  void merge(const Tile& tile, const Softmax& total, const Softmax& split) const {
    for (int64_t m = 0; m < tile.tokens * group; ++m) {
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

  void finish(const Tile& tile, const Softmax& total) const {
    for (int64_t m = 0; m < tile.tokens * group; ++m) {
      const vf inverse = splat(1.0f / total.sum[m]);
      const float *gate = query(tile, m) + width(), *values = total.values + m * width();
      float* y = out + ((tile.row + m / group) * query_heads() + tile.head * group + m % group) * width();
      for (int64_t i = 0; i < width(); i += VL)
        store(y + i, mul(mul(load(values + i), inverse), sigmoid(load(gate + i))));
    }
  }

  // Tiles are the parallel work: right when there are many, or when nobody has more than one split.
  void run_tiles(const Context& context, const std::vector<Tile>& tiles) const {
    const auto count = static_cast<int64_t>(tiles.size());
    context.parallel_for(count, [&](int64_t i) {
      struct Memory;
      auto* memory = static_cast<float*>(scratch<Memory>(2 * softmax_size() * sizeof(float)));
      const Softmax total = Softmax::at(memory, rows, width());
      const Softmax next = Softmax::at(memory + softmax_size(), rows, width());
      const Tile& tile = tiles[count - 1 - i];  // the last tiles of a sequence are the longest: they start first
      walk(tile, 0, total);
      for (int64_t split = 1; split < tile.splits(); ++split) {
        walk(tile, split, next);
        merge(tile, total, next);
      }
      finish(tile, total);
    });
  }

  // Splits are the parallel work; those of a wave wait in memory, then every tile merges its own in order.
  void run_splits(const Context& context, const std::vector<Tile>& tiles, int64_t most_splits) const {
    struct Memory;
    const auto count = static_cast<int64_t>(tiles.size());
    const int64_t wave = std::clamp<int64_t>(kPartialFloats / (count * softmax_size()), 1, most_splits);
    auto* memory = static_cast<float*>(scratch<Memory>(count * (wave + 1) * softmax_size() * sizeof(float)));
    const auto partial = [&](int64_t tile, int64_t i) {  // the last one of a tile is its total
      return Softmax::at(memory + (tile * (wave + 1) + i) * softmax_size(), rows, width());
    };
    for (int64_t first = 0; first < most_splits; first += wave) {
      const auto end = [&](const Tile& tile) { return std::min(tile.splits(), first + wave); };
      context.parallel_for(count * wave, [&](int64_t i) {
        const Tile& tile = tiles[i / wave];
        const int64_t split = first + i % wave;
        if (split < end(tile)) walk(tile, split, split == 0 ? partial(i / wave, wave) : partial(i / wave, i % wave));
      });
      context.parallel_for(count, [&](int64_t i) {
        const Tile& tile = tiles[i];
        for (int64_t split = std::max<int64_t>(first, 1); split < end(tile); ++split)
          merge(tile, partial(i, wave), partial(i, split - first));
        if (first < tile.splits() && end(tile) == tile.splits()) finish(tile, partial(i, wave));
      });
    }
  }

  void run(const Context& context) const {
    std::vector<Tile> tiles;
    int64_t all_splits = 0, most_splits = 0;
    for (int64_t s = 0; s < sequences.count(); ++s)
      for (int64_t t = 0; t < sequences.length(s); t += rows / group)
        for (int64_t head = 0; head < cache.heads; ++head) {
          const int64_t tokens = std::min(rows / group, sequences.length(s) - t);
          tiles.push_back({s, head, sequences.first_row(s) + t, tokens, sequences.past(s) + t});
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
struct PagedAttention {
  static constexpr DType kType = std::is_same_v<T, float> ? DType::f32 : DType::f16;
  static constexpr const char* kName = "PagedAttention";
  static constexpr Argument kInputs[] = {
      {"q_gate", DType::f32},    {"q_norm", DType::f32},     {"key", kType},
      {"value", kType},          {"cu_seqlens", DType::i32}, {"past_lens", DType::i32},
      {"page_table", DType::i32}};
  static constexpr Argument kOutputs[] = {{"y", DType::f32}};

  explicit PagedAttention(const KernelInfo& info) : rotary_(info) {}

  void compute(Context& context) const {
    const CacheShape cache(context.input(2), context.input(3));
    const Tensor q_gate = context.input(0), norm = context.input(1);
    q_gate.expect({-1, -1});
    const int64_t count = q_gate.dims[0], columns = q_gate.dims[1], per_group = 2 * cache.entry();
    if (columns < per_group || columns % per_group != 0)
      fail("input %s has %lld columns, not a multiple of 2 x %lld kv heads x %lld dimensions", q_gate.name,
           static_cast<long long>(columns), static_cast<long long>(cache.heads), static_cast<long long>(cache.width));
    rotary_.check(norm, cache.width);
    const Sequences sequences(context.input(4), context.input(5), context.input(6), count, cache, true);
    const int64_t group = columns / per_group;
    const Tensor out = context.output(0, {count, columns / 2});

    struct Angles;
    auto* angles = static_cast<float*>(scratch<Angles>(count * rotary_.angle_size() * sizeof(float)));
    std::vector<int64_t> positions;
    positions.reserve(count);
    int64_t longest = 0;
    for (int64_t s = 0; s < sequences.count(); ++s) {
      longest = std::max(longest, sequences.length(s));
      for (int64_t i = 0; i < sequences.length(s); ++i) positions.push_back(sequences.past(s) + i);
    }
    constexpr int64_t kRowsPerTask = 8;
    context.parallel_for((count + kRowsPerTask - 1) / kRowsPerTask, [&](int64_t block) {
      for (int64_t t = block * kRowsPerTask; t < std::min(count, (block + 1) * kRowsPerTask); ++t)
        rotary_.angles(positions[t], angles + t * rotary_.angle_size());
    });
    const int64_t tokens = std::min(longest, std::max(kVerifyTokens, kTargetRows / group));
    const Step<T> step{cache,
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

}  // namespace trigraph::TRIGRAPH_ISA
