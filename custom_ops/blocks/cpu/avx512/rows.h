// Eight super-blocks of weights with as many of a few activation rows, from the plain layout of a GGUF file: AVX-512
// with VNNI. The lanes of a vector hold parts of a super-block's sum; eight of them are added up at a time, one to a
// lane.
#pragma once

#include <type_traits>

#include "../common/float8.h"
#include "../common/int8_products.h"

namespace trigraph::TRIGRAPH_ISA {

TRIGRAPH_INLINE Float8 add(Float8 a, Float8 b) { return _mm256_add_ps(a, b); }
TRIGRAPH_INLINE Float8 fmadd(Float8 a, Float8 b, Float8 c) { return _mm256_fmadd_ps(a, b, c); }
TRIGRAPH_INLINE void store(float* p, Float8 x) { _mm256_storeu_ps(p, x); }

// The 32 bytes at p, twice.
TRIGRAPH_INLINE Ints twice(const uint8_t* p) {
  return _mm512_broadcast_i64x4(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
// a in the lower half of each vector, b in the upper one.
TRIGRAPH_INLINE Ints joined(__m256i a, __m256i b) { return _mm512_inserti64x4(_mm512_castsi256_si512(a), b, 1); }
// field<kLow, kCount, kTo> of the lower half, field<kHigh, kCount, kTo> of the upper one.
template <int kLow, int kHigh, int kCount, int kTo>
TRIGRAPH_INLINE Ints fields(Ints a) {
  constexpr int64_t kFirst = field_matrix<kLow, kCount, kTo>(), kSecond = field_matrix<kHigh, kCount, kTo>();
  return _mm512_gf2p8affine_epi64_epi8(a, joined(_mm256_set1_epi64x(kFirst), _mm256_set1_epi64x(kSecond)), 0);
}
// The 16 bytes at each of four addresses.
TRIGRAPH_INLINE Ints quads(const void* a, const void* b, const void* c, const void* d) {
  const auto quad = [](const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); };
  const __m512i two = _mm512_inserti32x4(_mm512_castsi128_si512(quad(a)), quad(b), 1);
  return _mm512_inserti32x4(_mm512_inserti32x4(two, quad(c), 2), quad(d), 3);
}

template <int l>
using At = std::integral_constant<int, l>;

// Sums of lanes of a and b: of halves of a vector, of its quads, of the pairs and the neighbours of a quad.
TRIGRAPH_INLINE Ints add_halves(Ints a, Ints b) {
  return add32(_mm512_shuffle_i32x4(a, b, 0x44), _mm512_shuffle_i32x4(a, b, 0xee));
}
TRIGRAPH_INLINE Ints add_quads(Ints a, Ints b) {
  return add32(_mm512_shuffle_i32x4(a, b, 0x88), _mm512_shuffle_i32x4(a, b, 0xdd));
}
TRIGRAPH_INLINE Ints add_lane_pairs(Ints a, Ints b) {
  return add32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
}
TRIGRAPH_INLINE Ints add_neighbours(Ints a, Ints b) {
  const Floats x = as_floats(a), y = as_floats(b);
  return add32(_mm512_castps_si512(_mm512_shuffle_ps(x, y, 0x88)), _mm512_castps_si512(_mm512_shuffle_ps(x, y, 0xdd)));
}

// out[i]: the sums of the lanes of eight vectors; dots(At<l>, sum) puts vector l of activation row i in sum[i].
template <int M, class Dots>
TRIGRAPH_INLINE void sum_lanes(Dots&& dots, __m256i* out) {
  const auto pair = [&](auto l, Ints* sum) TRIGRAPH_INLINE_LAMBDA {
    Ints a[M], b[M];
    dots(l, a), dots(At<l + 1>(), b);
    TRIGRAPH_UNROLL
    for (int i = 0; i < M; ++i) sum[i] = add_halves(a[i], b[i]);
  };
  const auto quarter = [&](auto l, Ints* sum) TRIGRAPH_INLINE_LAMBDA {
    Ints a[M], b[M];
    pair(l, a), pair(At<l + 2>(), b);
    TRIGRAPH_UNROLL
    for (int i = 0; i < M; ++i) sum[i] = add_quads(a[i], b[i]);
  };
  Ints a[M], b[M];
  quarter(At<0>(), a), quarter(At<4>(), b);
  const __m256i order = _mm256_setr_epi32(0, 4, 8, 12, 2, 6, 10, 14);
  TRIGRAPH_UNROLL
  for (int i = 0; i < M; ++i) {
    const Ints pairs = add_lane_pairs(a[i], b[i]);
    const Ints all = add32(pairs, _mm512_shuffle_epi32(pairs, _MM_PERM_CDAB));
    out[i] = _mm512_castsi512_si256(_mm512_permutexvar_epi32(_mm512_castsi256_si512(order), all));
  }
}

// sum + the dot products of 256 codes with activations, times the scales of their runs: scales[k] holds words for
// vectors 2 k and 2 k + 1, four lanes of each in turn.
TRIGRAPH_INLINE Ints scaled_dots(Ints sum, const Ints* code, const Ints* scales, const int8_t* x) {
  TRIGRAPH_UNROLL
  for (int k = 0; k < 2; ++k) {
    const Ints a = _mm512_dpbusd_epi32(ints(0), code[2 * k], load_ints(x + 128 * k));
    const Ints b = _mm512_dpbusd_epi32(ints(0), code[2 * k + 1], load_ints(x + 128 * k + 64));
    sum = add_pairs(sum, _mm512_packs_epi32(a, b), scales[k]);
  }
  return sum;
}

// A type's own loop for up to kMost activation rows. values<M>(block, part, fetch, out): what eight super-blocks
// block(l) make of parts part(i, l) of row i, out[i]. fetch(l) asks memory for what comes a while after block l.
template <class F>
struct RowLoop {
  static constexpr int kMost = 0;
};

TRIGRAPH_INLINE void row_codes(Q4_K, const uint8_t* p, Ints* code) {
  TRIGRAPH_UNROLL
  for (int v = 0; v < 4; ++v) code[v] = fields<0, 4, 4, 0>(twice(p + 16 + 32 * v));
}
TRIGRAPH_INLINE void row_codes(Q5_K, const uint8_t* p, Ints* code) {
  const Ints high = twice(p + 16);
  const Ints fifth[4] = {fields<0, 1, 1, 4>(high), fields<2, 3, 1, 4>(high), fields<4, 5, 1, 4>(high),
                         fields<6, 7, 1, 4>(high)};
  TRIGRAPH_UNROLL
  for (int v = 0; v < 4; ++v) code[v] = either(fifth[v], fields<0, 4, 4, 0>(twice(p + 48 + 32 * v)));
}
TRIGRAPH_INLINE void row_codes(Q6_K, const uint8_t* p, Ints* code) {
  TRIGRAPH_UNROLL
  for (int half = 0; half < 2; ++half) {
    const Ints low = load_ints(p + 64 * half), high = twice(p + 128 + 32 * half);
    code[2 * half] = merge<15>(fields<0, 2, 2, 4>(high), low);
    code[2 * half + 1] = either(fields<4, 6, 2, 4>(high), high4(low));
  }
}

// The scales and mins of the Q4_K or Q5_K block that each quad is the head of: scales 0 to 3, mins 0 to 3, scales 4 to
// 7, mins 4 to 7.
TRIGRAPH_INLINE Ints unpacked_scales(Ints head) {
  const Ints low = both(head, bytes(63));
  const Ints last = _mm512_srlv_epi32(_mm512_shuffle_epi32(head, _MM_PERM_DDDD), _mm512_set4_epi32(0, 4, 0, 0));
  const Ints high = merge<15>(field<6, 2, 4>(head), last);
  return _mm512_castps_si512(_mm512_shuffle_ps(_mm512_castsi512_ps(low), _mm512_castsi512_ps(high), 0x99));
}

// Scales and mins of six bits.
template <class F>
struct SixBitRows {
  static constexpr int kMost = F::kBits == 4 ? 1 : 3;

  template <int M, class Block, class Part, class Fetch>
  TRIGRAPH_INLINE static void values(Block&& block, Part&& part, Fetch&& fetch, Float8* out) {
    const Ints head[2] = {quads(block(0), block(1), block(2), block(3)), quads(block(4), block(5), block(6), block(7))};
    const Ints numbers[2] = {unpacked_scales(head[0]), unpacked_scales(head[1])};
    __m256i mins[M], dots[M];
    TRIGRAPH_UNROLL
    for (int i = 0; i < M; ++i) {
      const auto sums = [&](int l) TRIGRAPH_INLINE_LAMBDA { return part(i, l).sum32; };
      const Ints four[2] = {quads(sums(0), sums(1), sums(2), sums(3)), quads(sums(4), sums(5), sums(6), sums(7))};
      mins[i] = second(numbers, four);
    }
    sum_lanes<M>(
        [&](auto l, Ints* sum) TRIGRAPH_INLINE_LAMBDA {
          fetch(l);
          Ints code[4], scales[2];
          constexpr int kQuad = decltype(l)::value % 4;
          const Ints own = _mm512_shuffle_i32x4(numbers[l / 4], numbers[l / 4], kQuad * 0x55);
          scales[0] = _mm512_shuffle_epi8(own, joined(words(0, 2), words(1, 3)));
          scales[1] = _mm512_shuffle_epi8(own, joined(words(8, 10), words(9, 11)));
          row_codes(F(), block(l), code);
          TRIGRAPH_UNROLL
          for (int i = 0; i < M; ++i) sum[i] = scaled_dots(ints(0), code, scales, part(i, l).code);
        },
        dots);
    const __m256i halves = _mm512_castsi512_si256(_mm512_permutex2var_epi32(
        head[0], _mm512_castsi256_si512(_mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28)), head[1]));
    const Float8 d = half_float8(halves), dmin = half_float8(_mm256_srli_epi32(halves, 16));
    TRIGRAPH_UNROLL
    for (int i = 0; i < M; ++i)
      out[i] = _mm256_fmsub_ps(d, _mm256_cvtepi32_ps(dots[i]), _mm256_mul_ps(dmin, _mm256_cvtepi32_ps(mins[i])));
  }

 private:
  static Float8 half_float8(__m256i a) { return _mm256_cvtph_ps(_mm256_cvtepi32_epi16(a)); }
  // Takes bytes a and b of a quad as words, four times each; both quads of a vector.
  TRIGRAPH_INLINE static __m256i words(char a, char b) {
    return _mm256_broadcastsi128_si256(_mm_setr_epi8(a, -1, a, -1, a, -1, a, -1, b, -1, b, -1, b, -1, b, -1));
  }
  // Sums of mins with the sums of activations.
  TRIGRAPH_INLINE static __m256i second(const Ints* numbers, const Ints* sums) {
    const auto products = [](Ints numbers, Ints sums) TRIGRAPH_INLINE_LAMBDA {
      const __m128i order = _mm_setr_epi8(4, -1, 5, -1, 6, -1, 7, -1, 12, -1, 13, -1, 14, -1, 15, -1);
      return add_pairs(ints(0), _mm512_shuffle_epi8(numbers, _mm512_broadcast_i32x4(order)), sums);
    };
    const Ints a = products(numbers[0], sums[0]), b = products(numbers[1], sums[1]);
    const Ints pairs = add32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
    const Ints all = add32(pairs, _mm512_shuffle_epi32(pairs, _MM_PERM_BADC));
    const __m256i order = _mm256_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13);
    return _mm512_castsi512_si256(_mm512_permutexvar_epi32(_mm512_castsi256_si512(order), all));
  }
};
template <>
struct RowLoop<Q4_K> : SixBitRows<Q4_K> {};
template <>
struct RowLoop<Q5_K> : SixBitRows<Q5_K> {};

