// PagedAttention on a device. The cache is walked in splits of kSplit positions, each with a softmax of its own, merged
// in order: by the block that walked them when there are rows enough to fill the device, else by a launch of its own.
// The arithmetic is the same, so a row's bits depend on its query and on the entries up to its position alone.
#include "device.cuh"

namespace trigraph::TRIGRAPH_ISA {
namespace {

constexpr int kSplit = 128;           // positions that share one softmax
constexpr int kRows = 8;              // query heads of one row that a block takes: they share its reads
constexpr int kMostWidth = 1024;      // of a head
constexpr int64_t kFullDevice = 512;  // blocks that keep a device busy without splitting rows
constexpr int64_t kPartialBytes = int64_t{512} << 20;  // of splits that wait to be merged
constexpr int kQueryWarps = 8;

// Two neighbouring elements of an entry.
__device__ __forceinline__ float2 load_pair(const float* p) { return *reinterpret_cast<const float2*>(p); }
__device__ __forceinline__ float2 load_pair(const __half* p) {
  const uint32_t both = *reinterpret_cast<const uint32_t*>(p);
  return {half_bits(static_cast<uint16_t>(both)), half_bits(static_cast<uint16_t>(both >> 16))};
}
// Eight of them.
__device__ __forceinline__ void load_eight(const float* p, float* out) {
#pragma unroll
  for (int i = 0; i < 8; i += 4) {
    const float4 four = *reinterpret_cast<const float4*>(p + i);
    out[i] = four.x, out[i + 1] = four.y, out[i + 2] = four.z, out[i + 3] = four.w;
  }
}
__device__ __forceinline__ void load_eight(const __half* p, float* out) {
  const uint4 words = *reinterpret_cast<const uint4*>(p);
  const uint32_t word[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
  for (int i = 0; i < 8; ++i) out[i] = half_bits(static_cast<uint16_t>(word[i / 2] >> i % 2 * 16));
}

// Softmax over some positions: largest score, sum of exp(score - largest), and of that times two elements of the
// values.
struct Softmax {
  float largest, sum;
  float2 values;

  // *this and, after it, one more split.
  __device__ void merge(const Softmax& split) {
    if (split.sum == 0) return;  // holds nothing for this row
    const float most = fmaxf(largest, split.largest), keep = expf(largest - most), take = expf(split.largest - most);
    largest = most;
    sum = fmaf(sum, keep, split.sum * take);
    values.x = fmaf(values.x, keep, split.values.x * take);
    values.y = fmaf(values.y, keep, split.values.y * take);
  }
};
__device__ __forceinline__ Softmax nothing() { return {-INFINITY, 0, {0, 0}}; }

struct Geometry {
  int width, kv_heads, group;
  __host__ __device__ int heads() const { return kv_heads * group; }
};

__device__ __forceinline__ void finish(const Geometry& g, const float* q_gate, int64_t row, int head, int i,
                                       const Softmax& total, float* y) {
  const float* gate = q_gate + ((row * g.heads() + head) * 2 + 1) * g.width + i;
  float* out = y + (row * g.heads() + head) * g.width + i;
  const float inverse = 1.0f / total.sum;
  out[0] = total.values.x * inverse * sigmoid(gate[0]);
  out[1] = total.values.y * inverse * sigmoid(gate[1]);
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

// grid: [rows, kv heads x parts of a group, splits or 1]. A thread has a position of the split, then two columns of the
// values.
template <class T>
__global__ void attend(Ragged sequences, Geometry g, const float* queries, const float* q_gate, const T* keys,
                       const T* values, Partials partials, float* y, const int* verdict) {
  __shared__ Shared shared;
  if (!*verdict) return;
  float* query = reinterpret_cast<float*>(shared_memory());  // [kRows][width]
  const int64_t row = blockIdx.x;
  const int parts = (g.group + kRows - 1) / kRows, kv_head = blockIdx.y / parts, part = blockIdx.y % parts;
  const int head = kv_head * g.group + part * kRows, count = min(kRows, g.group - part * kRows);
  const int s = sequences.sequence_of(row), thread = threadIdx.x, warps = blockDim.x / kWarp;
  const int64_t position = sequences.position_of(row, s);
  const int own_splits = static_cast<int>(position / kSplit) + 1;
  const int begin = partials.memory ? static_cast<int>(blockIdx.z) : 0;
  const int end = partials.memory ? min(begin + 1, own_splits) : own_splits;
  const int column = 2 * thread;
  if (begin >= end) return;

  for (int i = thread; i < count * g.width; i += blockDim.x) query[i] = queries[(row * g.heads() + head) * g.width + i];
  Softmax total[kRows];
#pragma unroll
  for (int m = 0; m < kRows; ++m) total[m] = nothing();

  for (int split = begin; split < end; ++split) {
    const int64_t first = int64_t{split} * kSplit;
    const int seen = static_cast<int>(min(int64_t{kSplit}, position + 1 - first));
    __syncthreads();
    if (thread < seen) {
      const int64_t offset = (sequences.entry(s, first + thread) * g.kv_heads + kv_head) * g.width;
      shared.offset[thread] = offset;
      float score[kRows] = {};
      for (int i = 0; i < g.width; i += 8) {
        float key[8];
        load_eight(keys + offset + i, key);
#pragma unroll
        for (int m = 0; m < kRows; ++m) {
          if (m >= count) break;
#pragma unroll
          for (int j = 0; j < 8; ++j) score[m] = fmaf(query[m * g.width + i + j], key[j], score[m]);
        }
      }
#pragma unroll
      for (int m = 0; m < kRows; ++m) shared.score[m][thread] = score[m];
    }
    __syncthreads();
    for (int m = thread / kWarp; m < count; m += warps) {
      float weight[kSplit / kWarp], largest = -INFINITY, sum = 0;
#pragma unroll
      for (int i = 0; i < kSplit / kWarp; ++i) {
        const int p = i * kWarp + thread % kWarp;
        if (p < seen) largest = fmaxf(largest, shared.score[m][p]);
      }
      largest = lane_max(largest);
#pragma unroll
      for (int i = 0; i < kSplit / kWarp; ++i) {
        const int p = i * kWarp + thread % kWarp;
        weight[i] = p < seen ? expf(shared.score[m][p] - largest) : 0.0f;
        sum += weight[i];
        if (p < seen) shared.score[m][p] = weight[i];
      }
      sum = lane_sum(sum);
      if (thread % kWarp == 0) {
        shared.largest[m] = largest;
        shared.sum[m] = sum;
      }
    }
    __syncthreads();
    if (column >= g.width) continue;
    float2 sums[kRows] = {};
    for (int p = 0; p < seen; ++p) {
      const float2 value = load_pair(values + shared.offset[p] + column);
#pragma unroll
      for (int m = 0; m < kRows; ++m) {
        if (m >= count) break;
        const float weight = shared.score[m][p];
        sums[m].x = fmaf(weight, value.x, sums[m].x);
        sums[m].y = fmaf(weight, value.y, sums[m].y);
      }
    }
#pragma unroll
    for (int m = 0; m < kRows; ++m)
      if (m < count) total[m].merge({shared.largest[m], shared.sum[m], sums[m]});
  }
  if (column >= g.width) return;
#pragma unroll
  for (int m = 0; m < kRows; ++m) {
    if (m >= count) break;
    if (!partials.memory) {
      finish(g, q_gate, row, head + m, column, total[m], y);
      continue;
    }
    const int64_t index = partials.index(g, row, head + m, begin);
    *reinterpret_cast<float2*>(partials.values(g, index) + column) = total[m].values;
    if (column == 0) *reinterpret_cast<float2*>(partials.scalars(g, index)) = {total[m].largest, total[m].sum};
  }
}

// grid: [rows, heads].
__global__ void merge_splits(Ragged sequences, Geometry g, Partials partials, const float* q_gate, float* y,
                             const int* verdict) {
  const int column = 2 * threadIdx.x, head = blockIdx.y;
  if (!*verdict || column >= g.width) return;
  const int64_t row = blockIdx.x, position = sequences.position_of(row, sequences.sequence_of(row));
  Softmax total = nothing();
  for (int split = 0; split <= position / kSplit; ++split) {
    const int64_t index = partials.index(g, row, head, split);
    const float2 scalars = *reinterpret_cast<const float2*>(partials.scalars(g, index));
    total.merge({scalars.x, scalars.y, *reinterpret_cast<const float2*>(partials.values(g, index) + column)});
  }
  finish(g, q_gate, row, head, column, total, y);
}

template <class T>
struct PagedAttention : PagedAttentionSignature<std::is_same_v<T, float>> {
  explicit PagedAttention(const KernelInfo& info) : rotary_(info), arena_(info) {}

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
    const Geometry g{static_cast<int>(cache.width), static_cast<int>(cache.heads), static_cast<int>(group)};
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

}  // namespace trigraph::TRIGRAPH_ISA
