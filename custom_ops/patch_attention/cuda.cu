// PatchAttention on a device. Queries and keys are turned first, keys to where neighbouring threads read neighbouring
// keys. Then a block takes some queries of an image with one head and walks the keys in splits, each with a softmax of
// its own, merged in order: the arithmetic of cpu.cc.
#include "../paged_attention/angles.h"
#include "../paged_attention/pairs.cuh"
#include "../rows/sequences.cuh"
#include "signature.h"

namespace trigraph::TRIGRAPH_ISA {
namespace {

constexpr int kThreads = 256, kQueries = 16, kTurners = 128;
constexpr int kSplit = 256;     // keys that share one softmax: one a thread
constexpr int kWidest = 128;    // head
constexpr int kBlocksEach = 3;  // of a multiprocessor: else the compiler saves registers, and spills
static_assert(kThreads == kSplit && kThreads == kQueries * kLanes);

struct Patches {
  Starts images;
  const float* qkv;  // [patches, 3, heads, width]
  const int32_t* places;
  int64_t count;
  int heads, width;
  double log_theta;
  float *queries, *keys;  // turned: [patches, heads, width], and [heads, width, patches]
  float* y;

  // The head of the query (0), key (1) or value (2).
  __device__ const float* head(int64_t patch, int kind, int number) const {
    return qkv + ((patch * 3 + kind) * heads + number) * width;
  }
};

// grid: [patches].
__global__ void __launch_bounds__(kTurners) turn(const __grid_constant__ Patches patches) {
  __shared__ float cosine[kWidest / 2], sine[kWidest / 2];
  if (!patches.images.hold()) return;
  const int64_t patch = blockIdx.x;
  const int width = patches.width, half = width / 2, quarter = width / 4;
  for (int i = threadIdx.x; i < half; i += kTurners) {
    const int axis = i < quarter ? 0 : 1;
    const int32_t place = patches.places[axis * patches.count + patch];
    if (place < 0 && i % quarter == 0)
      report(patches.images.record, Operator::patch_attention, Reason::place, axis, patch, place);
    const Angle a = angle(static_cast<double>(place) * frequency(patches.log_theta, i % quarter, half, {1, 0, 0, 1}));
    cosine[i] = static_cast<float>(a.cosine);
    sine[i] = static_cast<float>(a.sine);
  }
  __syncthreads();
  const float scale = 1.0f / sqrtf(static_cast<float>(width));
  for (int at = threadIdx.x; at < patches.heads * half; at += kTurners) {
    const int number = at / half, i = at - number * half;
    const float *q = patches.head(patch, 0, number), *k = patches.head(patch, 1, number);
    float* query = patches.queries + (patch * patches.heads + number) * width;
    float* key = patches.keys + int64_t{number} * width * patches.count + patch;
    const float c = cosine[i], s = sine[i];
    const float a = q[i] * scale, b = q[half + i] * scale;
    query[i] = a * c - b * s;
    query[half + i] = b * c + a * s;
    key[i * patches.count] = k[i] * c - k[half + i] * s;
    key[(half + i) * patches.count] = k[half + i] * c + k[i] * s;
  }
}

struct AttendBlock {
  __align__(16) float weight[kSplit * kQueries];  // [key][query]: scores, then exp(score - largest)
  float largest[kQueries], sum[kQueries];         // of the splits so far
  float keep[kQueries], take[kQueries];           // what merging multiplies with: the splits before, and this one
};

// Scores of a split's keys, one a thread; query [width][kQueries].
__device__ __forceinline__ void score(const Patches& patches, int number, int64_t first, int count, const float* query,
                                      float* weight) {
  float sum[kQueries] = {};
  if (static_cast<int>(threadIdx.x) < count) {
    const float* key = patches.keys + int64_t{number} * patches.width * patches.count + first + threadIdx.x;
    for (int i = 0; i < patches.width; ++i, key += patches.count) {
      const float x = *key;
#pragma unroll
      for (int m = 0; m < kQueries; m += 4) {
        const float4 q = *reinterpret_cast<const float4*>(query + i * kQueries + m);
        sum[m] = fmaf(q.x, x, sum[m]);
        sum[m + 1] = fmaf(q.y, x, sum[m + 1]);
        sum[m + 2] = fmaf(q.z, x, sum[m + 2]);
        sum[m + 3] = fmaf(q.w, x, sum[m + 3]);
      }
    }
  }
#pragma unroll
  for (int m = 0; m < kQueries; ++m) weight[threadIdx.x * kQueries + m] = sum[m];
}

// Scores to exp(score - largest), and what merging the split takes: kLanes threads for each query.
__device__ __forceinline__ void exponentiate(int count, bool begins, AttendBlock& block) {
  const int m = threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
  float largest = -INFINITY, sum = 0;
  for (int p = lane; p < count; p += kLanes) largest = fmaxf(largest, block.weight[p * kQueries + m]);
  largest = lane_max(largest, kLanes);
  for (int p = lane; p < count; p += kLanes) {
    float& weight = block.weight[p * kQueries + m];
    weight = exp(weight - largest);
    sum += weight;
  }
  sum = lane_sum(sum, kLanes);
  if (lane) return;
  if (begins) {
    block.largest[m] = largest, block.sum[m] = sum;
  } else {
    const Merge merge(block.largest[m], largest);
    block.largest[m] = merge.largest, block.sum[m] = merge(block.sum[m], sum);
    block.keep[m] = merge.keep, block.take[m] = merge.take;
  }
}

// Adds a split's weighted values to total [kQueries][width]; a thread has a column for four queries.
__device__ __forceinline__ void add_values(const Patches& patches, int number, int64_t first, int count, bool begins,
                                           const AttendBlock& block, float* total) {
  const int width = patches.width;
  const int64_t step = int64_t{3} * patches.heads * width;
  for (int task = threadIdx.x; task < kQueries / 4 * width; task += kThreads) {
    const int begin = task / width * 4, column = task % width;
    const float* value = patches.head(first, 2, number) + column;
    float sum[4] = {};
    for (int p = 0; p < count; ++p, value += step) {
      const float x = *value;
      const float4 weight = *reinterpret_cast<const float4*>(block.weight + p * kQueries + begin);
      sum[0] = fmaf(weight.x, x, sum[0]);
      sum[1] = fmaf(weight.y, x, sum[1]);
      sum[2] = fmaf(weight.z, x, sum[2]);
      sum[3] = fmaf(weight.w, x, sum[3]);
    }
#pragma unroll
    for (int m = 0; m < 4; ++m) {
      float& all = total[(begin + m) * width + column];
      all = begins ? sum[m] : fmaf(all, block.keep[begin + m], sum[m] * block.take[begin + m]);
    }
  }
}

// grid: [blocks of queries, heads].
__global__ void __launch_bounds__(kThreads, kBlocksEach) attend_patches(const __grid_constant__ Patches patches) {
  __shared__ AttendBlock block;
  if (!patches.images.hold()) return;
  auto* query = reinterpret_cast<float*>(shared_memory());
  const int width = patches.width, number = static_cast<int>(blockIdx.y);
  float* total = query + kQueries * width;
  int64_t index = blockIdx.x, start = 0, length = 0;
  int image = 0;
  for (; image < patches.images.sequences; ++image) {
    start = patches.images.start[image], length = patches.images.start[image + 1] - start;
    const int64_t tiles = (length + kQueries - 1) / kQueries;
    if (index < tiles) break;
    index -= tiles;
  }
  if (image == patches.images.sequences) return;
  const int64_t row = start + index * kQueries;
  const int queries = static_cast<int>(min(int64_t{kQueries}, length - index * kQueries));
  for (int i = threadIdx.x; i < kQueries * width; i += kThreads) {
    const int m = i / width, column = i - m * width;
    query[column * kQueries + m] =
        m < queries ? patches.queries[((row + m) * patches.heads + number) * width + column] : 0.0f;
  }
  __syncthreads();
  for (int64_t first = 0; first < length; first += kSplit) {
    const int count = static_cast<int>(min(int64_t{kSplit}, length - first));
    score(patches, number, start + first, count, query, block.weight);
    __syncthreads();
    exponentiate(count, !first, block);
    __syncthreads();
    add_values(patches, number, start + first, count, !first, block, total);
    __syncthreads();
  }
  for (int i = threadIdx.x; i < queries * width; i += kThreads) {
    const int m = i / width;
    patches.y[((row + m) * patches.heads + number) * width + i - m * width] = total[i] * (1.0f / block.sum[m]);
  }
}

struct PatchAttention : PatchAttentionSignature {
  explicit PatchAttention(const KernelInfo& info) : PatchAttentionSignature(info), arena_(info) {}

