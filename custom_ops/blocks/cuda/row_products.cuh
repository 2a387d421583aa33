// Products of weight rows with a few activation rows: a run of weights is unpacked once and meets them all in
// registers.
#pragma once

#include "activations.cuh"

namespace trigraph::TRIGRAPH_ISA {

constexpr int kMostRows = 8;  // activation rows that meet a run in registers
constexpr int kChains = 8;    // of an int8 product

// Lanes that share a block, two runs each.
template <class F>
constexpr int kShare = F::kBlock == 256 ? 4 : 1;

template <class F>
constexpr int kOwn = kStep<F> / kRun / kShare<F>;  // runs of a lane

// What scales the integers of a step, and of a lane's runs there.
template <class F>
struct Scales {
  float d = 0, dmin = 0;
  int scale[kOwn<F>][kScales<F>] = {}, min[kOwn<F>][kScales<F>] = {};

  // `run`: the first of the lane's, in the block at p.
  __device__ void load(const uint8_t* p, int step, int run) {
    d = step_d<F>(p, step);
    if constexpr (kTwoSums<F>) dmin = step_dmin<F>(p, step);
#pragma unroll
    for (int i = 0; i < kOwn<F>; ++i)
#pragma unroll
      for (int k = 0; k < kScales<F>; ++k) {
        if constexpr (!F::kPaired) scale[i][k] = F::scale(p, (run + i) * kScales<F> + k);
        if constexpr (F::kMin) min[i][k] = F::min(p, (run + i) * kScales<F> + k);
      }
  }
  // d, dmin, and the 6-bit scales and mins of two runs, from the first 16 bytes of a block in one load.
  __device__ void load_six_bits(const uint8_t* p, int run) {
    uint32_t word[4];
    load_words<16, 4>(p, word);
    d = half_bits(static_cast<uint16_t>(word[0])), dmin = half_bits(static_cast<uint16_t>(word[0] >> 16));
    const int shift = run % 4 * 8;
    const uint32_t a = word[1] >> shift, b = word[2] >> shift, c = word[3] >> shift;
    const uint32_t scales = run < 4 ? a & 0x3f3f : (c & 0x0f0f) | (a >> 2 & 0x3030);
    const uint32_t mins = run < 4 ? b & 0x3f3f : (c >> 4 & 0x0f0f) | (b >> 2 & 0x3030);
    for (int i = 0; i < 2; ++i) scale[i][0] = scales >> 8 * i & 255, min[i][0] = mins >> 8 * i & 255;
  }
  // A step's product but for the scale of its activations.
  __device__ float product(int S, int T) const {
    if constexpr (kTwoSums<F>) return fmaf(d, static_cast<float>(S), -(dmin * static_cast<float>(T)));
    return d * static_cast<float>(S);
  }
};
template <>
__device__ inline void Scales<Q4_K>::load(const uint8_t* p, int, int run) {
  load_six_bits(p, run);
}
template <>
__device__ inline void Scales<Q5_K>::load(const uint8_t* p, int, int run) {
  load_six_bits(p, run);
}

// Adds a run of weights, which meets run `at` of M activation rows, to their integers.
template <class F, int M>
__device__ __forceinline__ void add_run(const uint32_t* word, const int* scale, const int* min, int at,
                                        const char* const* x, int* S, int* T) {
#pragma unroll
  for (int m = 0; m < M; ++m) {
    const Int8Row row(x[m]);
    const uint4* packed = reinterpret_cast<const uint4*>(row.codes(at));
    const uint4 a = packed[0], b = packed[1];
    const uint32_t code[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
    int dot[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < 8; ++i) dot[i / 4] = __dp4a(static_cast<int>(word[i]), static_cast<int>(code[i]), dot[i / 4]);
    const int sum[2] = {row.sums(at)[0], row.sums(at)[1]};
    if constexpr (F::kPaired) {
      S[m] = dot[0];
      T[m] = dot[1];
    } else if constexpr (kScales<F> == 1) {
      S[m] += scale[0] * (dot[0] + dot[1]);
      if constexpr (F::kMin) T[m] += min[0] * (sum[0] + sum[1]);
    } else {
      S[m] += scale[0] * dot[0] + scale[1] * dot[1];
      if constexpr (F::kMin) T[m] += min[0] * sum[0] + min[1] * sum[1];
    }
  }
}

// The product of a weight row, or of none, with M rows of int8. kShare lanes are a chain: chain c takes steps c,
// c + chains, ...; with fewer than eight chains each has one step, and the other ones are zeros.
template <class F, int M>
__device__ __forceinline__ void int8_products(const uint8_t* w, int64_t width, int lane, int lanes,
                                              const char* const* x, float* chain) {
  constexpr int kRuns = kStep<F> / kRun;
  const int steps = static_cast<int>(width / kStep<F>), chains = lanes / kShare<F>;
  const int own = (lane & (kShare<F> - 1)) * kOwn<F>;  // of which the compiler knows that it is no odd one
  for (int first = 0; first < steps; first += chains) {
    const int step = first + lane / kShare<F>, block = step / kSteps<F>, run = step % kSteps<F> * kRuns + own;
    const bool there = w && step < steps;
    int S[M] = {}, T[M] = {};
    Scales<F> scales;
    if (there) {
      // What a lane needs of the block is asked for before any of it is used.
      const uint8_t* p = w + int64_t{block} * F::kBytes;
      uint32_t word[kOwn<F>][8];
      scales.load(p, step % kSteps<F>, run);
#pragma unroll
      for (int i = 0; i < kOwn<F>; ++i) Words<F>::load(p, run + i, word[i]);
#pragma unroll
      for (int i = 0; i < kOwn<F>; ++i)
        add_run<F, M>(word[i], scales.scale[i], scales.min[i], block * (F::kBlock / kRun) + run + i, x, S, T);
    }
#pragma unroll
    for (int m = 0; m < M; ++m) {
      const int all = lane_sum(S[m], kShare<F>), second = kTwoSums<F> ? lane_sum(T[m], kShare<F>) : 0;
      if (!there) continue;
      const float scale = *Int8Row(x[m]).scale(step * (kStep<F> / kRun));
      chain[m] = fmaf(scale, scales.product(all, second), chain[m]);
    }
  }
#pragma unroll
  for (int m = 0; m < M; ++m) {
    for (int offset = lanes / 2; offset >= kShare<F>; offset /= 2)
      chain[m] += __shfl_xor_sync(kAllLanes, chain[m], offset);
    chain[m] += 0.0f;  // a chain of zeros
  }
}

// The product of a weight row, or of none, with M rows of float32 by a warp. Each half of it has the sixteen lanes of
// every other chain.
template <class F, int M>
__device__ __forceinline__ void float_products(const uint8_t* w, int64_t width, int lane, const char* const* x,
                                               float* sum) {
  constexpr int kChain = 128;            // elements
  constexpr int kAhead = M > 4 ? 2 : 8;  // weights that are loaded together
  const int half = lane / kLanes;
  for (int64_t start = half * kChain + lane % kLanes; start < round_up(width, kSuper); start += kSuper) {
    float chain[M] = {};
#pragma unroll 1
    for (int64_t at = start; at < start + kChain; at += kAhead * kLanes) {
      float weight[kAhead];
#pragma unroll
      for (int i = 0; i < kAhead; ++i)
        weight[i] = w && at + i * kLanes < width ? weight_at<F>(w, at + i * kLanes) : 0.0f;
#pragma unroll
      for (int i = 0; i < kAhead; ++i)
#pragma unroll
        for (int m = 0; m < M; ++m)
          if (at + i * kLanes < width)
            chain[m] = fmaf(weight[i], reinterpret_cast<const float*>(x[m])[at + i * kLanes], chain[m]);
    }
#pragma unroll
    for (int m = 0; m < M; ++m) {
      const float other = __shfl_xor_sync(kAllLanes, chain[m], kLanes);
      sum[m] += half ? other : chain[m];
      sum[m] += half ? chain[m] : other;
    }
  }
#pragma unroll
  for (int m = 0; m < M; ++m) sum[m] = lane_sum(sum[m], kLanes);
}

// One weight row and rows [first, first + count) of the bucket, count <= M. Rows past the end repeat the last one.
// `target`, or nullptr: which rows of y they are.
template <class F, Layout kLayout, int M>
__device__ __forceinline__ void few_rows(const uint8_t* w, int64_t width, int lane, int lanes, const char* x,
                                         int64_t x_bytes, const int* source, const int* target, int64_t first,
                                         int count, float* y, int64_t y_stride) {
  const char* row[M];
  float sum[M] = {};
#pragma unroll
  for (int m = 0; m < M; ++m) {
    const int64_t index = first + min(m, count - 1);
    row[m] = x + (source ? source[index] : index) * x_bytes;
  }
  if constexpr (kLayout == Layout::int8)
    int8_products<F, M>(w, width, lane, lanes, row, sum);
  else
    float_products<F, M>(w, width, lane, row, sum);
#pragma unroll
  for (int m = 0; m < M; ++m)
    if (w && lane == 0 && m < count) y[(target ? target[first + m] : first + m) * y_stride] = sum[m];
}

// visit(M) for the fewest registers' rows that hold `count`.
template <int kMost, class Visit>
__device__ __forceinline__ void with_rows(int count, const Visit& visit) {
  if constexpr (kMost > 4)
    if (count > 4) return visit(std::integral_constant<int, kMost>{});
  if constexpr (kMost > 2)
    if (count > 2) return visit(std::integral_constant<int, 4>{});
  if constexpr (kMost > 1)
    if (count > 1) return visit(std::integral_constant<int, 2>{});
  visit(std::integral_constant<int, 1>{});
}

struct Weights {
  const uint8_t* data;
  int64_t stride;  // from a matrix of a stack to the next
  int64_t rows, row_bytes, width;
  int lanes;  // of a warp that share a weight row
};

// Which rows a block meets with which weights. grid: [parts of the weight rows, bucket, parts of a bucket's rows, twice
// with a second stack]. Without buckets there is one, with `x_rows` rows.
struct Task {
  const uint8_t* w;  // of the matrix
  float* y;
  int64_t first, end, part, parts;

  __device__ Task(const Weights& weights, const Buckets& buckets, int64_t x_rows, float* y, const uint8_t* second,
                  float* second_y)
      : w(weights.data), y(y), first(0), end(x_rows), part(blockIdx.z), parts(gridDim.z) {
    if (second) parts /= 2;
    if (part >= parts) {
      part -= parts;
      w = second;
      this->y = second_y;
    }
    if (!buckets.used) return;
    end = 0;
    if (static_cast<int>(blockIdx.y) >= *buckets.used) return;
    w += buckets.matrix[blockIdx.y] * weights.stride;
    first = buckets.first[blockIdx.y];
    end = buckets.first[blockIdx.y + 1];
  }
};

template <class F, Layout kLayout, int kMost>
__global__ void __launch_bounds__(kThreads) products(Weights weights, const char* x, int64_t x_bytes, Buckets buckets,
                                                     int64_t x_rows, float* y, const uint8_t* second, float* second_y) {
  const Task task(weights, buckets, x_rows, y, second, second_y);
  const int lane = threadIdx.x % weights.lanes;
  const int64_t row = int64_t{blockIdx.x} * (kThreads / weights.lanes) + threadIdx.x / weights.lanes;
  // A warp without a row still takes part in the sums of its lanes.
  const uint8_t* w = row < weights.rows ? task.w + row * weights.row_bytes : nullptr;
  for (int64_t i = task.first + task.part * kMost; i < task.end; i += task.parts * kMost) {
    const int count = static_cast<int>(min(int64_t{kMost}, task.end - i));
    with_rows<kMost>(count, [&](auto m) {
      few_rows<F, kLayout, decltype(m)::value>(w, weights.width, lane, weights.lanes, x, x_bytes, buckets.source,
                                               nullptr, i, count, task.y + row, weights.rows);
    });
  }
}

}  // namespace trigraph::TRIGRAPH_ISA
