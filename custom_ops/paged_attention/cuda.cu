// PagedAttention on a device. The cache is walked in splits of kSplit positions, each with a softmax of its own, merged
// in order: by the block that walked them when there are rows enough to fill the device, else by the last block of a
// row that is done. The arithmetic is the same, so a row's bits depend on its query and on the entries up to its
// position alone.
#include "../cuda/last_block.cuh"
#include "device.cuh"

namespace trigraph::TRIGRAPH_ISA {
namespace {

constexpr int kSplit = 256;           // positions that share one softmax
constexpr int kRows = 8;              // query heads of one row that a block takes: they share its reads
constexpr int kMostWidth = 1024;      // of a head
constexpr int64_t kFullDevice = 512;  // blocks that keep a device busy without splitting rows
constexpr int64_t kPartialBytes = int64_t{512} << 20;  // of splits that wait to be merged

struct Geometry {
  int width, kv_heads, group, stride;
  int key_rotation, value_rotation;  // 0: the cache is not rotated
  __host__ __device__ int heads() const { return kv_heads * group; }
};

// For columns i and i + 1; lanes behind the head take part.
__device__ __forceinline__ void finish(const Geometry& g, const float* q_gate, int64_t row, int head, int i,
                                       const Softmax& total, float* y) {
  const float inverse = 1.0f / total.sum;
  float2 values = {total.values.x * inverse, total.values.y * inverse};
  if (g.value_rotation) values = rotate(values, g.value_rotation);
  if (i >= g.width) return;
  const float* gate = q_gate + ((row * g.heads() + head) * 2 + 1) * g.width + i;
  float* out = y + (row * g.heads() + head) * g.width + i;
  out[0] = values.x * sigmoid(gate[0]);
  out[1] = values.y * sigmoid(gate[1]);
}

// Where splits wait: values [rows, heads, splits, width], then largest and sum [rows, heads, splits, 2].
struct Partials {
  float* memory;  // nullptr: blocks merge their own
  int64_t rows;
  int splits;
  unsigned* done;  // [rows, kv heads x parts of a group], counts splits
  __device__ int64_t index(const Geometry& g, int64_t row, int head, int split) const {
    return (row * g.heads() + head) * splits + split;
  }
  __device__ float* values(const Geometry& g, int64_t index) const { return memory + index * g.width; }
  __device__ float* scalars(const Geometry& g, int64_t index) const {
    return memory + rows * g.heads() * splits * g.width + index * 2;
  }
  __device__ Softmax read(const Geometry& g, int64_t index, int column) const {
    const float2 two = *reinterpret_cast<const float2*>(scalars(g, index));
    return {two.x, two.y, *reinterpret_cast<const float2*>(values(g, index) + column)};
  }
  __device__ void write(const Geometry& g, int64_t index, int column, const Softmax& split) const {
    *reinterpret_cast<float2*>(values(g, index) + column) = split.values;
    if (column == 0) *reinterpret_cast<float2*>(scalars(g, index)) = {split.largest, split.sum};
  }
};

struct Shared {
  float score[kRows][kSplit];
  int64_t offset[kSplit];
  float largest[kRows], sum[kRows];
};

// What a block has: query heads `head` to `head + count` of one row, which share a kv head.
struct Rows {
  int64_t row, position;
  int sequence, kv_head, head, count;

