// Tiles with a single row of activations. The eight columns of the tensor cores are its runs, with zeros in the place
// of all other ones: their dot products add up side by side, and a lane scales two of them in the place of eight.
#pragma once

#include "tile_blocks.cuh"

namespace trigraph::TRIGRAPH_ISA {

// 16 bytes in shared memory, which the first thread clears before a barrier.
__device__ __forceinline__ uint4* zeros() {
  __shared__ uint4 piece;
  return &piece;
}
__device__ __forceinline__ void clear_zeros() {
  if (threadIdx.x == 0) *zeros() = {};
}

// What load_matrices takes of the lane of a super-block of activations: column lane % 8 has one run.
struct OwnColumns {
  const char *x, *own, *sums;  // of the row; the lane's 16 bytes of its run; those of sums and scales
  int pair = kept(threadIdx.x % kWarp / 16 == threadIdx.x % 2 ? static_cast<int>(threadIdx.x) % 8 / 2 : -1);

  __device__ explicit OwnColumns(const char* x)
      : x(x),
        own(x + kept<int>(threadIdx.x % 8 * kRun + threadIdx.x % kWarp / 8 % 2 * 16)),
        sums(x + kept<int>(kSuper + threadIdx.x % kWarp / 8 * 16)) {}
  // What the lane gives load_matrices for runs 2 i and 2 i + 1.
  __device__ __forceinline__ const void* runs(int super, int i) const {
    return i == pair ? static_cast<const void*>(own + super) : zeros();
  }
};

// What the lane has of the integers of both its weight rows, runs 2 t and 2 t + 1, with their scales.
template <class F>
struct OwnRuns;

template <class F>
struct SixBitRuns {
  __device__ static __forceinline__ void add(const TileLane<F>& lane, const TilePlace& place, const TileHead<F>* head,
                                             const OwnColumns& x, int super, int* S) {
    constexpr bool kFifth = std::is_same_v<F, Q5_K>;
    TileCodes<F> codes;
    int dots[4] = {}, fifth[4] = {};
#pragma unroll
    for (int pair = 0; pair < 4; ++pair) {
      if (pair % 2 == 0) codes.load(place, pair / 2, lane.t);
      uint32_t b[4], a[4];
      load_matrices(x.runs(super, pair), b);
#pragma unroll
      for (int k = 0; k < 2; ++k) {  // odd runs 16 times
#pragma unroll
        for (int i = 0; i < 4; ++i) a[i] = codes.packed[pair % 2][i] & (k ? 0xf0f0f0f0 : 0x0f0f0f0f);
        add_runs(a, b + 2 * k, dots);
        if constexpr (kFifth) {  // 2^run times
#pragma unroll
          for (int i = 0; i < 4; ++i) a[i] = codes.high[i] & 0x01010101u << (2 * pair + k);
          add_runs(a, b + 2 * k, fifth);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t scales = __byte_perm(head[i].scales[0], head[i].scales[1], lane.scales);
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        int dot = dots[2 * i + k] >> 4 * k;
        if (kFifth) dot += (fifth[2 * i + k] >> (2 * lane.t + k)) * 16;
        S[i] += static_cast<int>(scales >> 8 * k & 255) * dot;
      }
    }
  }
};
template <>
struct OwnRuns<Q4_K> : SixBitRuns<Q4_K> {};
template <>
struct OwnRuns<Q5_K> : SixBitRuns<Q5_K> {};

template <>
struct OwnRuns<Q6_K> {
  // Low nibbles and two bits of codes come 2^shift times; so does the bias, with which the former begin.
  __device__ static __forceinline__ void add(const TileLane<Q6_K>& lane, const TilePlace& place,
                                             const TileHead<Q6_K>* head, const OwnColumns& x, int super, int* S) {
    const int t = lane.t, shift = t % 2 * 4;
    const auto sums = reinterpret_cast<const uint2*>(x.x + super + kSuper)[t];
    TileCodes<Q6_K> codes;
    int low[2][4], two[2][4] = {};  // of half runs
#pragma unroll
    for (int k = 0; k < 2; ++k)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        low[k][i] = static_cast<int16_t>((i % 2 ? sums.y : sums.x) >> 16 * k) * -(kBias<Q6_K> << shift);
#pragma unroll
    for (int pair = 0; pair < 4; ++pair) {
      if (pair % 2 == 0) codes.load(place, pair / 2, lane.t);
      uint32_t b[4];
      load_matrices(x.runs(super, pair), b);
#pragma unroll
      for (int run = 0; run < 2; ++run)
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          const uint32_t nibbles = pair % 2 ? 0xf0f0f0f0 : 0x0f0f0f0f, bits = 0x03030303u << (pair % 2 * 4 + 2 * run);
          const uint32_t *p = codes.packed[run] + 2 * k, *h = codes.high + 2 * k;
          add_halves(p[0] & nibbles, p[1] & nibbles, b[2 * run + k], low[k]);
          add_halves(h[0] & bits, h[1] & bits, b[2 * run + k], two[k]);
        }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const auto* scales = reinterpret_cast<const int8_t*>(head[i].p + 192) + 4 * t;
#pragma unroll
      for (int run = 0; run < 2; ++run)
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          const int at = 2 * i + run;
          S[i] += scales[2 * run + k] * ((low[k][at] >> shift) + (two[k][at] >> (shift + 2 * run)) * 16);
        }
    }
  }
};

// Adds the product of the lane's weight row g + 8 (t % 2) with a super-block of the row of activations, so many bytes
// from its beginning.
template <class F>
__device__ __forceinline__ void meet_single(const TileLane<F>& lane, const TilePlace& place, const OwnColumns& x,
                                            int super, float& chain) {
  const bool odd = lane.t % 2;
  const TileHead<F> head[2] = {TileHead<F>(place.block[0]), TileHead<F>(place.block[1])};
  int both[2] = {};
  OwnRuns<F>::add(lane, place, head, x, super, both);
  int S = odd ? both[1] : both[0];
  S += __shfl_xor_sync(kAllLanes, odd ? both[0] : both[1], 1);
  S += __shfl_xor_sync(kAllLanes, S, 2);
  uint32_t sums[4];  // and scales, which are all the same
  load_matrices(x.sums + super, sums);
  float value;
  if constexpr (kTwoSums<F>) {
    const uint32_t factors[2] = {head[0].factors(lane), head[1].factors(lane)};
    int low[4], high[4];
    half_dots<int8_t, uint8_t>(factors[0], factors[1], low_bytes(sums), low);
    half_dots(factors[0], factors[1], high_bytes(sums), high);
    const int T = (odd ? low[2] : low[0]) + 256 * (odd ? high[2] : high[0]);
    value = fmaf(odd ? head[1].d : head[0].d, static_cast<float>(S),
                 -((odd ? head[1].dmin : head[0].dmin) * static_cast<float>(T)));
  } else {
    value = (odd ? head[1].d : head[0].d) * static_cast<float>(S);
  }
  chain = fmaf(__uint_as_float(sums[2]), value, chain);
}

}  // namespace trigraph::TRIGRAPH_ISA