template <>
struct RowLoop<Q6_K> {
  static constexpr int kMost = 1;

  template <int M, class Block, class Part, class Fetch>
  TRIGRAPH_INLINE static void values(Block&& block, Part&& part, Fetch&& fetch, Float8* out) {
    __m256i dots[M];
    sum_lanes<M>(
        [&](auto l, Ints* sum) TRIGRAPH_INLINE_LAMBDA {
          fetch(l);
          const uint8_t* p = block(l);
          Ints code[4], scales[2];
          const __m256i scale = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 192)));
          TRIGRAPH_UNROLL
          for (int k = 0; k < 2; ++k) scales[k] = _mm512_permutexvar_epi16(order(k), _mm512_castsi256_si512(scale));
          row_codes(Q6_K(), p, code);
          TRIGRAPH_UNROLL
          for (int i = 0; i < M; ++i) {
            const __m256i sums = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(part(i, l).sum16));
            const __m256i bias = _mm256_slli_epi32(_mm256_madd_epi16(scale, sums), 5);  // codes have 32 added
            const Ints start = _mm512_zextsi256_si512(_mm256_sub_epi32(_mm256_setzero_si256(), bias));
            sum[i] = scaled_dots(start, code, scales, part(i, l).code);
          }
        },
        dots);
    alignas(16) uint16_t halves[8];
    for (int l = 0; l < 8; ++l) std::memcpy(halves + l, block(l) + 208, 2);
    const Float8 d = _mm256_cvtph_ps(_mm_load_si128(reinterpret_cast<const __m128i*>(halves)));
    TRIGRAPH_UNROLL
    for (int i = 0; i < M; ++i) out[i] = _mm256_mul_ps(d, _mm256_cvtepi32_ps(dots[i]));
  }

 private:
  // The words of runs 8 k + j and 8 k + 4 + j, four times each, in quad j.
  TRIGRAPH_INLINE static Ints order(int k) {
    const int64_t word = 0x0001000100010001;
    const int64_t r = 8 * k;
    return _mm512_setr_epi64(r * word, (r + 4) * word, (r + 1) * word, (r + 5) * word, (r + 2) * word, (r + 6) * word,
                             (r + 3) * word, (r + 7) * word);
  }
};

}  // namespace trigraph::TRIGRAPH_ISA
