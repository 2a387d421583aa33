// Blocks of weights in shared memory, as a warp's tensor cores take them with eight activation rows: a lane has two
// weight rows, g and g + 8 of a tile's 16 with g = lane / 4, and of each run the words t and t + 4 with t = lane % 4.
#pragma once

#include "row_products.cuh"

namespace trigraph::TRIGRAPH_ISA {

// Blocks that a warp meets at once: of 32 elements several, a super-block from each to the next.
template <class F>
constexpr int kPieces = F::kBlock == kSuper ? 1 : 4;
// Bytes of a block in shared memory, for whole 16 bytes around it, and of a row's blocks; eight rows meet all banks.
template <class F>
constexpr int kPieceStride = F::kBlock != kSuper ? 48
                             : F::kBytes % 16    ? 240
                                                 : F::kBytes;
template <class F>
constexpr int kTileStride = F::kBlock != kSuper ? 208 : kPieceStride<F>;

// A word at a multiple of two bytes in shared memory.
__device__ __forceinline__ uint32_t word_at(const uint8_t* p) {
  const unsigned odd = reinterpret_cast<uintptr_t>(p) & 2;
  const auto* words = reinterpret_cast<const uint32_t*>(p - odd);
  return __funnelshift_r(words[0], words[1], 8 * odd);
}

// What a lane has of a block at p: the codes, as bytes, of elements 4 t to 4 t + 3 of each half run; scales; and
// factors for the sums of 16 activations, which come as bytes with a zero behind each: those of the half runs 2 t and 2
// t + 1, and of those eight later.
template <class F>
struct TileBlock;

// 6-bit scales and mins of a block's runs.
struct SixBits {
  float d, dmin;
  uint32_t scales[2], mins[2];
  __device__ explicit SixBits(const uint8_t* p) {
    uint32_t word[4];
    load_words<16, 4>(p, word);
    d = half_bits(static_cast<uint16_t>(word[0])), dmin = half_bits(static_cast<uint16_t>(word[0] >> 16));
    scales[0] = word[1] & 0x3f3f3f3f, scales[1] = (word[3] & 0x0f0f0f0f) | (word[1] >> 2 & 0x30303030);
    mins[0] = word[2] & 0x3f3f3f3f, mins[1] = (word[3] >> 4 & 0x0f0f0f0f) | (word[2] >> 2 & 0x30303030);
  }
  __device__ int scale(int part) const { return static_cast<int>(scales[part / 8] >> part / 2 % 4 * 8 & 255); }
  __device__ uint32_t factors(int half, int t) const {
    return __byte_perm(mins[half], 0, 0x4040u + 0x0101u * static_cast<unsigned>(t));
  }
};

template <>
struct TileBlock<Q4_K> : SixBits {
  uint32_t packed[4][2];
  __device__ TileBlock(const uint8_t* p, int t) : SixBits(p) {
#pragma unroll
    for (int i = 0; i < 8; ++i) packed[i / 2][i % 2] = *reinterpret_cast<const uint32_t*>(p + 16 + 16 * i + 4 * t);
  }
  __device__ uint32_t codes(int run, int half) const { return packed[run / 2][half] >> run % 2 * 4 & 0x0f0f0f0f; }
};

template <>
struct TileBlock<Q5_K> : SixBits {
  uint32_t packed[4][2], high[2];
  __device__ TileBlock(const uint8_t* p, int t) : SixBits(p) {
#pragma unroll
    for (int i = 0; i < 2; ++i) high[i] = *reinterpret_cast<const uint32_t*>(p + 16 + 16 * i + 4 * t);
#pragma unroll
    for (int i = 0; i < 8; ++i) packed[i / 2][i % 2] = *reinterpret_cast<const uint32_t*>(p + 48 + 16 * i + 4 * t);
  }
  __device__ uint32_t codes(int run, int half) const {
    const uint32_t fifth = run < 4 ? high[half] << (4 - run) : high[half] >> (run - 4);
    return (packed[run / 2][half] >> run % 2 * 4 & 0x0f0f0f0f) | (fifth & 0x10101010);
  }
};

// Codes without their bias, 32, which `factors` take account of.
template <>
struct TileBlock<Q6_K> {
  const uint8_t* p;
  float d;
  uint32_t packed[4][2], high[2][2];
  __device__ TileBlock(const uint8_t* p, int t) : p(p), d(Q6_K::d(p)) {
#pragma unroll
    for (int i = 0; i < 8; ++i) packed[i / 2][i % 2] = word_at(p + 16 * i + 4 * t);
#pragma unroll
    for (int i = 0; i < 4; ++i) high[i / 2][i % 2] = word_at(p + 128 + 16 * i + 4 * t);
  }
  __device__ uint32_t codes(int run, int half) const {
    const int quarter = run % 4;
    const uint32_t low = packed[run / 4 * 2 + quarter % 2][half] >> quarter / 2 * 4, two = high[run / 4][half];
    return (low & 0x0f0f0f0f) | ((quarter < 2 ? two << (4 - 2 * quarter) : two >> (2 * quarter - 4)) & 0x30303030);
  }
  __device__ int scale(int part) const { return Q6_K::scale(p, part); }
  __device__ uint32_t factors(int half, int t) const {
    return __byte_perm(*reinterpret_cast<const uint16_t*>(p + 192 + 8 * half + 2 * t), 0, 0x4140);
  }
};

// The products of the blocks at upper and lower, of a lane's weight rows, with a super-block of activations, of which
// `x` is that of activation row g. As in multiply_tiles. kAlone: all of them are one row, for which a lane has chain[0]
// and chain[2].
template <class F, bool kAlone = false>
__device__ __forceinline__ void meet_block(const uint8_t* upper, const uint8_t* lower, const char* x,
                                           const float* const* x_scale, float* chain) {
  constexpr int kNext = kAlone ? 2 : 1;
  const int t = threadIdx.x % 4;
  const TileBlock<F> block[2] = {{upper, t}, {lower, t}};
  const auto* words = reinterpret_cast<const uint32_t*>(x) + t;
  int S[4] = {}, T[4];
#pragma unroll
  for (int run = 0; run < kSuper / kRun; ++run) {
    const uint32_t a[4] = {block[0].codes(run, 0), block[1].codes(run, 0), block[0].codes(run, 1),
                           block[1].codes(run, 1)};
    const uint32_t b[2] = {words[8 * run], words[8 * run + 4]};
    if constexpr (kScales<F> == 1) {
      int dot[4] = {};
      multiply_runs(a, b, dot);
#pragma unroll
      for (int i = 0; i < 4; i += kNext) S[i] += block[i / 2].scale(2 * run) * dot[i];
    } else {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        int dot[4] = {};
        multiply_tiles(a[2 * half], a[2 * half + 1], b[half], dot);
#pragma unroll
        for (int i = 0; i < 4; i += kNext) S[i] += block[i / 2].scale(2 * run + half) * dot[i];
      }
    }
  }
  // A sum of 16 activations is two bytes, which meet their factor one after the other.
  const uint32_t sums[2] = {words[kSuper / 4], words[kSuper / 4 + 4]};
  uint32_t factors[4] = {block[0].factors(0, t), block[1].factors(0, t), block[0].factors(1, t),
                         block[1].factors(1, t)};
  int low[4] = {}, high[4] = {};
  multiply_runs<true>(factors, sums, low);
#pragma unroll
  for (uint32_t& word : factors) word <<= 8;
  multiply_runs(factors, sums, high);
#pragma unroll
  for (int i = 0; i < 4; i += kNext) {
    T[i] = low[i] + 256 * high[i];
    float value;
    if constexpr (kTwoSums<F>)
      value = fmaf(block[i / 2].d, static_cast<float>(S[i]), -(block[i / 2].dmin * static_cast<float>(T[i])));
    else
      value = block[i / 2].d * static_cast<float>(S[i] - kBias<F> * T[i]);
    chain[i] = fmaf(*x_scale[i % 2], value, chain[i]);
  }
}

