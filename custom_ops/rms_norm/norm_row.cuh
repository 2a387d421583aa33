// The norm of a row by a block of kBlock threads, as rows of int8 too.
#pragma once

#include "../blocks/cuda/activations.cuh"
#include "norm_rows.h"

namespace trigraph::TRIGRAPH_ISA {

constexpr int kSector = 8;  // floats that one prefetch asks for

// dot(x, x, n), which asks for elements while it adds up those before.
__device__ __forceinline__ float squares(const float* x, int n) {
  constexpr int kTogether = 16, kStep = kTogether * kLanes;
  float sum = 0, value[kTogether];
  const float* next = x + threadIdx.x % kLanes;
  const float* end = x + n;
  if (n >= kStep)
#pragma unroll
    for (int k = 0; k < kTogether; ++k) value[k] = next[k * kLanes];
#pragma unroll 1
  for (int left = n; left >= kStep; left -= kStep) {
    next += kStep;
#pragma unroll
    for (int k = 0; k < kTogether; ++k) {
      sum = fmaf(value[k], value[k], sum);
      if (left >= 2 * kStep) value[k] = next[k * kLanes];
    }
  }
#pragma unroll 1
  for (; next < end; next += kLanes) sum = fmaf(*next, *next, sum);
  return lane_sum(sum, kLanes);
}

// The elements of one of both rows to `staged`, with the residual if there is one; to `sum` too, unless it is nullptr.
template <int kBlock>
__device__ __forceinline__ void stage(const float* x, const float* residual, float* sum, int width, float* staged) {
  constexpr int kTogether = 8;  // that a thread waits for together
  for (int first = threadIdx.x; first < width; first += kTogether * kBlock) {
    float value[kTogether], more[kTogether];
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const int at = first + i * kBlock;
      if (at < width) value[i] = x[at];
      if (at < width && residual) more[i] = residual[at];
    }
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const int at = first + i * kBlock;
      if (at >= width) continue;
      if (residual) value[i] += more[i];
      if (sum) sum[at] = value[i];
      staged[at] = value[i];
    }
  }
}

// A lane's eight weights of a super-block, if eight share it and there is no other row.
__device__ __forceinline__ void ask_for_weights(const Norm& norm, int super, float* weight) {
  const int column = super * kSuper + static_cast<int>(threadIdx.x) % kWarp * 8;
  if (!norm.other && norm.width % 8 == 0 && column < norm.width) Plain{norm.weight}.eight(column, weight);
}

// The row's super-blocks, by warps, to y and `also`, or nullptr; to `supers` and `runs` in these forms as int8, or
// nullptr. `factor`: of both rows. `weight`: of the warp's first super-block. y may be `staged`.
template <int kBlock>
__device__ __forceinline__ void finish_row(const Norm& norm, const float* staged, const float* factor, float* weight,
                                           float* y, float* also, char* supers, char* runs) {
  const int width = static_cast<int>(norm.width), both = static_cast<int>(norm.both());
  const int count = (both + kSuper - 1) / kSuper, lane = threadIdx.x % kWarp;
  const bool whole =
      !norm.other && both % 8 == 0 && (reinterpret_cast<uintptr_t>(y) | reinterpret_cast<uintptr_t>(also)) % 16 == 0;
#pragma unroll 1
  for (int super = threadIdx.x / kWarp; super < count; super += kBlock / kWarp) {
    const int column = super * kSuper + lane * 8;
    float value[8];
    if (whole && column < both) {
      Plain{staged}.eight(column, value);
#pragma unroll
      for (int k = 0; k < 8; ++k) value[k] = value[k] * factor[0] * weight[k];
      reinterpret_cast<float4*>(y + column)[0] = {value[0], value[1], value[2], value[3]};
      reinterpret_cast<float4*>(y + column)[1] = {value[4], value[5], value[6], value[7]};
      if (also) {
        reinterpret_cast<float4*>(also + column)[0] = {value[0], value[1], value[2], value[3]};
        reinterpret_cast<float4*>(also + column)[1] = {value[4], value[5], value[6], value[7]};
      }
    } else {
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const int at = column + k, second = at >= width;
        value[k] = 0;
        if (at >= both) continue;
        y[at] = value[k] = staged[at] * factor[second] * (second ? norm.other_weight[at - width] : norm.weight[at]);
        if (also) also[at] = value[k];
      }
    }
    if (supers) quantise(value, super, false, supers);
    if (runs) quantise(value, super, true, runs);
    ask_for_weights(norm, super + kBlock / kWarp, weight);
  }
}

// The row to `staged`, its factors, and what finish_row needs first, by the whole block; with the residual to norm.sum
// too if `sums`.
template <int kBlock>
__device__ __forceinline__ void begin_row(const Norm& norm, int64_t row, bool sums, float* staged, float* factor,
                                          float* weight) {
  ask_for_weights(norm, static_cast<int>(threadIdx.x) / kWarp, weight);
  const int width = static_cast<int>(norm.width), both = static_cast<int>(norm.both());
  stage<kBlock>(norm.x + row * width, norm.residual ? norm.residual + row * width : nullptr,
                norm.sum && sums ? norm.sum + row * width : nullptr, width, staged);
  if (norm.other) stage<kBlock>(norm.other + row * (both - width), nullptr, nullptr, both - width, staged + width);
  __syncthreads();
  if (threadIdx.x < kWarp) {  // half of it for each row
    const bool second = threadIdx.x >= kLanes && norm.other;
    const int elements = second ? both - width : width;
    const float sum = squares(second ? staged + width : staged, elements);
    if (threadIdx.x % kLanes == 0) factor[threadIdx.x / kLanes] = norm.factor(sum, elements);
  }
  __syncthreads();
}

// Row `row` by the whole block; `staged` has room for it.
template <int kBlock>
__device__ __forceinline__ void norm_row(const Norm& norm, int64_t row, float* staged, float* factor) {
  float weight[8];
  begin_row<kBlock>(norm, row, true, staged, factor, weight);
  char* prepared = norm.prepared ? norm.prepared + row * norm.prepared_bytes : nullptr;
  finish_row<kBlock>(norm, staged, factor, weight, norm.y ? norm.y + row * norm.both() : staged, nullptr, prepared,
                     prepared ? prepared + norm.prepared_bytes / 2 : nullptr);
}

}  // namespace trigraph::TRIGRAPH_ISA
