// Groups of four super-blocks of Q4_K or Q6_K for tile_products.h: AVX-512 with VNNI. The codes of a group
// stay in registers while activation rows meet them, whose codes have been interleaved to the order in which those of
// weights are unpacked fastest: each lane has codes of one run only.
#pragma once

#include "rows.h"

namespace trigraph::TRIGRAPH_ISA {

// Super-blocks of a type. kLeast to kMost: activation rows for which this is the fastest way. (Two of Q4_K are so only
// where memory is fast.)
template <class F>
struct KTile {
  static constexpr int kLeast = 1, kMost = 0;
};

// Bytes of unpacked scales, as words: for each pair of blocks of a group.
struct PairScales {
  alignas(64) uint8_t byte[2][64] = {};
  constexpr PairScales() {
    for (int h = 0; h < 2; ++h)
      for (int i = 0; i < 32; ++i) {
        const int block = 2 * h + i % 8 / 4, run = i / 8 * 2 + i % 4 / 2;
        byte[h][2 * i] = static_cast<uint8_t>(16 * block + run + (run < 4 ? 0 : 4));
      }
  }
};
inline constexpr PairScales kPairScales;

TRIGRAPH_INLINE Ints swapped_lane_pairs(Ints a) { return _mm512_shuffle_epi32(a, _MM_PERM_BADC); }

// Runs 2 c and 2 c + 1 lie in the nibbles of 32 bytes; they have two lanes each of quad c in all four vectors. Dot
// products of a lane fit 16 bits.
template <>
struct KTile<Q4_K> {
  static constexpr int kLeast = 3, kMost = 4, kVectors = 4;
  Ints head[4], mins[4];

  // Activations in the order of codes.
  static void interleave(const Int8Super& x, Ints* out) {
    const Ints order = _mm512_setr_epi64(0, 5, 1, 4, 2, 7, 3, 6);
    Ints a[4];
    for (int c = 0; c < 4; ++c) a[c] = _mm512_permutexvar_epi64(order, load_ints(x.code + 64 * c));
    const auto quads_of = [&a](auto which, int i) {
      return _mm512_shuffle_i32x4(a[i], a[i + 1], decltype(which)::value);
    };
    const Ints first[2] = {quads_of(At<0x44>(), 0), quads_of(At<0x44>(), 2)};
    const Ints last[2] = {quads_of(At<0xee>(), 0), quads_of(At<0xee>(), 2)};
    out[0] = _mm512_shuffle_i32x4(first[0], first[1], 0x88), out[1] = _mm512_shuffle_i32x4(first[0], first[1], 0xdd);
    out[2] = _mm512_shuffle_i32x4(last[0], last[1], 0x88), out[3] = _mm512_shuffle_i32x4(last[0], last[1], 0xdd);
  }
  TRIGRAPH_INLINE static void nibbles(const uint8_t* p, Ints* code) {
    const Ints a = load_ints(p), b = load_ints(p + 64);
    const Ints even = _mm512_shuffle_i32x4(a, b, 0x88), odd = _mm512_shuffle_i32x4(a, b, 0xdd);
    constexpr int64_t kLow = field_matrix<0, 4, 0>(), kHigh = field_matrix<4, 4, 0>();
    const Ints matrix = _mm512_set4_epi64(kHigh, kLow, kHigh, kLow);
    code[0] = _mm512_gf2p8affine_epi64_epi8(even, matrix, 0);
    code[1] = _mm512_gf2p8affine_epi64_epi8(swapped_lane_pairs(even), matrix, 0);
    code[2] = _mm512_gf2p8affine_epi64_epi8(odd, matrix, 0);
    code[3] = _mm512_gf2p8affine_epi64_epi8(swapped_lane_pairs(odd), matrix, 0);
  }
  // x[g]: the activations of group g.
  TRIGRAPH_INLINE Floats value(Ints sum, const Int8Super* const* x) const {
    const auto dot = [&](int g) TRIGRAPH_INLINE_LAMBDA {
      const __m128i sums = _mm_loadu_si128(reinterpret_cast<const __m128i*>(x[g]->sum32));
      return _mm512_madd_epi16(mins[g], _mm512_broadcast_i32x4(sums));
    };
    const auto two = [&](int g) TRIGRAPH_INLINE_LAMBDA {
      const Ints a = dot(g), b = dot(g + 1);
      return add32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
    };
    const Ints second = add_lane_pairs(two(0), two(2));
    const Ints bits =
        _mm512_unpacklo_epi64(_mm512_unpacklo_epi32(head[0], head[1]), _mm512_unpacklo_epi32(head[2], head[3]));
    return fmsub(halves(bits), to_floats(sum), mul(halves(right32(bits, 16)), to_floats(second)));
  }

