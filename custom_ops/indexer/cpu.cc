// PagedIndexWrite: the indexer's keys of a step's tokens into their pages. PagedSelect: which groups each row sees.
#include <algorithm>
#include <cstring>
#include <vector>

#include "../paged_attention/entry.h"
#include "../paged_attention/ragged.h"
#include "../paged_attention/rotary.h"
#include "keys.h"
#include "signature.h"

namespace trigraph::TRIGRAPH_ISA {
namespace {

constexpr int64_t kRowsPerTask = 16;

template <class T>
class PagedIndexWrite : public PagedIndexWriteSignature<T> {
 public:
  explicit PagedIndexWrite(const KernelInfo& info) : rotary_(info), group_(info.integer("group")) {}

  void compute(Context& context) const {
    const Tensor k = context.input(0), norm = context.input(1), past = context.input(2);
    const CacheShape shape = index_shape(past, group_);
    k.expect({-1, shape.width});
    rotary_.check(norm, shape.width);
    const Sequences sequences(context.input(3), context.input(4), context.input(5), k.dims[0], shape, false);
    T* index = context.output_like(0, past).template as<T>();
    copy_other(context, shape, past.as<const T>(), index);
    const std::vector<Run> runs = sequences.runs(kRowsPerTask);
    const int32_t* past_lens = context.input(4).as<int32_t>();
    context.parallel_for(static_cast<int64_t>(runs.size()), [&](int64_t task) {
      struct Memory;
      const Run& run = runs[task];
      auto* pooled = static_cast<float*>(scratch<Memory>((2 * shape.width + rotary_.angle_size()) * sizeof(float)));
      for (int64_t i = 0; i < run.count; ++i) {
        const float* own = k.as<float>() + (run.row + i) * shape.width;
        const int64_t position = run.position + i, first = position / group_ * group_;
        T* to = index + sequences.entry(run.sequence, position) * shape.width;
        if (position < first + group_ - 1) {
          for (int64_t c = 0; c < shape.width; c += VL) store_key(to + c, load(own + c));
          continue;
        }
        const int64_t in_step = position - past_lens[run.sequence];  // rows of the step before this one
        const auto earlier = [&](int64_t n, int64_t c, T* memory) -> const T* {
          if (n > in_step) return index + sequences.entry(run.sequence, position - n) * shape.width + c;
          store_key(memory, load(own - n * shape.width + c));
          return memory;
        };
        pool_keys<T>(own, group_, shape.width, earlier, pooled);
        float *key = pooled + shape.width, *angles = key + shape.width;
        rotary_.angles({run.sequence, run.row + i, 1, first}, {nullptr, 1}, angles);
        rotary_.apply(pooled, norm.as<float>(), angles, shape.width, 1.0f, key);
        for (int64_t c = 0; c < shape.width; c += VL) store_key(to + c, load(key + c));
      }
    });
  }

 private:
  static void copy_other(const Context& context, const CacheShape& shape, const T* past, T* index) {
    if (past == index) return;
    const int64_t page = shape.page_size * shape.width;
    context.parallel_for(shape.pages,
                         [&](int64_t i) { std::memcpy(index + i * page, past + i * page, page * sizeof(T)); });
  }

  Rotary rotary_;
  int64_t group_;
};

template <class T>
class PagedSelect : public PagedSelectSignature<T> {
 public:
  explicit PagedSelect(const KernelInfo& info)
      : rotary_(info), group_(info.integer("group")), top_(attribute_top(info)) {}

