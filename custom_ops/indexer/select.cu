// PagedSelect on a device: blocks score groups of positions for a row, then a block for each row chooses among them.
#include "../paged_attention/heads.cuh"
#include "choice.cuh"
#include "signature.h"

namespace trigraph::TRIGRAPH_ISA {
namespace {

constexpr int kThreads = 256;
constexpr int kGroups = kThreads / kLanes;          // that a block scores at once
constexpr int kGroupsEach = 4 * kGroups;            // of a block at least: each makes the row's queries first
constexpr int kBlocksEach = 8;                      // of a multiprocessor that keep it busy
constexpr int kMostColumns = 8192;                  // of queries, which lie in shared memory
constexpr int64_t kMostScores = int64_t{16} << 20;  // that wait together
constexpr int64_t kMostTop = int64_t{1} << 20;
constexpr int64_t kMostRows = 65535;  // of a grid

// What rows choose from.
struct Groups {
  Ragged sequences;
  int size, top;  // positions of a group, and groups of a choice

  // The whole groups that end at or before a position.
  __device__ int whole(int64_t position) const {
    return static_cast<int>(static_cast<uint32_t>(position + 1) / static_cast<uint32_t>(size));
  }
};

template <class T>
struct Query {
  Rotation rotation;
  const float *q, *norm;
  const T* index;
  int heads, width;

  // Makes the queries of a row at a position, to `out` [heads, width]; the whole block calls.
  __device__ void make(int64_t row, int64_t position, float* out) const {
    const auto turn = [&](int i) { return rotation.turn(i, static_cast<int>(position)); };
    for (int h = static_cast<int>(threadIdx.x) / kWarp; h < heads; h += kThreads / kWarp)
      norm_rotate(q + (row * heads + h) * width, norm, rotation, turn, width, 1.0f, out + h * width);
    __syncthreads();
  }

  // The sum over heads of what is positive of their products with a key, by kLanes threads; the whole warp calls.
  __device__ float score(const float* query, const T* key) const {
    constexpr int kTogether = 4;  // heads
    const int lane = threadIdx.x % kLanes;
    float total = 0;
    for (int first = 0; first < heads; first += kTogether, query += kTogether * width) {
      float sum[kTogether] = {};
      for (int i = lane; i < width; i += kLanes) {
        const float x = widen(key[i]);
#pragma unroll
        for (int h = 0; h < kTogether; ++h)
          if (first + h < heads) sum[h] = fmaf(query[h * width + i], x, sum[h]);
      }
#pragma unroll
      for (int h = 0; h < kTogether; ++h) {
        const float one = lane_sum(sum[h], kLanes);
        if (first + h < heads) total += one < 0 ? 0 : one;  // NaN stays NaN
      }
    }
    return total;
  }
};

// scores[row][group]. grid: [parts of the groups, rows from `first` on].
template <class T>
__global__ void __launch_bounds__(kThreads, 4)
    score_groups(const __grid_constant__ Groups groups, const __grid_constant__ Query<T> query, int64_t first,
                 int64_t most, float* scores) {
  if (!groups.sequences.holds()) return;
  const int64_t row = first + blockIdx.y;
  const int s = groups.sequences.sequence_of(row);
  const int64_t position = groups.sequences.position_of(row, s);
  const int whole = groups.whole(position);
  if (whole <= groups.top || static_cast<int>(blockIdx.x) * kGroups >= whole) return;
  auto* own = reinterpret_cast<float*>(shared_memory());
  query.make(row, position, own);
  scores += int64_t{blockIdx.y} * most;
  const int half = static_cast<int>(threadIdx.x) / kLanes, step = static_cast<int>(gridDim.x) * kGroups;
  int bad = -1;
  for (int at = static_cast<int>(blockIdx.x) * kGroups; at < whole; at += step) {
    const int group = min(at + half, whole - 1);
    const int64_t last = int64_t{group} * groups.size + groups.size - 1;
    const float score = query.score(own, query.index + groups.sequences.entry(s, last, bad) * query.width);
    if (threadIdx.x % kLanes == 0 && at + half < whole) scores[group] = score;
  }
  if (bad >= 0) groups.sequences.tell_page(s, bad);
}

// grid: rows from `first` on.
__global__ void __launch_bounds__(kChoiceThreads, 1) choose_groups(const __grid_constant__ Groups groups, int64_t first,
                                                                   int64_t most, const float* scores, int32_t* out) {
  __shared__ Choice choice;
  if (!groups.sequences.holds()) return;
  const int64_t row = first + blockIdx.x;
  const int whole = groups.whole(groups.sequences.position_of(row, groups.sequences.sequence_of(row)));
  out += row * groups.top;
  if (whole > groups.top) return choice.run(scores + int64_t{blockIdx.x} * most, whole, groups.top, out);
  for (int i = threadIdx.x; i < groups.top; i += kChoiceThreads) out[i] = i < whole ? i : -1;
}

template <class T>
struct PagedSelect : PagedSelectSignature<T> {
  explicit PagedSelect(const KernelInfo& info)
      : rotary_(info),
        arena_(info),
        group_(info.integer("group")),
        top_(attribute_top(info)),
        blocks_(kBlocksEach * multiprocessors()) {
    if (top_ > kMostTop)
      fail("attribute top is %lld; on a GPU it is at most %lld", static_cast<long long>(top_),
           static_cast<long long>(kMostTop));
  }

