// PagedIndexWrite: the indexer's keys of a step's tokens into their pages. PagedSelect: which groups each row sees.
#include <algorithm>
#include <cstring>
#include <vector>

#include "../paged_attention/ragged.h"
#include "../paged_attention/rotary.h"
#include "choice.h"
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
    const int64_t rows = q.dims[0];
    query_heads(q, shape);
    rotary_.check(norm, shape.width);
    const Sequences sequences(context.input(3), context.input(4), context.input(5), rows, shape, true);
    int32_t* out = context.output(0, {rows, top_}).template as<int32_t>();
    constexpr int64_t kScores = int64_t{1} << 22;  // that wait together
    std::vector<Block> waiting;
    int64_t count = 0, most = 0;  // rows that wait, and the groups of the last one
    for (Run run : sequences.runs(kBlockRows)) {
      for (; run.count && whole_groups(run) <= top_; ++run.row, ++run.position, --run.count)
        for (int64_t i = 0; i < top_; ++i)
          out[run.row * top_ + i] = i < whole_groups(run) ? static_cast<int32_t>(i) : -1;
      if (!run.count) continue;
      const int64_t whole = whole_groups(run, run.count - 1);
      if (count && (count + run.count) * std::max(most, whole) > kScores) {
        choose(context, q, norm, index, shape, sequences, waiting, count, most, out);
        waiting.clear(), count = most = 0;
      }
      waiting.push_back({run, count});
      count += run.count;
      most = std::max(most, whole);
    }
    if (count) choose(context, q, norm, index, shape, sequences, waiting, count, most, out);
  }

 private:
  static constexpr int64_t kBlockRows = 8;

  struct Block : Run {
    int64_t first;  // of the rows that wait
  };

  int64_t whole_groups(const Run& run, int64_t row = 0) const { return (run.position + row + 1) / group_; }

  void choose(const Context& context, const Tensor& q, const Tensor& norm, const Tensor& index, const CacheShape& shape,
              const Sequences& sequences, const std::vector<Block>& blocks, int64_t count, int64_t most,
              int32_t* out) const {
    struct Memory;
    const int64_t query = q.dims[1], heads = query / shape.width, parts = (most + kSplit - 1) / kSplit;
    const auto block_count = static_cast<int64_t>(blocks.size());
    auto* queries = static_cast<float*>(scratch<Memory>(count * (query + most) * sizeof(float)));
    float* scores = queries + count * query;
    context.parallel_for(block_count, [&](int64_t i) {
      struct Angles;
      const Block& block = blocks[i];
      auto* angles = static_cast<float*>(scratch<Angles>(block.count * rotary_.angle_size() * sizeof(float)));
      rotary_.angles(block, {nullptr, q.dims[0]}, angles);
      for (int64_t row = 0; row < block.count; ++row)
        for (int64_t c = 0; c < query; c += shape.width)
          rotary_.apply(q.as<float>() + (block.row + row) * query + c, norm.as<float>(),
                        angles + row * rotary_.angle_size(), shape.width, 1.0f,
                        queries + (block.first + row) * query + c);
    });
    context.parallel_for(block_count * parts, [&](int64_t task) {
      struct Products;
      const Block& block = blocks[task / parts];
      const int64_t first = task % parts * kSplit, all = whole_groups(block, block.count - 1) - first;
      if (all <= 0) return;
      const T* keys[kSplit + kAhead];
      for (int64_t i = 0; i < kSplit + kAhead; ++i)
        keys[i] = index.as<const T>() +
                  sequences.entry(block.sequence, (first + std::min(i, all - 1)) * group_ + group_ - 1) * shape.width;
      score_keys(queries + block.first * query, block.count, heads, keys, std::min(all, kSplit), shape.width,
                 static_cast<float*>(scratch<Products>(kBlockRows * heads * kSplit * sizeof(float))),
                 scores + block.first * most + first, most);
    });
    context.parallel_for(block_count * kBlockRows, [&](int64_t task) {
      const Block& block = blocks[task / kBlockRows];
      const int64_t i = task % kBlockRows;
      if (i < block.count)
        choose_largest(scores + (block.first + i) * most, whole_groups(block, i), top_, out + (block.row + i) * top_);
    });
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
