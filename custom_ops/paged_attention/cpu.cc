// PagedAttention: every row attends to the cache entries from 0 to its own position, or to what its attributes say.
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
#include "../softmax.h"
#include "entry.h"
#include "int8_scores.h"
#include "split.h"

namespace trigraph::TRIGRAPH_ISA {
namespace {

constexpr int64_t kTargetRows = 64;   // rows of a prefill tile; its queries and sums stay in L2
constexpr int64_t kVerifyTokens = 8;  // a tile holds a whole verify
constexpr int64_t kAngleRows = 16;
constexpr int64_t kPartialFloats = int64_t{1} << 22;  // 16 MiB of splits that wait to be merged

struct Attention : AttentionStep {
  WalkSplit* walk_split;
  const int32_t* groups;  // [rows, top], or nullptr
  int64_t top, group_size;

  int64_t query_heads() const { return cache.heads * group; }
  const float* query(const HeadTile& tile, int64_t m) const {
    return q_gate + ((tile.row + m / group) * query_heads() + tile.head * group + m % group) * sight.parts() * width();
  }
  int64_t softmax_size() const { return Softmax::size(rows, width()); }
  void walk(const HeadTile& tile, const float* q, int64_t split, const Softmax& result) const {
    walk_split(*this, tile, q, split, result);
  }

  // Floats of a tile's query.
  int64_t query_floats() const { return rotated ? int8_query_floats(width()) : width(); }

  // The tile's queries, normed, rotated and scaled: [rows, width], or rounded.
  void prepare(const HeadTile& tile, float* q) const {
    struct Exact;
    const float scale = 1.0f / std::sqrt(static_cast<float>(width()));
    auto* exact = rotated ? static_cast<float*>(scratch<Exact>(width() * sizeof(float))) : nullptr;
    for (int64_t m = 0; m < tile.count * group; ++m, q += query_floats()) {
      float* to = rotated ? exact : q;
      rotary.apply(query(tile, m), norm, angles + (tile.row + m / group) * rotary.angle_size(), width(), scale, to);
      if (!rotated) continue;
      rotate(exact, width(), key_rotation(width()));
      round_query(exact, width(), q);
    }
  }

  // total = total and, after it, one more split.
  void merge(const HeadTile& tile, const Softmax& total, const Softmax& split) const {
    for (int64_t m = 0; m < tile.count * group; ++m) {
      if (split.sum[m] == 0) continue;
      const Merge merge(total.largest + m, total.sum + m, split.largest[m], split.sum[m]);
      float* values = total.values + m * width();
      for (int64_t i = 0; i < width(); i += VL)
        store(values + i, fmadd(load(values + i), merge.keep, mul(load(split.values + m * width() + i), merge.take)));
    }
  }

  void finish(const HeadTile& tile, const Softmax& total) const {
    for (int64_t m = 0; m < tile.count * group; ++m) {
      const vf inverse = splat(1.0f / total.sum[m]);
      const float *gate = query(tile, m) + width(), *values = total.values + m * width();
      float* y = out + ((tile.row + m / group) * query_heads() + tile.head * group + m % group) * width();
      for (int64_t i = 0; i < width(); i += VL) store(y + i, mul(load(values + i), inverse));
      if (rotated) rotate(y, width(), value_rotation(width()));
      for (int64_t i = 0; sight.gated && i < width(); i += VL) store(y + i, mul(load(y + i), sigmoid(load(gate + i))));
    }
  }

