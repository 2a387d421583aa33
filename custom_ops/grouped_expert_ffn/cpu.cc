// Mixture-of-experts FFN. (token, slot) pairs are bucketed by expert, so that the rows of a chosen expert are read once
// for all its tokens; the products of a token are then summed in slot order, so its bits never depend on its
// companions.
#include <algorithm>
#include <atomic>
#include <tuple>

#include "../blocks/cpu/row_kernel.h"
#include "../kernel.h"
#include "../simd.h"
#include "signature.h"

namespace trigraph::TRIGRAPH_ISA {
namespace {

constexpr int64_t kTokensAtOnce = 1024;      // a longer step runs in parts, so that scratch memory stays bounded
constexpr int64_t kPartialBytes = 16 << 20;  // of the down products that wait for their sum
constexpr int64_t kTileBytes = 1280 << 10;   // of weights in a task: memory takes a while for the first ones of each
constexpr int64_t kTileProducts = 8 << 20;   // in a task: an expert of many tokens is shared by the threads
constexpr int64_t kFewestTasks = 24;         // so that threads end at about the same time
constexpr int64_t kWorth = 32 << 10;         // bytes and rows; less is done before another thread has taken it
constexpr int64_t kRowStep = 16;             // tiles are whole groups of weight rows
constexpr int64_t kRowsAtOnce = 64;          // activation rows in one product

struct GatePrepared;
struct UpPrepared;
struct UpTile;
struct HiddenRows;
struct HiddenPrepared;
struct PartialRows;
struct SortedIndices;
struct UsedExperts;
struct Remaining;

template <class Tag, class T>
T* take(int64_t count) {
  return static_cast<T*>(scratch<Tag>(static_cast<size_t>(count) * sizeof(T)));
}

long long ll(int64_t value) { return value; }

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

// The (token, slot) pairs, sorted by expert. A pair's sorted index is its row in the buffers of hidden values and down
// products.
struct Buckets {
  struct Expert {
    int64_t id, first, count;  // sorted indices first .. first + count
  };
  int64_t* sorted_index = nullptr;  // [tokens, k]
  Expert* expert = nullptr;         // those that some token chose
  int64_t used = 0, max_tokens_per_expert = 0;

  Buckets(const int64_t* ids, int64_t pairs, int64_t experts) {
    sorted_index = take<SortedIndices, int64_t>(pairs);
    expert = take<UsedExperts, Expert>(experts);
    for (int64_t e = 0; e < experts; ++e) expert[e] = {e, 0, 0};
    for (int64_t i = 0; i < pairs; ++i) ++expert[ids[i]].count;
    for (int64_t e = 0, first = 0; e < experts; first += expert[e++].count) expert[e].first = first;
    // expert[].first serves as the cursor, and is set back below.
    for (int64_t i = 0; i < pairs; ++i) sorted_index[i] = expert[ids[i]].first++;
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
    const int64_t spread = std::min(ceil_div(kFewestTasks, used), worth);
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
};

// One call: its shapes and weights.
struct ExpertStep {
  const Context& context;
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
    const auto [x, ids, tokens] = std::tuple(all.x, all.ids, all.count);
    Buckets buckets(ids, tokens * k, experts);
    const void** gate_x = prepare<GatePrepared>(*gate.kernel, x, tokens, buckets);
    const void** up_x = gate_x;
    if (up.kernel->prepare != gate.kernel->prepare) up_x = prepare<UpPrepared>(*up.kernel, x, tokens, buckets);
    down_and_sum(buckets, gate_and_up(buckets, gate_x, up_x), all);
  }

  // Prepares each token's row once. Returns a pointer to it for every sorted pair.
  template <class Tag>
  const void** prepare(const RowKernel& kernel, const float* x, int64_t tokens, const Buckets& buckets) const {
    constexpr int64_t kTokens = 4;  // in a task: one row alone is not worth a thread
    const int64_t bytes = kernel.prepared_bytes(width);
    char* rows = take<Tag, char>(tokens * (bytes + k * static_cast<int64_t>(sizeof(void*))));
    auto** pointers = reinterpret_cast<const void**>(rows + tokens * bytes);
    context.parallel_for(ceil_div(tokens, kTokens), [&](int64_t task) {
      for (int64_t t = task * kTokens; t < std::min(tokens, (task + 1) * kTokens); ++t) {
        kernel.prepare(x + t * width, width, rows + t * bytes);
        for (int64_t j = 0; j < k; ++j) pointers[buckets.sorted_index[t * k + j]] = rows + t * bytes;
      }
    });
    return pointers;
  }

  // silu(gate x) * (up x) of every sorted pair, prepared for the down product.
  const char* gate_and_up(const Buckets& buckets, const void* const* gate_x, const void* const* up_x) const {
    const int64_t pairs = buckets.expert[buckets.used - 1].first + buckets.expert[buckets.used - 1].count;
    const int64_t bytes = down.kernel->prepared_bytes(ffn);
    float* hidden = take<HiddenRows, float>(pairs * ffn);
    char* prepared = take<HiddenPrepared, char>(pairs * bytes);
    const int64_t tile = buckets.tile_rows(ffn, gate.row_bytes + up.row_bytes, 2 * width);
    const int64_t tiles = ceil_div(ffn, tile);
    Countdown countdown(buckets.used, tiles);
    context.parallel_for(buckets.used * tiles, [&](int64_t task) {
      const Buckets::Expert& expert = buckets.expert[task / tiles];
      const int64_t row = task % tiles * tile, n = std::min(tile, ffn - row);
      for (int64_t i = expert.first; i < expert.first + expert.count; i += kRowsAtOnce) {
        const int64_t m = std::min(kRowsAtOnce, expert.first + expert.count - i);
        auto* up_tile = take<UpTile, float>(m * tile);
        float *g[kRowsAtOnce], *u[kRowsAtOnce];
        for (int64_t j = 0; j < m; ++j) {
          g[j] = hidden + (i + j) * ffn + row;
          u[j] = up_tile + j * tile;
        }
        gate.product(expert.id, row, n, gate_x + i, m, g);
        up.product(expert.id, up_row + row, n, up_x + i, m, u);
        for (int64_t j = 0; j < m; ++j)
          for (int64_t c = 0; c < n; c += VL)
            store_first(g[j] + c, mul(silu(load_first(g[j] + c, n - c)), load_first(u[j] + c, n - c)), n - c);
      }
      if (countdown.last(task / tiles))
        for (int64_t i = expert.first; i < expert.first + expert.count; ++i)
          down.kernel->prepare(hidden + i * ffn, ffn, prepared + i * bytes);
    });
    return prepared;
  }