// Adds the products of `count` blocks of 32 codes, so many bytes apart, which meet 32 activations of one super-block
// after the other. `x_scale`: of the first ones.
template <class F, bool kAlone = false, int kApart = kPieceStride<F>>
__device__ __forceinline__ void meet_pieces(const uint8_t* upper, const uint8_t* lower, int count, const char* x,
                                            const float* const* x_scale, float* chain) {
  const int t = threadIdx.x % 4;
#pragma unroll
  for (int i = 0; i < kPieces<F>; ++i) {
    if (i >= count) break;
    const uint8_t* p[2] = {upper + i * kApart, lower + i * kApart};
    const auto* words = reinterpret_cast<const uint32_t*>(x + i * Int8Row::kStride) + t;
    const uint8_t *first = p[0] + 2 + 4 * t, *second = p[1] + 2 + 4 * t;
    const uint32_t a[4] = {word_at(first), word_at(second), word_at(first + 16), word_at(second + 16)};
    const uint32_t b[2] = {words[0], words[4]};
    int dot[4] = {};
    multiply_runs(a, b, dot);
#pragma unroll
    for (int k = 0; k < 4; k += kAlone ? 2 : 1)
      chain[k] = fmaf(x_scale[k % 2][i * Int8Row::kStride / 4], F::d(p[k / 2]) * static_cast<float>(dot[k]), chain[k]);
  }
}

}  // namespace trigraph::TRIGRAPH_ISA