  // Tiles are the parallel work: right when there are many, or when nobody has more than one split.
  void run_tiles(const Context& context, const std::vector<HeadTile>& tiles) const {
    const auto count = static_cast<int64_t>(tiles.size());
    context.parallel_for(count, [&](int64_t i) {
      struct Memory;
      const int64_t q_size = rows * query_floats();
      auto* q = static_cast<float*>(scratch<Memory>((q_size + 2 * softmax_size()) * sizeof(float)));
      const Softmax total = Softmax::at(q + q_size, rows, width());
      const Softmax next = Softmax::at(q + q_size + softmax_size(), rows, width());
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
    const int64_t q_size = rows * query_floats();
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

  // Whether a row at a position sees less than all before it.
  bool selects(int64_t position) const { return groups && (position + 1) / group_size > top; }

  // Rows that see all positions from one on.
  HeadTile tile_of(const Run& run) const {
    const int64_t first = sequences.first_position(run.sequence), start = sight.first_seen(first);
    HeadTile tile{run, 0, {}, run.position + 1 - start, 1};
    if (!sight.causal) tile.seen = sequences.last_position(run.sequence) + 1 - start, tile.further = 0;
    tile.selection.tail = start;
    if (sight.window) tile.hidden = run.position - sight.window + 1 - start;
    return tile;
  }

  // A row by itself: over its list, if it has one.
  template <class Add>
  void add_row(const Run& run, Add&& add) const {
    if (!selects(run.position)) return add(tile_of(run));
    const int64_t whole = (run.position + 1) / group_size;
    const int32_t* list = groups + run.row * top;
    for (int64_t i = 0; i < top; ++i)
      if (list[i] < 0 || list[i] >= whole || (i && list[i] <= list[i - 1]))
        fail("input groups[%lld][%lld] is %d, not one of %lld groups in ascending order",
             static_cast<long long>(run.row), static_cast<long long>(i), list[i], static_cast<long long>(whole));
    const Selection selection{list, top, group_size, whole * group_size};
    add({run, 0, selection, top * group_size + run.position + 1 - selection.tail, 1});
  }

  void run(const Context& context) const {
    std::vector<HeadTile> tiles;
    int64_t all_splits = 0, most_splits = 0;
    const auto add = [&](HeadTile tile) {
      for (tile.head = 0; tile.head < cache.heads; ++tile.head) {
        tiles.push_back(tile);
        all_splits += tiles.back().splits();
        most_splits = std::max(most_splits, tiles.back().splits());
      }
    };
    for (const Run& run : sequences.runs(rows / group)) {
      if (!selects(run.position + run.count - 1)) {
        add(tile_of(run));
        continue;
      }
      for (int64_t i = 0; i < run.count; ++i) add_row({run.sequence, run.row + i, 1, run.position + i}, add);
    }
    if (most_splits <= 1 || 16 * most_splits <= all_splits)
      run_tiles(context, tiles);
    else
      run_splits(context, tiles, most_splits);
  }
};

// A node's run, but for the type of its cache.
void attend(const Context& context, const Rotary& rotary, const SightAttributes& sight, bool rotated,
            int64_t group_size, WalkSplit* walk) {
  const CacheShape cache(context.input(2), context.input(3));
  const Tensor q_gate = context.input(0), norm = context.input(1);
  const int64_t count = q_gate.dims[0], columns = q_gate.dims[1];
  const int64_t group = sight.query_group(q_gate, cache);
  rotary.check(norm, cache.width);
  const Sequences sequences(context.input(4), context.input(5), context.input(6), count, cache, true);
  const AxisPositions positions = rotary.positions(context.input(7), count);
  const Tensor out = context.output(0, {count, columns / sight.parts()}), groups = context.input(8);
  sight.check(groups);
  if (groups.rank) check_groups(groups, count, group_size, cache.page_size);

  struct Angles;
  auto* angles = static_cast<float*>(scratch<Angles>(count * rotary.angle_size() * sizeof(float)));
  const std::vector<Run> runs = sequences.runs(kAngleRows);
  context.parallel_for(static_cast<int64_t>(runs.size()), [&](int64_t i) {
    rotary.angles(runs[i], positions, angles + runs[i].row * rotary.angle_size());
  });
  const int64_t tokens = std::min(sequences.longest(), std::max(kVerifyTokens, kTargetRows / group));
  const Attention step{{cache, sequences, rotary, sight, q_gate.as<const float>(), norm.as<const float>(), angles,
                        context.input(2).data, context.input(3).data, out.as<float>(), group, tokens * group, rotated},
                       walk,
                       groups.as<int32_t>(),
                       groups.rank ? groups.dims[1] : 0,
                       group_size};
  if (count > 0) step.run(context);
}

template <class T>
struct PagedAttention : PagedAttentionSignature<T> {
  explicit PagedAttention(const KernelInfo& info) : rotary_(info), sight_(info), group_size_(info.integer("group", 0)) {
    check_cache_type<T>(info);
  }

  void compute(Context& context) const {
    attend(context, rotary_, sight_, std::is_same_v<T, Q8>, group_size_, walk_split<T>);
  }

 private:
  Rotary rotary_;
  SightAttributes sight_;
  int64_t group_size_;
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
