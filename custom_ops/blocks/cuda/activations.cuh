// Activation rows as products take them: float32 as they are, or quantised to int8.
#pragma once

#include "products.h"
#include "words.cuh"

namespace trigraph::TRIGRAPH_ISA {

constexpr int kThreads = 128;
constexpr int kSuper = 256;

__host__ __device__ constexpr int64_t round_up(int64_t value, int64_t to) { return (value + to - 1) / to * to; }

// A form of a row as int8: super-blocks of codes, each with the sums of 16 codes behind it, and then with the scales of
// 32, which are all the same in the form of kBySupers.
struct Int8Row {
  static constexpr int kScales = kSuper + kSuper / 16 * 2, kStride = kScales + kSuper / 32 * 4;  // bytes
  char* data;
  __device__ explicit Int8Row(const void* form) : data(static_cast<char*>(const_cast<void*>(form))) {}
  // Codes, both sums, and the scale of 32 elements.
  __device__ int8_t* codes(int run) const { return reinterpret_cast<int8_t*>(data + run / 8 * kStride + run % 8 * 32); }
  __device__ int16_t* sums(int run) const {
    return reinterpret_cast<int16_t*>(data + run / 8 * kStride + kSuper + run % 8 * 4);
  }
  __device__ float* scale(int run) const {
    return reinterpret_cast<float*>(data + run / 8 * kStride + kScales + run % 8 * 4);
  }
  __host__ __device__ static constexpr int64_t bytes(int64_t width) { return (width + kSuper - 1) / kSuper * kStride; }
  // From a row in shared memory to the next: what eight rows have is in all banks.
  __host__ __device__ static constexpr int64_t apart(int64_t width) { return round_up(bytes(width), 128) + 16; }
};

// A lane's eight elements of a super-block of a row, whose width is a multiple of eight.
template <class Source>
__device__ __forceinline__ void load_eight(const Source& x, int64_t width, int64_t super, float* value) {
  const int64_t column = super * kSuper + threadIdx.x % kWarp * 8;
  if (column < width) return x.eight(column, value);
#pragma unroll
  for (int i = 0; i < 8; ++i) value[i] = 0;
}

// One super-block of a form of a row by a warp: codes in [-127, 127], rounded to nearest even. What shares a scale and
// is not finite gets one of NaN, so that its products are NaN too; where the largest magnitude is at most 1e-36, it
// counts as zero, for the reciprocal must be finite. `value`: of load_eight.
__device__ __forceinline__ void quantise(const float* value, int64_t super, bool by_runs, char* prepared) {
  const int lane = threadIdx.x % kWarp;
  const Int8Row out(prepared);
  uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) largest = max(largest, __float_as_uint(value[i]) & 0x7fffffffu);
  for (int offset = 1; offset <= 2; offset *= 2) largest = max(largest, __shfl_xor_sync(kAllLanes, largest, offset));
  if (!by_runs)
    for (int offset = 4; offset < kWarp; offset *= 2)
      largest = max(largest, __shfl_xor_sync(kAllLanes, largest, offset));
  const float magnitude = __uint_as_float(largest);
  const bool finite = largest < 0x7f800000u, zero = !finite || magnitude <= 1e-36f;
  const float inverse = zero ? 0.0f : 127.0f / magnitude;
  uint32_t word[2] = {0, 0};
  int sum = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int code = zero ? 0 : __float2int_rn(value[i] * inverse);
    word[i / 4] |= (static_cast<uint32_t>(code) & 255) << i % 4 * 8;
    sum += code;
  }
  sum += __shfl_xor_sync(kAllLanes, sum, 1);
  const int run = static_cast<int>(super) * (kSuper / 32);
  reinterpret_cast<uint2*>(out.codes(run))[lane] = make_uint2(word[0], word[1]);
  if (lane % 2 == 0) out.sums(run)[lane / 2] = static_cast<int16_t>(sum);
  if (lane % 4 == 0)
    *out.scale(run + lane / 4) = finite ? (zero ? 0.0f : magnitude / 127.0f) : __uint_as_float(0x7fc00000u);
}

// What is prepared: rows as they are, silu(gate) * up, or silu(scale * gate).
struct Plain {
  const float* x;
  __device__ float operator()(int64_t i) const { return x[i]; }
  // The eight activations from i on, a multiple of eight.
  __device__ __forceinline__ void eight(int64_t i, float* value) const {
    const float* from = x + i;
    if (reinterpret_cast<uintptr_t>(from) % 16) {
#pragma unroll
      for (int k = 0; k < 8; ++k) value[k] = from[k];
    } else {
      const float4 a = reinterpret_cast<const float4*>(from)[0], b = reinterpret_cast<const float4*>(from)[1];
      value[0] = a.x, value[1] = a.y, value[2] = a.z, value[3] = a.w;
      value[4] = b.x, value[5] = b.y, value[6] = b.z, value[7] = b.w;
    }
  }
  __host__ __device__ Plain row(int64_t offset) const { return {x + offset}; }
};
struct Gated {
  const float *gate, *up;
  __device__ float operator()(int64_t i) const { return silu(gate[i]) * up[i]; }
  __device__ __forceinline__ void eight(int64_t i, float* value) const {
    float factor[8];
    Plain{gate}.eight(i, value);
    Plain{up}.eight(i, factor);
#pragma unroll
    for (int k = 0; k < 8; ++k) value[k] = silu(value[k]) * factor[k];
  }
  __host__ __device__ Gated row(int64_t offset) const { return {gate + offset, up + offset}; }
};
struct ScaledGate {
  const float* gate;
  float scale;
  __device__ float operator()(int64_t i) const { return silu(scale * gate[i]); }
  __device__ __forceinline__ void eight(int64_t i, float* value) const {
    Plain{gate}.eight(i, value);
#pragma unroll
    for (int k = 0; k < 8; ++k) value[k] = silu(scale * value[k]);
  }
  __host__ __device__ ScaledGate row(int64_t offset) const { return {gate + offset, scale}; }
};

}  // namespace trigraph::TRIGRAPH_ISA
