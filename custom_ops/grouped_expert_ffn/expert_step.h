// Mixture-of-experts FFN on a CPU. (token, slot) pairs are bucketed by expert, so that the rows of a chosen expert are
// read once for all its tokens; the products of a token are then summed in slot order, so its bits never depend on its
// companions. Whose threads share the work is a parameter.
#pragma once

#include <algorithm>
#include <atomic>

#include "../blocks/cpu/row_kernel.h"
#include "../kernel.h"
#include "../simd.h"

namespace trigraph::TRIGRAPH_ISA {
namespace {

constexpr int64_t kTokensAtOnce = 1024;      // a longer step runs in parts, so that scratch memory stays bounded
constexpr int64_t kPartialBytes = 16 << 20;  // of the down products that wait for their sum
constexpr int64_t kTileBytes = 1280 << 10;   // of weights in a task: memory takes a while for the first ones of each
constexpr int64_t kTileProducts = 8 << 20;   // in a task: an expert of many tokens is shared by the threads
constexpr int64_t kFewestTasks = 24;         // so that threads end at about the same time
constexpr int64_t kFewestPoolTasks = 64;     // of a Pool, where taking one costs less
constexpr int64_t kWorth = 32 << 10;         // bytes and rows; less is done before another thread has taken it
constexpr int64_t kRowStep = 32;             // tiles are whole panels of weight rows
constexpr int64_t kRowsAtOnce = 64;          // activation rows in one product

struct GatePrepared;
struct UpPrepared;
struct UpTile;
struct HiddenRows;
struct HiddenPrepared;
struct PartialRows;
struct SortedIndices;
struct SortedPairs;
struct UsedExperts;
struct Remaining;

template <class Tag, class T>
T* take(int64_t count) {
  return static_cast<T*>(scratch<Tag>(static_cast<size_t>(count) * sizeof(T)));
}

// A stack of expert matrices [experts, rows, row_bytes].
struct Matrices {
  const RowKernel* kernel = nullptr;
  const uint8_t* data = nullptr;
  int64_t rows = 0, width = 0, row_bytes = 0;

  Matrices() = default;
  Matrices(const Tensor& tensor, const RowKernel& kernel, int64_t width)
      : kernel(&kernel),
        data(tensor.as<const uint8_t>()),
        rows(tensor.dims[1]),
        width(width),
        row_bytes(check_weight(tensor, kernel, width)) {}

  void product(int64_t expert, int64_t row, int64_t n, const void* const* x, int64_t m, float* const* y) const {
    kernel->product(data + (expert * rows + row) * row_bytes, n, row_bytes, width, x, m, y);
  }
};

// The (token, slot) pairs, sorted by expert; those with a negative id are left out. A pair's sorted index is its row in
// the buffers of hidden values and down products.
struct Buckets {
  struct Expert {
    int64_t id, first, count;  // sorted indices first .. first + count
  };
  int64_t* sorted_index = nullptr;  // [tokens, k]
  int64_t* pair = nullptr;          // by sorted index
  Expert* expert = nullptr;         // those that some token chose
  int64_t used = 0, max_tokens_per_expert = 0;
  int64_t fewest_tasks;

  Buckets(const int64_t* ids, int64_t pairs, int64_t experts, int64_t fewest_tasks) : fewest_tasks(fewest_tasks) {
    sorted_index = take<SortedIndices, int64_t>(pairs);
    pair = take<SortedPairs, int64_t>(pairs);
    expert = take<UsedExperts, Expert>(experts);
    for (int64_t e = 0; e < experts; ++e) expert[e] = {e, 0, 0};
    for (int64_t i = 0; i < pairs; ++i)
      if (ids[i] >= 0) ++expert[ids[i]].count;
    for (int64_t e = 0, first = 0; e < experts; first += expert[e++].count) expert[e].first = first;
    // expert[].first serves as the cursor, and is set back below.
    for (int64_t i = 0; i < pairs; ++i)
      if (ids[i] >= 0) pair[sorted_index[i] = expert[ids[i]].first++] = i;
    for (int64_t e = 0; e < experts; ++e) {
      if (!expert[e].count) continue;
      max_tokens_per_expert = std::max(max_tokens_per_expert, expert[e].count);
      expert[used++] = {e, expert[e].first - expert[e].count, expert[e].count};
    }
  }

  // Weight rows in a task, of so many in an expert.
  int64_t tile_rows(int64_t rows, int64_t row_bytes, int64_t width) const {
    const int64_t most = std::min(kTileBytes / row_bytes, kTileProducts / (width * max_tokens_per_expert));
    const int64_t worth = std::max(int64_t{1}, rows * row_bytes * max_tokens_per_expert / kWorth);
    const int64_t spread = std::min(ceil_div(fewest_tasks, used), worth);
    const int64_t tiles = std::max(ceil_div(rows, std::max(most, kRowStep)), spread);
    return ceil_div(ceil_div(rows, tiles), kRowStep) * kRowStep;
  }
};

// Tasks that are still to be done before a common follow-up; the last one to leave does it.
struct Countdown {
  std::atomic<int64_t>* remaining;