  template <int M, int g, class X, class Fetch>
  TRIGRAPH_INLINE void group(const uint8_t* const* p, X&& x, Fetch&& fetch, Ints* out) {
    head[g] = quads(p[0], p[1], p[2], p[3]);
    const Ints numbers = unpacked_scales(head[g]);
    const __m128i order = _mm_setr_epi8(4, -1, 5, -1, 6, -1, 7, -1, 12, -1, 13, -1, 14, -1, 15, -1);
    mins[g] = _mm512_shuffle_epi8(numbers, _mm512_broadcast_i32x4(order));
    Ints code[4][4], scale[2];
    TRIGRAPH_UNROLL
    for (int q = 0; q < 4; ++q) {
      fetch(q);
      nibbles(p[q] + 16, code[q]);
    }
    TRIGRAPH_UNROLL
    for (int h = 0; h < 2; ++h)
      scale[h] = _mm512_maskz_permutexvar_epi8(0x5555555555555555, load_ints(kPairScales.byte[h]), numbers);
    TRIGRAPH_UNROLL
    for (int i = 0; i < M; ++i) {
      Ints dot[4] = {ints(0), ints(0), ints(0), ints(0)};
      TRIGRAPH_UNROLL
      for (int v = 0; v < 4; ++v) {
        const Ints own = x(i)[v];
        TRIGRAPH_UNROLL
        for (int q = 0; q < 4; ++q) dot[q] = _mm512_dpbusd_epi32(dot[q], code[q][v], own);
      }
      const Ints a = _mm512_madd_epi16(_mm512_packs_epi32(dot[0], dot[1]), scale[0]);
      const Ints b = _mm512_madd_epi16(_mm512_packs_epi32(dot[2], dot[3]), scale[1]);
      out[i] = add_halves(a, b);
    }
  }
  TRIGRAPH_INLINE static Ints total(Ints a, Ints b, Ints c, Ints d) {
    const Ints order = _mm512_setr_epi32(0, 8, 2, 10, 1, 9, 3, 11, 4, 12, 6, 14, 5, 13, 7, 15);
    return _mm512_permutexvar_epi32(order, add_neighbours(add_quads(a, b), add_quads(c, d)));
  }
};

// Each lane has the codes of one run: lane 4 i + k those of run 4 k + i.
template <>
struct KTile<Q6_K> {
  static constexpr int kLeast = 2, kMost = 4;
  static constexpr int kVectors = 5;  // four of codes, and what the 32 that codes have more adds
  Ints last[4];

  TRIGRAPH_INLINE static void transpose(const Ints* x, Ints* out) {
    const Ints a = _mm512_unpacklo_epi32(x[0], x[1]), b = _mm512_unpackhi_epi32(x[0], x[1]);
    const Ints c = _mm512_unpacklo_epi32(x[2], x[3]), d = _mm512_unpackhi_epi32(x[2], x[3]);
    out[0] = _mm512_unpacklo_epi64(a, c), out[1] = _mm512_unpackhi_epi64(a, c);
    out[2] = _mm512_unpacklo_epi64(b, d), out[3] = _mm512_unpackhi_epi64(b, d);
  }
  static void interleave(const Int8Super& x, Ints* out) {
    const Ints raw[4] = {load_ints(x.code), load_ints(x.code + 64), load_ints(x.code + 128), load_ints(x.code + 192)};
    transpose(raw, out);
    const __m256i sums = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x.sum16));
    out[4] = runs(sub32(ints(0), left32(_mm512_cvtepi16_epi32(sums), 5)));
  }
  TRIGRAPH_INLINE static Ints runs(Ints a) {
    return _mm512_permutexvar_epi32(_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), a);
  }

  template <int M, int g, class X, class Fetch>
  TRIGRAPH_INLINE void group(const uint8_t* const* p, X&& x, Fetch&& fetch, Ints* out) {
    constexpr int kLast = 194;
    last[g] = quads(p[0] + kLast, p[1] + kLast, p[2] + kLast, p[3] + kLast);
    Ints code[4][4], scale[4];
    TRIGRAPH_UNROLL
    for (int q = 0; q < 4; ++q) {
      fetch(q);
      Ints raw[4];
      row_codes(Q6_K(), p[q], raw);
      transpose(raw, code[q]);
      scale[q] = runs(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p[q] + 192))));
    }
    TRIGRAPH_UNROLL
    for (int i = 0; i < M; ++i) {
      Ints dot[4] = {x(i)[4], x(i)[4], x(i)[4], x(i)[4]};
      TRIGRAPH_UNROLL
      for (int v = 0; v < 4; ++v) {
        const Ints own = x(i)[v];
        TRIGRAPH_UNROLL
        for (int q = 0; q < 4; ++q) dot[q] = _mm512_dpbusd_epi32(dot[q], code[q][v], own);
      }
      TRIGRAPH_UNROLL
      for (int q = 0; q < 4; ++q) dot[q] = _mm512_mullo_epi32(dot[q], scale[q]);
      out[i] = add_quads(add_halves(dot[0], dot[1]), add_halves(dot[2], dot[3]));
    }
  }
  TRIGRAPH_INLINE static Ints total(Ints a, Ints b, Ints c, Ints d) {
    return add_neighbours(add_lane_pairs(a, b), add_lane_pairs(c, d));
  }
  TRIGRAPH_INLINE Floats value(Ints sum, const Int8Super* const*) const {
    const Ints bits =
        _mm512_unpackhi_epi64(_mm512_unpackhi_epi32(last[0], last[1]), _mm512_unpackhi_epi32(last[2], last[3]));
    return mul(halves(right32(bits, 16)), to_floats(sum));
  }
};

}  // namespace trigraph::TRIGRAPH_ISA
