// Products of weight rows with a few activation rows: a run is unpacked once and meets them all in registers.
#pragma once

#include "activations.cuh"

namespace trigraph::TRIGRAPH_ISA {

constexpr int kMostRows = 8;  // activation rows that meet a run in registers

// A run's product, before the scale of its activations: from the sums of products and of activations of its halves.
template <class F>
__device__ __forceinline__ float run_product(const float* scale, const float* min, int dot, int second_dot, int sum,
                                             int second_sum) {
  float part;
  if constexpr (kScales<F> == 1) {
    part = scale[0] * static_cast<float>(dot + second_dot);
    if constexpr (F::kMin) part = fmaf(-min[0], static_cast<float>(sum + second_sum), part);
  } else {
    part = fmaf(scale[1], static_cast<float>(second_dot), scale[0] * static_cast<float>(dot));
    if constexpr (F::kMin) {
      part = fmaf(-min[0], static_cast<float>(sum), part);
      part = fmaf(-min[1], static_cast<float>(second_sum), part);
    }
  }
  return part;
}

// Adds the products of runs lane, lane + lanes, ... of one weight row with M activation rows to their sums.
template <class F, Layout kLayout, int M>
__device__ __forceinline__ void add_runs(const uint8_t* w, int64_t width, int lane, int lanes, const char* const* x,
                                         float* sum) {
  if constexpr (kLayout == Layout::raw) {
    for (int64_t i = lane; i < width; i += lanes) {
      const float weight = load_plain<F>(w + i * F::kBytes);
#pragma unroll
      for (int m = 0; m < M; ++m) sum[m] = fmaf(weight, reinterpret_cast<const float*>(x[m])[i], sum[m]);
    }
  } else {
    constexpr int kRuns = F::kBlock / kRun;
    const int runs = static_cast<int>(width / kRun);
    for (int run = lane; run < runs; run += lanes) {
      Codes codes;
      decode<F>(w + int64_t{run / kRuns} * F::kBytes, run % kRuns, &codes);
      if constexpr (kLayout == Layout::int8) {
#pragma unroll
        for (int m = 0; m < M; ++m) {
          const Int8Row row(x[m], width);
          const uint4* packed = reinterpret_cast<const uint4*>(row.codes() + run * kRun);
          const uint4 a = packed[0], b = packed[1];
          const uint32_t code[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
          int dot[2] = {0, 0};
#pragma unroll
          for (int i = 0; i < 8; ++i)
            dot[i / 4] = __dp4a(static_cast<int>(codes.word[i]), static_cast<int>(code[i]), dot[i / 4]);
          const int16_t* sums = row.sums() + 2 * run;
          const float part = run_product<F>(codes.scale, codes.min, dot[0], dot[1], sums[0], sums[1]);
          sum[m] = fmaf(row.scales()[run / (kSuper / kRun)], part, sum[m]);
        }
      } else {
        const int64_t at = int64_t{run / kWarp} * kTile + run % kWarp * 4;
#pragma unroll
        for (int i = 0; i < kRun; i += 4) {
          float weight[4];
#pragma unroll
          for (int j = 0; j < 4; ++j) weight[j] = element<F>(codes, i + j);
#pragma unroll
          for (int m = 0; m < M; ++m) {
            const float4 four = *reinterpret_cast<const float4*>(reinterpret_cast<const float*>(x[m]) + at + i * kWarp);
            sum[m] = fmaf(weight[0], four.x, sum[m]);
            sum[m] = fmaf(weight[1], four.y, sum[m]);
            sum[m] = fmaf(weight[2], four.z, sum[m]);
            sum[m] = fmaf(weight[3], four.w, sum[m]);
          }
        }
      }
    }
  }
}

// One weight row and rows [first, first + count) of the bucket, count <= M. Rows past the end repeat the last one.
template <class F, Layout kLayout, int M>
__device__ __forceinline__ void few_rows(const uint8_t* w, int64_t width, int lane, int lanes, const char* x,
                                         int64_t x_bytes, const int* source, int64_t first, int count, float* y,
                                         int64_t y_stride) {
  const char* row[M];
  float sum[M];
#pragma unroll
  for (int m = 0; m < M; ++m) {
    const int64_t index = first + min(m, count - 1);
    row[m] = x + (source ? source[index] : index) * x_bytes;
    sum[m] = 0;
  }
  if (w) add_runs<F, kLayout, M>(w, width, lane, lanes, row, sum);
#pragma unroll
  for (int m = 0; m < M; ++m) {
    const float total = lane_sum(sum[m], lanes);
    if (w && lane == 0 && m < count) y[(first + m) * y_stride] = total;
  }
}

// Up to kMost rows, by as few as are there.
template <class F, Layout kLayout, int kMost>
__device__ __forceinline__ void some_rows(const uint8_t* w, int64_t width, int lane, int lanes, const char* x,
                                          int64_t x_bytes, const int* source, int64_t first, int count, float* y,
                                          int64_t y_stride) {
  const auto rows = [&](auto m) {
    few_rows<F, kLayout, decltype(m)::value>(w, width, lane, lanes, x, x_bytes, source, first, count, y, y_stride);
  };
  if constexpr (kMost > 4)
    if (count > 4) return rows(std::integral_constant<int, kMost>{});
  if constexpr (kMost > 2)
    if (count > 2) return rows(std::integral_constant<int, 4>{});
  if (count > 1) return rows(std::integral_constant<int, 2>{});
  rows(std::integral_constant<int, 1>{});
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
  for (int64_t i = task.first + task.part * kMost; i < task.end; i += task.parts * kMost)
    some_rows<F, kLayout, kMost>(w, weights.width, lane, weights.lanes, x, x_bytes, buckets.source, i,
                                 static_cast<int>(min(int64_t{kMost}, task.end - i)), task.y + row, weights.rows);
}

}  // namespace trigraph::TRIGRAPH_ISA