  Countdown(int64_t groups, int64_t tasks) : remaining(take<Remaining, std::atomic<int64_t>>(groups)) {
    for (int64_t i = 0; i < groups; ++i) new (remaining + i) std::atomic<int64_t>(tasks);
  }
  bool last(int64_t group) const { return remaining[group].fetch_sub(1, std::memory_order_acq_rel) == 1; }
  // The follow-up is done, and may be looked for by threads that have done no task.
  void follow(int64_t group) const { remaining[group].store(kFollowed, std::memory_order_release); }
  bool is_followed(int64_t group) const { return remaining[group].load(std::memory_order_acquire) == kFollowed; }

 private:
  static constexpr int64_t kFollowed = -1;
};

// One call: its shapes and weights. Threads: what has parallel_for (../context.h).
template <class Threads>
struct ExpertStep {
  const Threads& threads;
  int64_t experts, k, width, ffn;
  Matrices gate, up, down;
  int64_t up_row;  // where up's rows start in an expert: gate|up may be one tensor

  // The tokens of one part of the step: a row of each for every token.
  struct Tokens {
    const float* x;
    const int64_t* ids;
    const float* weights;
    const float *shared, *shared_gate;  // of the shared expert, or nullptr
    int64_t count;
    float* y;
  };

  void run(const Tokens& all) const {
    const Buckets buckets(all.ids, all.count * k, experts, kFewestTasks);
    const Hidden hidden(*this, buckets, all.x, all.ids, all.count);
    threads.parallel_for(hidden.tasks(), [&](int64_t task) { hidden.compute(task); });
    down_and_sum(buckets, hidden.prepared, all);
  }

  // rows[i] is what pair i of a token and a slot adds to the token's sum, before its weight: of the pairs whose id is
  // not negative. Other rows stay as they are; x of a token without such pairs is not read. For a Pool, whose tasks
  // begin in order: the down products of an expert wait for its hidden rows alone.
  void products(const float* x, const int64_t* ids, int64_t tokens, float* rows) const {
    const Buckets buckets(ids, tokens * k, experts, kFewestPoolTasks);
    if (!buckets.used) return;
    const Hidden hidden(*this, buckets, x, ids, tokens);
    const int64_t tile = buckets.tile_rows(width, down.row_bytes, ffn), tiles = ceil_div(width, tile);
    threads.parallel_for(hidden.tasks() + buckets.used * tiles, [&](int64_t task) {
      if (task < hidden.tasks()) return hidden.compute(task);
      const int64_t expert = (task - hidden.tasks()) / tiles, column = (task - hidden.tasks()) % tiles * tile;
      threads.spin_until([&] { return hidden.is_ready(expert) || threads.failed(); });
      if (!hidden.is_ready(expert)) return;
      down_tile(buckets.expert[expert], hidden.prepared, column, std::min(tile, width - column),
                [&](int64_t i) { return rows + buckets.pair[i] * width + column; });
    });
  }

 private:
  // silu(gate x) * (up x) of every sorted pair, prepared for the down product: in tasks, expert after expert.
  struct Hidden {
    Hidden(const ExpertStep& step, const Buckets& buckets, const float* x, const int64_t* ids, int64_t tokens)
        : step(step),
          buckets(buckets),
          bytes(step.down.kernel->prepared_bytes(step.ffn)),
          tile(buckets.tile_rows(step.ffn, step.gate.row_bytes + step.up.row_bytes, 2 * step.width)),
          tiles(ceil_div(step.ffn, tile)),
          countdown(buckets.used, tiles) {
      gate_x = up_x = step.template prepare<GatePrepared>(*step.gate.kernel, x, ids, tokens, buckets);
      if (step.up.kernel->prepare != step.gate.kernel->prepare)
        up_x = step.template prepare<UpPrepared>(*step.up.kernel, x, ids, tokens, buckets);
      const int64_t pairs = buckets.expert[buckets.used - 1].first + buckets.expert[buckets.used - 1].count;
      rows = take<HiddenRows, float>(pairs * step.ffn);
      prepared = take<HiddenPrepared, char>(pairs * bytes);
    }
    int64_t tasks() const { return buckets.used * tiles; }
    bool is_ready(int64_t expert) const { return countdown.is_followed(expert); }
    void compute(int64_t task) const {
      const Buckets::Expert& expert = buckets.expert[task / tiles];
      const int64_t row = task % tiles * tile, n = std::min(tile, step.ffn - row), end = expert.first + expert.count;
      for (int64_t i = expert.first; i < end; i += kRowsAtOnce) {
        const int64_t m = std::min(kRowsAtOnce, end - i);
        auto* up_tile = take<UpTile, float>(m * tile);
        float *g[kRowsAtOnce], *u[kRowsAtOnce];
        for (int64_t j = 0; j < m; ++j) {
          g[j] = rows + (i + j) * step.ffn + row;
          u[j] = up_tile + j * tile;
        }
        step.gate.product(expert.id, row, n, gate_x + i, m, g);
        step.up.product(expert.id, step.up_row + row, n, up_x + i, m, u);
        for (int64_t j = 0; j < m; ++j)
          for (int64_t c = 0; c < n; c += VL)
            store_first(g[j] + c, mul(silu(load_first(g[j] + c, n - c)), load_first(u[j] + c, n - c)), n - c);
      }
      if (!countdown.last(task / tiles)) return;
      for (int64_t i = expert.first; i < end; ++i)
        step.down.kernel->prepare(rows + i * step.ffn, step.ffn, prepared + i * bytes);
      countdown.follow(task / tiles);
    }

