// PagedAttention on a device. The cache is walked in splits of kSplit positions, each with a softmax of its own, merged
// in order: by the block that walked them when there are rows enough to fill the device, else by a launch of its own.
// The arithmetic is the same, so a row's bits depend on its query and on the entries up to its position alone.
#include "device.cuh"

namespace trigraph::TRIGRAPH_ISA {
namespace {

constexpr int kSplit = 256;           // positions that share one softmax
constexpr int kRows = 8;              // query heads of one row that a block takes: they share its reads
constexpr int kMostWidth = 1024;      // of a head
constexpr int64_t kFullDevice = 512;  // blocks that keep a device busy without splitting rows
constexpr int64_t kPartialBytes = int64_t{512} << 20;  // of splits that wait to be merged
constexpr int kQueryWarps = 8;

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

// Queries normed, rotated and scaled: [rows, heads, width]; a block for each row.
__global__ void __launch_bounds__(kQueryWarps* kWarp)
    prepare_queries(Ragged sequences, Rotation rotation, Geometry g, const float* q_gate, const float* norm,
                    float* queries, int* verdict) {
  const bool holds = sequences.holds();
  if (threadIdx.x == 0 && blockIdx.x == 0) *verdict = holds;
  if (!holds) return;
  const int64_t row = blockIdx.x, position = sequences.position_of(row, sequences.sequence_of(row));
  const float scale = 1.0f / sqrtf(static_cast<float>(g.width));
  float* shared = reinterpret_cast<float*>(shared_memory()) + threadIdx.x / kWarp * g.width;
  for (int head = threadIdx.x / kWarp; head < g.heads(); head += kQueryWarps) {
    norm_rotate(q_gate + (row * g.heads() + head) * 2 * g.width, norm, rotation, position, g.width, scale, shared);
    if (g.key_rotation) rotate(shared, g.width, g.key_rotation);
    for (int i = threadIdx.x % kWarp; i < g.width; i += kWarp)
      queries[(row * g.heads() + head) * g.width + i] = shared[i];
    __syncwarp();
  }
}

// Where splits wait: values [rows, heads, splits, width], then largest and sum [rows, heads, splits, 2].
struct Partials {
  float* memory;  // nullptr: blocks merge their own
  int64_t rows;
  int splits;
  __device__ int64_t index(const Geometry& g, int64_t row, int head, int split) const {
    return (row * g.heads() + head) * splits + split;
  }
  __device__ float* values(const Geometry& g, int64_t index) const { return memory + index * g.width; }
  __device__ float* scalars(const Geometry& g, int64_t index) const {
    return memory + rows * g.heads() * splits * g.width + index * 2;
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

// grid: [rows, kv heads x parts of a group, splits or 1].
template <class T>
__global__ void attend(Ragged sequences, Geometry g, const float* queries, const float* q_gate, const T* keys,
                       const T* values, Partials partials, float* y, const int* verdict) {
  __shared__ Shared shared;
  if (!*verdict) return;
  float* query = reinterpret_cast<float*>(shared_memory());  // [kRows][width]
  const Rows rows(sequences, g);
  const int own_splits = static_cast<int>(rows.position / kSplit) + 1;
  const int begin = partials.memory ? static_cast<int>(blockIdx.z) : 0;
  const int end = partials.memory ? min(begin + 1, own_splits) : own_splits;
  const int thread = threadIdx.x, column = 2 * thread;
  if (begin >= end) return;

  for (int i = thread; i < rows.count * g.width; i += blockDim.x)
    query[i] = queries[(rows.row * g.heads() + rows.head) * g.width + i];
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
#pragma unroll
  for (int m = 0; m < kRows; ++m) {
    if (m >= rows.count) break;
    if (!partials.memory) {
      finish(g, q_gate, rows.row, rows.head + m, column, total[m], y);
      continue;
    }
    if (column >= g.width) break;
    const int64_t index = partials.index(g, rows.row, rows.head + m, begin);
    *reinterpret_cast<float2*>(partials.values(g, index) + column) = total[m].values;
    if (column == 0) *reinterpret_cast<float2*>(partials.scalars(g, index)) = {total[m].largest, total[m].sum};
  }
}

// grid: [rows, heads].
__global__ void merge_splits(Ragged sequences, Geometry g, Partials partials, const float* q_gate, float* y,
                             const int* verdict) {
  const int column = 2 * threadIdx.x, head = blockIdx.y;
  if (!*verdict) return;
  const int64_t row = blockIdx.x, position = sequences.position_of(row, sequences.sequence_of(row));
  const auto partial = [&](int split) -> Softmax {
    if (column >= g.width) return {};
    const int64_t index = partials.index(g, row, head, split);
    const float2 scalars = *reinterpret_cast<const float2*>(partials.scalars(g, index));
    return {scalars.x, scalars.y, *reinterpret_cast<const float2*>(partials.values(g, index) + column)};
  };
  Softmax total = partial(0);
  for (int split = 1; split <= position / kSplit; ++split) total.merge(partial(split));
  finish(g, q_gate, row, head, column, total, y);
}

template <class T>
struct PagedAttention : PagedAttentionSignature<T> {
  explicit PagedAttention(const KernelInfo& info) : rotary_(info), arena_(info) { check_cache_type<T>(info); }

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
    const cudaStream_t stream = stream_of(context);
    constexpr bool kRotated = std::is_same_v<T, Q8>;
    const Geometry g{static_cast<int>(cache.width),
                     static_cast<int>(cache.heads),
                     static_cast<int>(group),
                     static_cast<int>(cache.stride),
                     static_cast<int>(kRotated ? key_rotation(cache.width) : 0),
                     static_cast<int>(kRotated ? value_rotation(cache.width) : 0)};
    const Arena::Memory queries = arena_.take<float>(rows * columns / 2), verdict = arena_.take<int>(1);
    const size_t width_bytes = cache.width * sizeof(float);
    const auto row_count = static_cast<unsigned>(rows);
    launch(prepare_queries, row_count, kQueryWarps * kWarp, kQueryWarps * width_bytes, stream, sequences,
           Rotation(rotary_), g, q_gate.as<float>(), norm.as<float>(), queries.as<float>(), verdict.as<int>());

    // By the width of the page table, not by the lengths, which only the device knows.
    const int64_t splits = std::max<int64_t>(1, blocks_of(sequences.columns * cache.page_size, kSplit));
    const int64_t parts = cache.heads * blocks_of(group, kRows), floats = rows * g.heads() * splits * (cache.width + 2);
    const bool split = splits > 1 && splits <= 65535 && rows * parts < kFullDevice && floats * 4 <= kPartialBytes;
    const Arena::Memory memory = arena_.take<float>(split ? floats : 0);
    const Partials partials{split ? memory.as<float>() : nullptr, rows, static_cast<int>(splits)};
    const int column_threads = static_cast<int>((cache.width / 2 + kWarp - 1) / kWarp * kWarp);
    const dim3 grid(row_count, static_cast<unsigned>(parts), split ? static_cast<unsigned>(splits) : 1);
    launch(attend<T>, grid, std::max(kSplit, column_threads), kRows * width_bytes, stream, sequences, g,
           queries.as<float>(), q_gate.as<float>(), context.input(2).as<T>(), context.input(3).as<T>(), partials,
           y.as<float>(), verdict.as<int>());
    if (split)
      launch(merge_splits, dim3(row_count, static_cast<unsigned>(g.heads())), column_threads, 0, stream, sequences, g,
             partials, q_gate.as<float>(), y.as<float>(), verdict.as<int>());
  }

 private:
  RotaryAttributes rotary_;
  Arena arena_;
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