  // y[t] = sum over slots j, in order, of weights[t, j] * down h[t, j], then the shared expert. Wide steps run some
  // columns at a time.
  void down_and_sum(const Buckets& buckets, const char* prepared, const Tokens& all) const {
    const int64_t bytes = down.kernel->prepared_bytes(ffn), pairs = all.count * k;
    const int64_t tile = buckets.tile_rows(width, down.row_bytes, ffn);
    const int64_t fitting = kPartialBytes / (pairs * static_cast<int64_t>(sizeof(float)));
    const int64_t columns = std::min(ceil_div(width, tile), std::max(int64_t{1}, fitting / tile)) * tile;
    float* partial = take<PartialRows, float>(pairs * columns);
    for (int64_t start = 0; start < width; start += columns) {
      const int64_t end = std::min(width, start + columns), tiles = ceil_div(end - start, tile);
      Countdown countdown(tiles, buckets.used);
      context.parallel_for(tiles * buckets.used, [&](int64_t task) {
        const Buckets::Expert& expert = buckets.expert[task % buckets.used];
        const int64_t column = start + task / buckets.used * tile, n = std::min(tile, end - column);
        for (int64_t i = expert.first; i < expert.first + expert.count; i += kRowsAtOnce) {
          const int64_t m = std::min(kRowsAtOnce, expert.first + expert.count - i);
          const void* h[kRowsAtOnce];
          float* p[kRowsAtOnce];
          for (int64_t j = 0; j < m; ++j) {
            h[j] = prepared + (i + j) * bytes;
            p[j] = partial + (i + j) * columns + column - start;
          }
          down.product(expert.id, column, n, h, m, p);
        }
        if (countdown.last(task / buckets.used))
          for (int64_t t = 0; t < all.count; ++t)
            sum(partial + column - start, columns, buckets.sorted_index + t * k, all, t, column, n);
      });
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

struct GroupedExpertFFN : GroupedExpertFFNSignature {
  explicit GroupedExpertFFN(const KernelInfo& info) {
    const std::string activations = info.text("activations", "float32"), up_type = info.text("up_type", "");
    gate_ = &row_kernel(info.text("gate_type"), activations);
    if (!up_type.empty()) up_ = &row_kernel(up_type, activations);
    down_ = &row_kernel(info.text("down_type"), activations);
  }

  void compute(const Context& context) const {
    const ExpertShapes shapes = GroupedExpertFFNSignature::shapes(context, up_ != nullptr);
    const Tensor x = context.input(0), ids = context.input(1), weights = context.input(2);
    const Matrices gates(context.input(3), *gate_, shapes.width);
    const ExpertStep step{context,
                          shapes.experts,
                          shapes.k,
                          shapes.width,
                          shapes.ffn,
                          gates,
                          shapes.fused ? gates : Matrices(context.input(5), *up_, shapes.width),
                          Matrices(context.input(4), *down_, shapes.ffn),
                          shapes.fused ? shapes.ffn : 0};
    if (shapes.ffn % gates.kernel->rows)
      fail("input gate has %lld rows an expert, expected a multiple of %lld for type %s", ll(gates.rows),
           ll(2 * gates.kernel->rows), gates.kernel->type);
    check_ids(ids, shapes.experts);
    const Tensor shared = context.input(6), shared_gate = context.input(7);
    const int64_t tokens = shapes.tokens, width = shapes.width, k = shapes.k;
    float* y = context.output(0, {tokens, width}).as<float>();
    for (int64_t t = 0; t < tokens; t += kTokensAtOnce)
      step.run({x.as<float>() + t * width, ids.as<int64_t>() + t * k, weights.as<float>() + t * k,
                shared.rank ? shared.as<float>() + t * width : nullptr,
                shared.rank ? shared_gate.as<float>() + t : nullptr, std::min(kTokensAtOnce, tokens - t),
                y + t * width});
  }

 private:
  static void check_ids(const Tensor& ids, int64_t experts) {
    const int64_t k = ids.dims[1];
    const int64_t* id = ids.as<int64_t>();
    for (int64_t i = 0; i < ids.dims[0] * k; ++i)
      if (id[i] < 0 || id[i] >= experts)
        fail("input ids holds expert %lld at token %lld, slot %lld: input gate has %lld experts", ll(id[i]), ll(i / k),
             ll(i % k), ll(experts));
  }

  const RowKernel* gate_;
  const RowKernel* up_ = nullptr;  // nullptr: gate holds gate|up
  const RowKernel* down_;
};

}  // namespace

const OrtCustomOp* grouped_expert_ffn() {
  static const Op<GroupedExpertFFN> op;
  return &op;
}

}  // namespace trigraph::TRIGRAPH_ISA