  __device__ Rows(const Ragged& sequences, const Geometry& g) : row(blockIdx.x) {
    const int parts = (g.group + kRows - 1) / kRows, part = blockIdx.y % parts;
    sequence = sequences.sequence_of(row);
    position = sequences.position_of(row, sequence);
    kv_head = blockIdx.y / parts;
    head = kv_head * g.group + part * kRows;
    count = min(kRows, g.group - part * kRows);
  }
};

// Scores of a split's `seen` positions: kLanes threads for each.
template <class T>
__device__ __forceinline__ void score_split(const Geometry& g, const float* query, int count, const T* keys, int seen,
                                            Shared& shared) {
  const int lane = threadIdx.x % kLanes;
  for (int p = threadIdx.x / kLanes; p < (seen + 1) / 2 * 2; p += blockDim.x / kLanes) {  // all lanes of a warp or none
    const T* key = keys + shared.offset[min(p, seen - 1)];
    float score[kRows] = {};
    for (int i = lane; i < g.width; i += kLanes) {
      const float value = element(key, i);
#pragma unroll
      for (int m = 0; m < kRows; ++m) {
        if (m >= count) break;
        score[m] = fmaf(query[m * g.width + i], value, score[m]);
      }
    }
#pragma unroll
    for (int m = 0; m < kRows; ++m) {
      if (m >= count) break;
      const float total = lane_sum(score[m], kLanes);
      if (lane == 0 && p < seen) shared.score[m][p] = total;
    }
  }
}

// Scores to exp(score - largest), with their largest and sum: kLanes threads for each row.
__device__ __forceinline__ void exponentiate(int count, int seen, Shared& shared) {
  const int lane = threadIdx.x % kLanes;
  for (int m = threadIdx.x / kLanes; m < (count + 1) / 2 * 2; m += blockDim.x / kLanes) {
    float* score = shared.score[m];
    const int end = m < count ? seen : 0;
    float largest = -INFINITY, sum = 0;
    for (int p = lane; p < end; p += kLanes) largest = fmaxf(largest, score[p]);
    largest = lane_max(largest, kLanes);
    for (int p = lane; p < end; p += kLanes) {
      score[p] = exp(score[p] - largest);
      sum += score[p];
    }
    sum = lane_sum(sum, kLanes);
    if (lane == 0 && m < count) shared.largest[m] = largest, shared.sum[m] = sum;
  }
}

// Adds a split to the totals of two columns of the values.
template <class T>
__device__ __forceinline__ void add_split(const T* values, int column, int count, int seen, bool first,
                                          const Shared& shared, Softmax* total) {
  float2 sums[kRows] = {};
  for (int p = 0; p < seen; ++p) {
    const float2 value = load_pair(values + shared.offset[p], column);
#pragma unroll
    for (int m = 0; m < kRows; ++m) {
      if (m >= count) break;
      const float weight = shared.score[m][p];
      sums[m].x = fmaf(weight, value.x, sums[m].x);
      sums[m].y = fmaf(weight, value.y, sums[m].y);
    }
  }
#pragma unroll
  for (int m = 0; m < kRows; ++m) {
    if (m >= count) break;
    const Softmax split{shared.largest[m], shared.sum[m], sums[m]};
    if (first)
      total[m] = split;
    else
      total[m].merge(split);
  }
}

// Queries normed, rotated and scaled, by the whole block: a warp for each head.
__device__ __forceinline__ void prepare_queries(const Rotation& rotation, const Geometry& g, const Rows& rows,
                                                const float* q_gate, const float* norm, float* query) {
  const float scale = 1.0f / sqrtf(static_cast<float>(g.width));
  for (int m = threadIdx.x / kWarp; m < rows.count; m += blockDim.x / kWarp) {
    float* own = query + m * g.width;
    norm_rotate(q_gate + (rows.row * g.heads() + rows.head + m) * 2 * g.width, norm, rotation, rows.position, g.width,
                scale, own);
    if (g.key_rotation) rotate(own, g.width, g.key_rotation);
  }
}

// The splits of a row's heads, in order, by the whole block.
__device__ __forceinline__ void merge_splits(const Geometry& g, const Partials& partials, const Rows& rows, int splits,
                                             const float* q_gate, float* y) {
  const int pairs = g.width / 2, all = rows.count * pairs;
  for (int i = threadIdx.x; i < (all + kWarp - 1) / kWarp * kWarp; i += blockDim.x) {  // whole warps
    const int own = min(i, all - 1), head = rows.head + own / pairs, column = own % pairs * 2;
    const int64_t first = partials.index(g, rows.row, head, 0);
    Softmax total = partials.read(g, first, column);
    for (int split = 1; split < splits; ++split) total.merge(partials.read(g, first + split, column));
    finish(g, q_gate, rows.row, head, i < all ? column : g.width, total, y);
  }
}

// grid: [rows, kv heads x parts of a group, splits or 1].
template <class T>
__global__ void attend(Ragged sequences, Rotation rotation, Geometry g, const float* q_gate, const float* norm,
                       const T* keys, const T* values, Partials partials, float* y) {
  __shared__ Shared shared;
  if (!sequences.holds()) return;
  float* query = reinterpret_cast<float*>(shared_memory());  // [kRows][width]
  const Rows rows(sequences, g);
  const int own_splits = static_cast<int>(rows.position / kSplit) + 1;
  const int begin = partials.memory ? static_cast<int>(blockIdx.z) : 0;
  const int end = partials.memory ? min(begin + 1, own_splits) : own_splits;
  const int thread = threadIdx.x, column = 2 * thread;
  if (begin >= end) return;

  prepare_queries(rotation, g, rows, q_gate, norm, query);
  Softmax total[kRows] = {};
  for (int split = begin; split < end; ++split) {
    const int64_t first = int64_t{split} * kSplit;
    const int seen = static_cast<int>(min(int64_t{kSplit}, rows.position + 1 - first));
    __syncthreads();
    for (int p = thread; p < seen; p += blockDim.x)
      shared.offset[p] = (sequences.entry(rows.sequence, first + p) * g.kv_heads + rows.kv_head) * g.stride;
    __syncthreads();
    score_split(g, query, rows.count, keys, seen, shared);
    __syncthreads();
    exponentiate(rows.count, seen, shared);
    __syncthreads();
    if (column < g.width) add_split(values, column, rows.count, seen, split == begin, shared, total);
  }
  const bool whole = end - begin == own_splits;
#pragma unroll
  for (int m = 0; m < kRows; ++m) {
    if (m >= rows.count) break;
    if (whole)
      finish(g, q_gate, rows.row, rows.head + m, column, total[m], y);
    else if (column < g.width)
      partials.write(g, partials.index(g, rows.row, rows.head + m, begin), column, total[m]);
  }
  if (whole || !is_last(partials.done + rows.row * gridDim.y + blockIdx.y, own_splits)) return;
  merge_splits(g, partials, rows, own_splits, q_gate, y);
}

template <class T>
struct PagedAttention : PagedAttentionSignature<T> {
  explicit PagedAttention(const KernelInfo& info) : rotary_(info), arena_(info), done_(kFullDevice) {
    check_cache_type<T>(info);
  }