  void compute(Context& context) const {
    const Tensor q = context.input(0), norm = context.input(1), index = context.input(2);
    const CacheShape shape = index_shape(index, group_);
    const int64_t heads = query_heads(q, shape), rows = q.dims[0];
    rotary_.check(norm, shape.width);
    const Sequences sequences(context.input(3), context.input(4), context.input(5), rows, shape, true);
    int32_t* out = context.output(0, {rows, top_}).template as<int32_t>();
    constexpr int64_t kScores = int64_t{1} << 22;  // that wait together
    std::vector<Run> waiting;
    int64_t most = 0;
    for (const Run& run : sequences.runs(1)) {
      const int64_t whole = (run.position + 1) / group_;
      if (whole <= top_) {
        for (int64_t i = 0; i < top_; ++i) out[run.row * top_ + i] = i < whole ? static_cast<int32_t>(i) : -1;
        continue;
      }
      if (!waiting.empty() && (static_cast<int64_t>(waiting.size()) + 1) * std::max(most, whole) > kScores) {
        choose(context, q, norm, index, shape, sequences, waiting, heads, most, out);
        waiting.clear(), most = 0;
      }
      waiting.push_back(run);
      most = std::max(most, whole);
    }
    if (!waiting.empty()) choose(context, q, norm, index, shape, sequences, waiting, heads, most, out);
  }

 private:
  void choose(const Context& context, const Tensor& q, const Tensor& norm, const Tensor& index, const CacheShape& shape,
              const Sequences& sequences, const std::vector<Run>& rows, int64_t heads, int64_t most,
              int32_t* out) const {
    struct Memory;
    constexpr int64_t kGroups = 512;  // of a task
    const auto count = static_cast<int64_t>(rows.size());
    const int64_t query = heads * shape.width, parts = (most + kGroups - 1) / kGroups;
    auto* queries = static_cast<float*>(scratch<Memory>(count * (query + most) * sizeof(float)));
    float* scores = queries + count * query;
    context.parallel_for(count, [&](int64_t r) {
      struct Angles;
      auto* angles = static_cast<float*>(scratch<Angles>(rotary_.angle_size() * sizeof(float)));
      rotary_.angles(rows[r], {nullptr, 1}, angles);
      for (int64_t h = 0; h < heads; ++h)
        rotary_.apply(q.as<float>() + rows[r].row * query + h * shape.width, norm.as<float>(), angles, shape.width,
                      1.0f, queries + r * query + h * shape.width);
    });
    context.parallel_for(count * parts, [&](int64_t task) {
      const int64_t r = task / parts, first = task % parts * kGroups;
      const int64_t end = std::min(first + kGroups, (rows[r].position + 1) / group_);
      for (int64_t g = first; g < end; ++g) {
        const int64_t entry = sequences.entry(rows[r].sequence, g * group_ + group_ - 1);
        scores[r * most + g] =
            score_key(queries + r * query, index.as<const T>() + entry * shape.width, heads, shape.width);
      }
    });
    context.parallel_for(
        count, [&](int64_t r) { best(scores + r * most, (rows[r].position + 1) / group_, out + rows[r].row * top_); });
  }

  // The groups of the largest scores, ascending; of equal ones the first, NaN last.
  void best(const float* scores, int64_t count, int32_t* out) const {
    std::vector<int32_t> order(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) order[i] = static_cast<int32_t>(i);
    const auto before = [scores](int32_t a, int32_t b) {
      const float x = scores[a], y = scores[b];
      if (x != x || y != y) return x == x || (y != y && a < b);
      return x > y || (x == y && a < b);
    };
    std::nth_element(order.begin(), order.begin() + top_, order.end(), before);
    std::sort(order.begin(), order.begin() + top_);
    std::copy(order.begin(), order.begin() + top_, out);
  }

  Rotary rotary_;
  int64_t group_, top_;
};

}  // namespace

const OrtCustomOp* paged_index_write_f16() {
  static const Op<PagedIndexWrite<uint16_t>> op;
  return &op;
}
const OrtCustomOp* paged_index_write_f32() {
  static const Op<PagedIndexWrite<float>> op;
  return &op;
}
const OrtCustomOp* paged_select_f16() {
  static const Op<PagedSelect<uint16_t>> op;
  return &op;
}
const OrtCustomOp* paged_select_f32() {
  static const Op<PagedSelect<float>> op;
  return &op;
}

}  // namespace trigraph::TRIGRAPH_ISA
