// Weights as two planes of bytes: scale * code = low + 256 high, exactly. So tensor cores add up a whole super-block,
// and no sum of a run is multiplied by its scale.
#pragma once

#include "wide_parts.cuh"

namespace trigraph::TRIGRAPH_ISA {

// A run of a lane's two weight rows, in words as run_dots takes them.
struct Planes {
  uint32_t low[4], high[4];  // unsigned; signed

  // `even`: products of codes 0 and 2 of word i, 16 bits each; `odd`: of codes 1 and 3.
  __device__ __forceinline__ void set(int i, uint32_t even, uint32_t odd) {
    low[i] = __byte_perm(even, odd, 0x6240), high[i] = __byte_perm(even, odd, 0x7351);
  }
};

// Moves bit `from` of a word to bit `to`, and all others with it.
__device__ __forceinline__ uint32_t moved(uint32_t word, int from, int to) {
  return from < to ? word << (to - from) : word >> (from - to);
}

// The warp's weights of a step, as pairs of runs that share bytes. kUnit: what their products are multiples of.
template <class F>
struct PlanePart;

// High nibbles stay where they are, and low ones have 16 times their scale: all products are 16 times as large.
template <class F>
struct SixBitPlanes : SixBitPart<F> {
  static constexpr int kUnit = 16;
  using SixBitPart<F>::SixBitPart;
  __device__ static constexpr int run(int pair, int i) { return 2 * pair + i; }
  __device__ uint32_t scale(int i, int run) const { return this->scales[i][run / 4] >> run % 4 * 8 & 255; }
};

template <>
struct PlanePart<Q4_K> : SixBitPlanes<Q4_K> {
  using SixBitPlanes::SixBitPlanes;
  __device__ __forceinline__ void codes(int pair, Planes* two) {
    uint32_t packed[4];
    load_matrices(row + 16 + 32 * pair, packed);
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const uint32_t q[2] = {scale(0, 2 * pair + k) << (k ? 0 : 4), scale(1, 2 * pair + k) << (k ? 0 : 4)};
      const uint32_t mask = k ? 0x00f000f0 : 0x000f000f;
#pragma unroll
      for (int i = 0; i < 4; ++i) two[k].set(i, (packed[i] & mask) * q[i % 2], (packed[i] >> 8 & mask) * q[i % 2]);
    }
  }
};

template <>
struct PlanePart<Q5_K> : SixBitPlanes<Q5_K> {
  uint32_t high[4];
  template <int kRows>
  __device__ PlanePart(const uint8_t* weights, int first, int lane, const ManyTask& task, const ManyTile<kRows>& tile,
                       int step)
      : SixBitPlanes(weights, first, lane, task, tile, step) {
    load_matrices(row + 16, high);
  }
  __device__ __forceinline__ void codes(int pair, Planes* two) {
    uint32_t packed[4];
    load_matrices(row + 48 + 32 * pair, packed);
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const int run = 2 * pair + k, fifth = k ? 8 : 4;
      const uint32_t q[2] = {scale(0, run) << (k ? 0 : 4), scale(1, run) << (k ? 0 : 4)};
      const uint32_t mask = k ? 0x00f000f0 : 0x000f000f, one = k ? 0x01000100 : 0x00100010;
#pragma unroll
      for (int i = 0; i < 4; ++i)
        two[k].set(i, ((packed[i] & mask) | (moved(high[i], run, fifth) & one)) * q[i % 2],
                   ((packed[i] >> 8 & mask) | (moved(high[i], run + 8, fifth) & one)) * q[i % 2]);
    }
  }
};

template <>
struct PlanePart<Q6_K> : WidePart<Q6_K> {
  static constexpr int kUnit = 1;
  uint32_t two[4];
  using WidePart::WidePart;
  __device__ static constexpr int run(int pair, int i) { return pair / 2 * 4 + pair % 2 + 2 * i; }
  __device__ __forceinline__ void codes(int pair, Planes* planes) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (pair % 2 == 0) {
        const uint32_t* h = high[i % 2] + pair / 2 * 8 + i / 2 * 4;
        two[i] = __funnelshift_r(h[0], h[1], shift[i % 2]);
      }
    uint32_t packed[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t* l = low[i % 2] + pair * 8 + i / 2 * 4;
      packed[i] = __funnelshift_r(l[0], l[1], shift[i % 2]);
    }
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const int quarter = pair % 2 + 2 * k;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        // Products plus 0x8000, so that none borrows of its neighbour: the high byte's first bit is the other one then.
        const auto q = static_cast<uint32_t>(scale(i % 2, run(pair, k), i / 2));
        const uint32_t base = 0x80008000u - q * 0x00200020u;
        const uint32_t even = (packed[i] >> 4 * k & 0x000f000f) | (moved(two[i], 2 * quarter, 4) & 0x00300030),
                       odd = (packed[i] >> (8 + 4 * k) & 0x000f000f) | (moved(two[i], 2 * quarter + 8, 4) & 0x00300030);
        planes[k].set(i, even * q + base, odd * q + base);
        planes[k].high[i] ^= 0x80808080u;
      }
    }
  }
};

}  // namespace trigraph::TRIGRAPH_ISA
