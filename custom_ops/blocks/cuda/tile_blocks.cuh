// Blocks of weights in shared memory, as a warp's tensor cores take them with eight activation rows: a lane has two
// weight rows, g and g + 8 of a tile's 16 with g = lane / 4, and of each run the words t and t + 4 with t = lane % 4.
#pragma once

#include "row_products.cuh"
#include "tensor_cores.cuh"

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

// Where a block begins in the first 16 bytes that hold some of it: of an address the low word is enough.
template <class F>
__device__ __forceinline__ int shift_of(unsigned address) {
  return F::kBytes % 16 ? static_cast<int>(address & 15) : 0;
}
__device__ __forceinline__ unsigned low_word(const uint8_t* p) {
  return static_cast<unsigned>(reinterpret_cast<uintptr_t>(p));
}

// Words from a multiple of two bytes in shared memory on.
struct OddWords {
  const uint32_t* words;
  unsigned shift;
  __device__ explicit OddWords(const uint8_t* p) {
    const unsigned odd = reinterpret_cast<uintptr_t>(p) & 2;
    words = reinterpret_cast<const uint32_t*>(p - odd), shift = 8 * odd;
  }
  __device__ uint32_t operator[](int i) const { return __funnelshift_r(words[i], words[i + 1], shift); }
};

// The value, which the compiler keeps: what depends on a lane's number it would compute again for each block.
template <class T>
__device__ __forceinline__ T kept(T value) {
#if defined(__CUDACC__)
  asm("" : "+r"(value));
#endif
  return value;
}

// A super-block of a warp's 16 weight rows in shared memory. block: the lane's, of rows g and g + 8. row: that of row
// lane % 16, from the lane's half of 32 bytes on, where blocks are multiples of 16 bytes: for load_matrices.
struct TilePlace {
  const uint8_t *row, *block[2];
};

// What a lane of a warp has to know of tiles.
template <class F>
struct TileLane {
  int t = kept<int>(threadIdx.x % 4);
  int row = kept<int>(threadIdx.x % 16 * kTileStride<F> + threadIdx.x % kWarp / 16 * 16);
  int block = kept<int>(threadIdx.x % kWarp / 4 * kTileStride<F>);
  int piece = kept<int>(threadIdx.x % 4 * 16);
  uint32_t factors = kept(0x4400u + 0x1111u * (threadIdx.x % 4));  // bytes of 6-bit mins
  uint32_t scales = kept(0x10u + 0x22u * (threadIdx.x % 4));       // bytes of those of runs 2 t and 2 t + 1

  // `upper`, `lower`: low words of where the lane's blocks lie in the weight.
  __device__ __forceinline__ TilePlace place(const char* stage, unsigned upper, unsigned lower) const {
    const auto* tile = reinterpret_cast<const uint8_t*>(stage);
    return {tile + row, {tile + block + shift_of<F>(upper), tile + block + 8 * kTileStride<F> + shift_of<F>(lower)}};
  }
};

// What scales the integers of a block.
template <class F>
struct TileHead;

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
  __device__ int scale(int run, int = 0) const { return static_cast<int>(scales[run / 4] >> run % 4 * 8 & 255); }
  // What the sums of half runs 2 t, 2 t + 1, 2 t + 8 and 2 t + 9 are multiplied by, a byte each.
  template <class Lane>
  __device__ uint32_t factors(const Lane& lane) const {
    return __byte_perm(mins[0], mins[1], lane.factors);
  }
};
template <>
struct TileHead<Q4_K> : SixBits {
  using SixBits::SixBits;
};
template <>
struct TileHead<Q5_K> : SixBits {
  using SixBits::SixBits;
};

template <>
struct TileHead<Q6_K> {
  const uint8_t* p;
  float d;
  __device__ explicit TileHead(const uint8_t* p) : p(p), d(Q6_K::d(p)) {}
  __device__ int scale(int run, int half) const { return Q6_K::scale(p, 2 * run + half); }
  __device__ uint32_t factors(const TileLane<Q6_K>& lane) const {
    const auto* two = reinterpret_cast<const uint16_t*>(p + 192) + lane.t;
    return __byte_perm(two[0], two[4], 0x5410);
  }
};

// The codes of half a super-block, in words as run_dots takes them. packed: of two runs each; high: of all runs.
struct HalfSuper {
  uint32_t packed[2][4], high[4];
};
template <class F>
struct TileCodes;

template <>
struct TileCodes<Q4_K> : HalfSuper {
  __device__ void load(const TilePlace& place, int half, int = 0) {
#pragma unroll
    for (int k = 0; k < 2; ++k) load_matrices(place.row + 16 + 64 * half + 32 * k, packed[k]);
  }
  // Odd runs' come 16 times as large.
  __device__ void codes(int run, uint32_t* a) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) a[i] = packed[run % 4 / 2][i] & (run % 2 ? 0xf0f0f0f0 : 0x0f0f0f0f);
  }
};

template <>
struct TileCodes<Q5_K> : HalfSuper {
  __device__ void load(const TilePlace& place, int half, int = 0) {
    if (half == 0) load_matrices(place.row + 16, high);
#pragma unroll
    for (int k = 0; k < 2; ++k) load_matrices(place.row + 48 + 64 * half + 32 * k, packed[k]);
  }
  __device__ void codes(int run, uint32_t* a) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t fifth = run < 4 ? high[i] << (4 - run) : high[i] >> (run - 4);
      a[i] = (packed[run % 4 / 2][i] >> run % 2 * 4 & 0x0f0f0f0f) | (fifth & 0x10101010);
    }
  }
};