  void compute(const Context& context) const {
    const Tensor qkv = context.input(0), places = context.input(1);
    const int64_t width = check(qkv, places), count = qkv.dims[0];
    if (width > kWidest)
      fail("input qkv has heads of %lld dimensions; on a GPU it is at most %d", static_cast<long long>(width), kWidest);
    const Starts images(context.input(2), nullptr, count, Operator::patch_attention);
    const Tensor y = context.output(0, {count, heads * width});
    const Arena::Memory turned = arena_.take<float>(2 * count * heads * width);
    auto* queries = turned.as<float>();
    const Patches patches{images,
                          qkv.as<float>(),
                          places.as<int32_t>(),
                          count,
                          static_cast<int>(heads),
                          static_cast<int>(width),
                          exact_log(theta),
                          queries,
                          queries + count * heads * width,
                          y.as<float>()};
    if (!count) return;
    launch(turn, static_cast<unsigned>(count), kTurners, 0, stream_of(context), patches);
    const unsigned tiles =
        blocks_of(count, kQueries) + static_cast<unsigned>(std::min<int64_t>(images.sequences, count));
    launch(attend_patches, dim3(tiles, static_cast<unsigned>(heads)), kThreads,
           static_cast<size_t>(2 * kQueries * width) * sizeof(float), stream_of(context), patches);
  }

 private:
  Arena arena_;
};

}  // namespace

const OrtCustomOp* patch_attention() {
  static const Op<Checked<PatchAttention>> op;
  return &op;
}

}  // namespace trigraph::TRIGRAPH_ISA