  void compute(Context& context) const {
    const CacheShape cache(context.input(2), context.input(3));
    const Tensor q_gate = context.input(0), norm = context.input(1);
    const int64_t rows = q_gate.dims[0], columns = q_gate.dims[1], group = query_group(q_gate, cache);
    rotary_.check(norm, cache.width);
    if (cache.width > kMostWidth)
      fail("input key has head dimension %lld; on a GPU it is at most %d", static_cast<long long>(cache.width),
           kMostWidth);
    const Ragged sequences(context.input(4), context.input(5), context.input(6), rows, cache, true,
                           Operator::paged_attention);
    const Tensor y = context.output(0, {rows, columns / 2});
    if (!rows) return;
    constexpr bool kRotated = std::is_same_v<T, Q8>;
    const Geometry g{static_cast<int>(cache.width),
                     static_cast<int>(cache.heads),
                     static_cast<int>(group),
                     static_cast<int>(cache.stride),
                     static_cast<int>(kRotated ? key_rotation(cache.width) : 0),
                     static_cast<int>(kRotated ? value_rotation(cache.width) : 0)};
    // By the width of the page table, not by the lengths, which only the device knows.
    const int64_t splits = std::max<int64_t>(1, blocks_of(sequences.columns * cache.page_size, kSplit));
    const int64_t parts = cache.heads * blocks_of(group, kRows), floats = rows * g.heads() * splits * (cache.width + 2);
    const bool split = splits > 1 && splits <= 65535 && rows * parts < kFullDevice && floats * 4 <= kPartialBytes;
    const Arena::Memory memory = arena_.take<float>(split ? floats : 0);
    const Partials partials{split ? memory.as<float>() : nullptr, rows, static_cast<int>(splits), done_.at(0)};
    const int column_threads = static_cast<int>((cache.width / 2 + kWarp - 1) / kWarp * kWarp);
    const dim3 grid(static_cast<unsigned>(rows), static_cast<unsigned>(parts),
                    split ? static_cast<unsigned>(splits) : 1);
    launch(attend<T>, grid, std::max(kSplit, column_threads), kRows * cache.width * sizeof(float), stream_of(context),
           sequences, Rotation(rotary_), g, q_gate.as<float>(), norm.as<float>(), context.input(2).as<T>(),
           context.input(3).as<T>(), partials, y.as<float>());
  }

 private:
  RotaryAttributes rotary_;
  Arena arena_;
  Counters done_;
};

}  // namespace

const OrtCustomOp* paged_attention_f16() {
  static const Op<Checked<PagedAttention<__half>>> op;
  return &op;
}
const OrtCustomOp* paged_attention_f32() {
  static const Op<Checked<PagedAttention<float>>> op;
  return &op;
}

const OrtCustomOp* paged_attention_q8_0() {
  static const Op<Checked<PagedAttention<Q8>>> op;
  return &op;
}

}  // namespace trigraph::TRIGRAPH_ISA
