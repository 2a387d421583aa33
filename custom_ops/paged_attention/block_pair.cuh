// Two neighbouring Q8_0 blocks of a head, as four lanes read them: blocks of 34 bytes have their codes at multiples of
// four bytes only in every other one.
#pragma once

#include "heads.cuh"

namespace trigraph::TRIGRAPH_ISA {

constexpr int kPairLanes = 4;  // that share a pair of blocks: each has two words of either block's codes

// Where code i of block b lies among its block's 32 as the lanes have them: those of lane t are from 4 t and 16 + 4 t
// on. The first block of a pair begins with code 2, as the others are in a word with the scale, and ends with 0 and 1.
__device__ __forceinline__ int pair_place(int b, int i) { return b % 2 ? i : (i + kQ8Width - 2) % kQ8Width; }

// Whether heads lie at multiples of four bytes, and have an even number of blocks.
__device__ __forceinline__ bool aligned_blocks(int width) { return width / kQ8Width % 2 == 0; }

// kAligned: aligned_blocks.
template <bool kAligned>
struct BlockPair {
  uint32_t head, middle;  // the first one's scale and codes 0 and 1; its codes 30 and 31 and the second one's scale
  uint32_t word[2][2];    // of each block; the first one's last lane has `middle` in the second

  // Block b, an even one, and the next one of a head of so many bytes, by lane t. What lies behind the head is not
  // read.
  __device__ __forceinline__ void read(const Q8* from, int b, int t, int bytes) {
    const Q8* pair = from + b * kQ8Bytes;
    const int last = bytes - b * kQ8Bytes - 2;
    head = at(pair, 0, last), middle = at(pair, kQ8Width, last);
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      word[0][n] = at(pair, 4 + 16 * n + 4 * t, last);
      word[1][n] = at(pair, kQ8Bytes + 2 + 16 * n + 4 * t, last);
    }
  }
  template <int kSecond>
  __device__ __forceinline__ void codes(int t, uint32_t* own) const {
    own[0] = word[kSecond][0];
    own[1] = kSecond ? word[1][1] : __byte_perm(word[0][1], head, t == kPairLanes - 1 ? 0x7610 : 0x3210);
  }
  template <int kSecond>
  __device__ __forceinline__ float d() const {
    return half_bits(static_cast<uint16_t>(kSecond ? middle >> 16 : head));
  }

 private:
  __device__ __forceinline__ static uint32_t at(const Q8* pair, int offset, int last) {
    if constexpr (kAligned) return *reinterpret_cast<const uint32_t*>(pair + offset);
    const auto* halves = reinterpret_cast<const uint16_t*>(pair);
    return halves[min(offset, last) / 2] | uint32_t{halves[min(offset + 2, last) / 2]} << 16;
  }
};

}  // namespace trigraph::TRIGRAPH_ISA