    const ExpertStep& step;
    const Buckets& buckets;
    int64_t bytes, tile, tiles;
    Countdown countdown;
    const void *const *gate_x, *const *up_x;
    float* rows;
    char* prepared;
  };

  // Prepares each token's row once. Returns a pointer to it for every sorted pair.
  template <class Tag>
  const void** prepare(const RowKernel& kernel, const float* x, const int64_t* ids, int64_t tokens,
                       const Buckets& buckets) const {
    constexpr int64_t kTokens = 4;  // in a task: one row alone is not worth a thread
    const int64_t bytes = kernel.prepared_bytes(width);
    char* rows = take<Tag, char>(tokens * (bytes + k * static_cast<int64_t>(sizeof(void*))));
    auto** pointers = reinterpret_cast<const void**>(rows + tokens * bytes);
    threads.parallel_for(ceil_div(tokens, kTokens), [&](int64_t task) {
      for (int64_t t = task * kTokens; t < std::min(tokens, (task + 1) * kTokens); ++t) {
        const int64_t *id = ids + t * k, *index = buckets.sorted_index + t * k;
        if (std::all_of(id, id + k, [](int64_t i) { return i < 0; })) continue;
        kernel.prepare(x + t * width, width, rows + t * bytes);
        for (int64_t j = 0; j < k; ++j)
          if (id[j] >= 0) pointers[index[j]] = rows + t * bytes;
      }
    });
    return pointers;
  }

  // y[t] = sum over slots j, in order, of weights[t, j] * down h[t, j], then the shared expert. Wide steps run some
  // columns at a time.
  void down_and_sum(const Buckets& buckets, const char* prepared, const Tokens& all) const {
    const int64_t pairs = all.count * k, tile = buckets.tile_rows(width, down.row_bytes, ffn);
    const int64_t fitting = kPartialBytes / (pairs * static_cast<int64_t>(sizeof(float)));
    const int64_t columns = std::min(ceil_div(width, tile), std::max(int64_t{1}, fitting / tile)) * tile;
    float* partial = take<PartialRows, float>(pairs * columns);
    for (int64_t start = 0; start < width; start += columns) {
      const int64_t end = std::min(width, start + columns), tiles = ceil_div(end - start, tile);
      Countdown countdown(tiles, buckets.used);
      threads.parallel_for(tiles * buckets.used, [&](int64_t task) {
        const int64_t column = start + task / buckets.used * tile, n = std::min(tile, end - column);
        down_tile(buckets.expert[task % buckets.used], prepared, column, n,
                  [&](int64_t i) { return partial + i * columns + column - start; });
        if (countdown.last(task / buckets.used))
          for (int64_t t = 0; t < all.count; ++t)
            sum(partial + column - start, columns, buckets.sorted_index + t * k, all, t, column, n);
      });
    }
  }

  // Columns [column, column + n) of an expert's down products; row_of(i) is where those of sorted pair i go.
  template <class RowOf>
  void down_tile(const Buckets::Expert& expert, const char* prepared, int64_t column, int64_t n, RowOf row_of) const {
    const int64_t bytes = down.kernel->prepared_bytes(ffn), end = expert.first + expert.count;
    for (int64_t i = expert.first; i < end; i += kRowsAtOnce) {
      const int64_t m = std::min(kRowsAtOnce, end - i);
      const void* h[kRowsAtOnce];
      float* p[kRowsAtOnce];
      for (int64_t j = 0; j < m; ++j) h[j] = prepared + (i + j) * bytes, p[j] = row_of(i + j);
      down.product(expert.id, column, n, h, m, p);
    }
  }

  // Columns [column, column + n) of token t.
  void sum(const float* partial, int64_t stride, const int64_t* sorted_index, const Tokens& all, int64_t t,
           int64_t column, int64_t n) const {
    const float* weight = all.weights + t * k;
    const vf shared_weight = all.shared ? sigmoid(splat(all.shared_gate[t])) : zero();
    for (int64_t c = 0; c < n; c += VL) {
      vf total = zero();
      for (int64_t j = 0; j < k; ++j)
        total = fmadd(splat(weight[j]), load_first(partial + sorted_index[j] * stride + c, n - c), total);
      const int64_t at = t * width + column + c;
      if (all.shared) total = fmadd(shared_weight, load_first(all.shared + at, n - c), total);
      store_first(all.y + at, total, n - c);
    }
  }
};

}  // namespace
}  // namespace trigraph::TRIGRAPH_ISA