  void compute(const Context& context) const {
    const Tensor q = context.input(0), norm = context.input(1), index = context.input(2);
    const CacheShape shape = index_shape(index, group_);
    const int64_t heads = query_heads(q, shape), rows = q.dims[0];
    if (q.dims[1] > kMostColumns)
      fail("input q has %lld columns; on a GPU they are at most %d", static_cast<long long>(q.dims[1]), kMostColumns);
    rotary_.check(norm, shape.width);
    const Ragged sequences(context.input(3), context.input(4), context.input(5), rows, shape, Operator::paged_select);
    auto* out = context.output(0, {rows, top_}).template as<int32_t>();
    if (!rows) return;
    if (!shape.pages) fail("input index has no pages");
    const Groups groups{sequences, static_cast<int>(group_), static_cast<int>(top_)};
    const Query<T> query{
        Rotation(rotary_, {nullptr, rows}), q.as<float>(), norm.as<float>(), index.as<T>(), static_cast<int>(heads),
        static_cast<int>(shape.width)};
    // By the width of the page table: the device alone knows the lengths.
    const int64_t most = sequences.columns * sequences.page_size / group_;
    const int64_t together = std::clamp<int64_t>(kMostScores / std::max<int64_t>(most, 1), 1, kMostRows);
    const bool any = most > top_;
    const Arena::Memory scores = arena_.take<float>(any ? std::min(together, rows) * most : 0);
    const cudaStream_t stream = stream_of(context);
    for (int64_t first = 0; first < rows; first += together) {
      const auto count = static_cast<unsigned>(std::min(together, rows - first));
      const int64_t parts = std::clamp<int64_t>(blocks_ / count, 1, blocks_of(std::max<int64_t>(most, 1), kGroupsEach));
      if (any)
        launch(score_groups<T>, dim3(static_cast<unsigned>(parts), count), kThreads,
               static_cast<size_t>(q.dims[1]) * sizeof(float), stream, groups, query, first, most, scores.as<float>());
      launch(choose_groups, count, kChoiceThreads, 0, stream, groups, first, most, scores.as<float>(), out);
    }
  }

 private:
  RotaryAttributes rotary_;
  Arena arena_;
  int64_t group_, top_, blocks_;
};

}  // namespace

const OrtCustomOp* paged_select_f16() {
  static const Op<Checked<PagedSelect<__half>>> op;
  return &op;
}
const OrtCustomOp* paged_select_f32() {
  static const Op<Checked<PagedSelect<float>>> op;
  return &op;
}

}  // namespace trigraph::TRIGRAPH_ISA