// Without their bias, 32.
template <>
struct TileCodes<Q6_K> : HalfSuper {
  __device__ void load(const TilePlace& place, int half, int t) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const OddWords words(place.block[i % 2] + 4 * t);
      for (int k = 0; k < 2; ++k) packed[k][i] = words[16 * half + 8 * k + i / 2 * 4];
      high[i] = words[32 + 8 * half + i / 2 * 4];
    }
  }
  __device__ void codes(int run, uint32_t* a) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int quarter = run % 4;
      const uint32_t two = quarter < 2 ? high[i] << (4 - 2 * quarter) : high[i] >> (2 * quarter - 4);
      a[i] = (packed[run % 2][i] >> quarter / 2 * 4 & 0x0f0f0f0f) | (two & 0x30303030);
    }
  }
};

// Low and high bytes of a lane's sums of 16 activations, words t and t + 4 of a row.
__device__ __forceinline__ uint32_t low_bytes(const uint32_t* sums) { return __byte_perm(sums[0], sums[1], 0x6420); }
__device__ __forceinline__ uint32_t high_bytes(const uint32_t* sums) { return __byte_perm(sums[0], sums[1], 0x7531); }

// Adds the products of a super-block with one of each of eight activation rows; a lane has those of run_dots. `x`: in
// the one of row lane % 8, the 16 bytes of 64 that load_matrices takes of the lane.
template <class F>
__device__ __forceinline__ void meet_eight(const TileLane<F>& lane, const TilePlace& place, const char* x,
                                           const float* const* x_scale, float* chain) {
  const TileHead<F> head[2] = {TileHead<F>(place.block[0]), TileHead<F>(place.block[1])};
  TileCodes<F> codes;
  int S[4] = {}, sixteenfold[4] = {};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    codes.load(place, half, lane.t);
    uint32_t b[2][4];
#pragma unroll
    for (int k = 0; k < 2; ++k) load_matrices(x + 128 * half + 64 * k, b[k]);
#pragma unroll
    for (int run = 0; run < 4; ++run) {
      const uint32_t* own = b[run / 2] + run % 2 * 2;
      uint32_t a[4];
      int dot[4];
      codes.codes(4 * half + run, a);
      if constexpr (kScales<F> == 1) {
        constexpr bool kUnshifted = std::is_same_v<F, Q4_K>;
        run_dots<uint8_t>(a, own, dot);
        int* to = kUnshifted && run % 2 ? sixteenfold : S;
#pragma unroll
        for (int i = 0; i < 4; ++i) to[i] += head[i / 2].scale(4 * half + run) * dot[i];
      } else {
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          half_dots(a[2 * k], a[2 * k + 1], own[k], dot);
#pragma unroll
          for (int i = 0; i < 4; ++i) S[i] += head[i / 2].scale(4 * half + run, k) * dot[i];
        }
      }
    }
  }
  uint32_t sums[4];  // and what lies behind them
  load_matrices(x + kSuper, sums);
  const uint32_t factors[2] = {head[0].factors(lane), head[1].factors(lane)};
  int low[4], high[4];
  half_dots<int8_t, uint8_t>(factors[0], factors[1], low_bytes(sums), low);
  half_dots(factors[0], factors[1], high_bytes(sums), high);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int T = low[i] + 256 * high[i];
    S[i] += sixteenfold[i] >> 4;
    float value;
    if constexpr (kTwoSums<F>)
      value = fmaf(head[i / 2].d, static_cast<float>(S[i]), -(head[i / 2].dmin * static_cast<float>(T)));
    else
      value = head[i / 2].d * static_cast<float>(S[i] - kBias<F> * T);
    chain[i] = fmaf(*x_scale[i % 2], value, chain[i]);
  }
}

// Adds the products of `count` blocks of 32 codes, which meet 32 activations of one super-block after the other.
// `x_scale`: of the first ones. kAlone: for one row, as meet_single does.
template <class F, bool kAlone = false>
__device__ __forceinline__ void meet_pieces(const TileLane<F>& lane, const TilePlace& place, int count, const char* x,
                                            const float* const* x_scale, float* chain) {
  const int t = lane.t;
  const OddWords first(place.block[0] + 2 + 4 * t), second(place.block[1] + 2 + 4 * t);
#pragma unroll
  for (int i = 0; i < kPieces<F>; ++i) {
    if (i >= count) break;
    const uint8_t* p[2] = {place.block[0] + i * kPieceStride<F>, place.block[1] + i * kPieceStride<F>};
    const auto* words = reinterpret_cast<const uint32_t*>(x + i * Int8Row::kStride) + t;
    const int at = i * kPieceStride<F> / 4;
    const uint32_t a[4] = {first[at], second[at], first[at + 4], second[at + 4]}, b[2] = {words[0], words[4]};
    int dot[4];
    run_dots(a, b, dot);
    const bool odd = t % 2;
    if constexpr (kAlone)
      *chain = fmaf(x_scale[0][i * Int8Row::kStride / 4],
                    F::d(odd ? p[1] : p[0]) * static_cast<float>(odd ? dot[2] : dot[0]), *chain);
    else
#pragma unroll
      for (int k = 0; k < 4; ++k)
        chain[k] =
            fmaf(x_scale[k % 2][i * Int8Row::kStride / 4], F::d(p[k / 2]) * static_cast<float>(dot[k]), chain[k]);
  }
}

}  // namespace trigraph::TRIGRAPH_ISA
