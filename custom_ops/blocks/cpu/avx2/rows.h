// Eight super-blocks of weights with as many of one activation row, from the plain layout of a GGUF file: AVX2 or
// AVX-VNNI. The lanes of a vector hold parts of a super-block's sum; eight of them are added up at a time, one to a
// lane.
#pragma once

#include "../common/float8.h"
#include "../common/int8_products.h"
#include "../common/k_lanes.h"

namespace trigraph::TRIGRAPH_ISA {

// The 16 bytes at each of two addresses.
TRIGRAPH_INLINE Ints quads(const void* a, const void* b) {
  const auto quad = [](const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); };
  return _mm256_inserti128_si256(_mm256_castsi128_si256(quad(a)), quad(b), 1);
}
TRIGRAPH_INLINE Ints either_quad(Ints a, int upper) {
  return upper ? _mm256_permute2x128_si256(a, a, 0x11) : _mm256_permute2x128_si256(a, a, 0);
}

TRIGRAPH_INLINE void store_ints(void* p, Ints a) { _mm256_store_si256(static_cast<__m256i*>(p), a); }
// The sums of the lanes of each quad of four vectors. (Horizontal additions take three times as long.)
TRIGRAPH_INLINE Ints sum_quads(const Ints* v) {
  const Ints a = add32(_mm256_unpacklo_epi32(v[0], v[1]), _mm256_unpackhi_epi32(v[0], v[1]));
  const Ints b = add32(_mm256_unpacklo_epi32(v[2], v[3]), _mm256_unpackhi_epi32(v[2], v[3]));
  return add32(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
}
// The sums of the lanes of eight vectors.
TRIGRAPH_INLINE Ints sum_lanes(const Ints* v) {
  const Ints low = sum_quads(v), high = sum_quads(v + 4);
  return add32(_mm256_permute2x128_si256(low, high, 0x20), _mm256_permute2x128_si256(low, high, 0x31));
}

// sum + the dot products of codes, vectors v and v + 1 of a super-block, with its activations x, times their scales:
// word v of a quad of `scales` belongs to the same quad of vector v.
TRIGRAPH_INLINE Ints scaled_dots(Ints sum, const Ints* code, const int8_t* x, Ints scales, int v) {
#if defined(__AVXVNNI__)
  const int64_t word = 0x0001000100010001 * ((2 * v + 1) << 8 | 2 * v);  // four times each, as packs joins the sums
  const Ints order = _mm256_setr_epi64x(word, word + 0x0202020202020202, word, word + 0x0202020202020202);
  const auto dot = [code, x, v](int i) {
    return _mm256_dpbusd_avx_epi32(ints(0), code[i], load_ints(x + 32 * (v + i)));
  };
  return add_pairs(sum, _mm256_packs_epi32(dot(0), dot(1)), _mm256_shuffle_epi8(scales, order));
#else
  const auto of = [scales](int v) { return _mm256_shuffle_epi8(scales, shorts((2 * v + 1) << 8 | 2 * v)); };
  sum = add_pairs(sum, _mm256_maddubs_epi16(code[0], load_ints(x + 32 * v)), of(v));
  return add_pairs(sum, _mm256_maddubs_epi16(code[1], load_ints(x + 32 * v + 32)), of(v + 1));
#endif
}
// Dot products of signed codes with activations, four to a lane.
TRIGRAPH_INLINE Ints signed_dots(Ints code, Ints x) {
  const Ints magnitudes = _mm256_abs_epi8(code), signed_x = _mm256_sign_epi8(x, code);
#if defined(__AVXVNNI__)
  return _mm256_dpbusd_avx_epi32(ints(0), magnitudes, signed_x);
#else
  return add_pairs(ints(0), _mm256_maddubs_epi16(magnitudes, signed_x), shorts(1));
#endif
}

// A type's own loop for an activation row. values<1>(block, part, fetch, out): what eight super-blocks block(l) make of
// parts part(0, l), *out. fetch(l) asks memory for what comes a while after block l: a few lines between its products
// and the next one's, for many at once would wait for each other.
template <class F>
struct RowLoop {
  static constexpr int kMost = 0;
};

// In a register: GCC would load what is used twice two times.
TRIGRAPH_INLINE Ints loaded(const uint8_t* p) {
  Ints a = load_ints(p);
  asm("" : "+x"(a));
  return a;
}
// Calls use(v, code) for the codes of vectors v and v + 1 of a super-block.
template <class Use>
TRIGRAPH_INLINE void row_codes(Q4_K, const uint8_t* p, Use&& use) {
  TRIGRAPH_UNROLL
  for (int v = 0; v < 8; v += 2) {
    const Ints raw = loaded(p + 16 + 16 * v), code[2] = {low4(raw), high4(raw)};
    use(v, code);
  }
}
template <class Use>
TRIGRAPH_INLINE void row_codes(Q5_K, const uint8_t* p, Use&& use) {
  Ints high = load_ints(p + 16);
  TRIGRAPH_UNROLL
  for (int v = 0; v < 8; v += 2) {
    const Ints raw = loaded(p + 48 + 16 * v);
    const Ints code[2] = {merge<15>(field<0, 1, 4>(high), raw), either(high4(raw), field<1, 1, 4>(high))};
    use(v, code);
    high = right16(high, 2);
  }
}
template <class Use>
TRIGRAPH_INLINE void row_codes(Q6_K, const uint8_t* p, Use&& use) {
  TRIGRAPH_UNROLL
  for (int half = 0; half < 2; ++half) {
    const Ints a = loaded(p + 64 * half), b = loaded(p + 64 * half + 32), high = loaded(p + 128 + 32 * half);
    const Ints low[2] = {merge<15>(field<0, 2, 4>(high), a), merge<15>(field<2, 2, 4>(high), b)};
    use(4 * half, low);
    const Ints top[2] = {either(high4(a), field<4, 2, 4>(high)), either(high4(b), field<6, 2, 4>(high))};
    use(4 * half + 2, top);
  }
}

template <class F>
TRIGRAPH_INLINE Ints row_dots(Ints sum, const uint8_t* p, const int8_t* x, Ints scales) {
  row_codes(F(), p,
            [&](int v, const Ints* code) TRIGRAPH_INLINE_LAMBDA { sum = scaled_dots(sum, code, x, scales, v); });
  return sum;
}

// Scales and mins of six bits, unpacked for all blocks at once. Scales wait in memory: broadcasts from there cost
// nothing beside the arithmetic.
template <class F>
struct SixBitRows {
  static constexpr int kMost = 1;

  template <int M, class Block, class Part, class Fetch>
  TRIGRAPH_INLINE static void values(Block&& block, Part&& part, Fetch&& fetch, Float8* out) {
    Ints head[4], sums[4], scales[2], mins[2], dots[8];
    alignas(32) int16_t scale[4][8][2];  // of runs 4 i and 4 i + 2 of each block, then 4 i + 1 and 4 i + 3
    load_each(block, head);
    six_bits(head, scales, mins);
    TRIGRAPH_UNROLL
    for (int i = 0; i < 2; ++i) {
      store_ints(scale[2 * i], both(scales[i], shorts(255)));
      store_ints(scale[2 * i + 1], right16(scales[i], 8));
    }
    load_each([&part](int l) TRIGRAPH_INLINE_LAMBDA { return part(0, l).sum32; }, sums);
    Ints second = ints(0);
    TRIGRAPH_UNROLL
    for (uint32_t k = 0; k < 4; ++k)  // mins 2 k and 2 k + 1
      second = add_pairs(second, in_lane(mins[k / 2], 0x80018000u + k % 2 * 0x00020002u), sums[k]);
    TRIGRAPH_LOOP
    for (int l = 0; l < 8; ++l) {
      fetch(l);
      const int8_t* x = part(0, l).code;
      Ints sum = ints(0);
      row_codes(F(), block(l), [&](int v, const Ints* code) TRIGRAPH_INLINE_LAMBDA {
        TRIGRAPH_UNROLL
        for (int i = 0; i < 2; ++i) {
          const Ints own = shorts(scale[v / 4 * 2 + i][l][v % 4 / 2]);
          sum = add_pairs(sum, _mm256_maddubs_epi16(code[i], load_ints(x + 32 * (v + i))), own);
        }
      });
      dots[l] = sum;
    }
    const Float8 value = to_floats(sum_lanes(dots));
    *out = fmsub(halves(head[0]), value, _mm256_mul_ps(halves(right32(head[0], 16)), to_floats(second)));
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
    Ints dots[8];
    alignas(16) uint16_t d[8];
    TRIGRAPH_LOOP
    for (int l = 0; l < 8; ++l) {
      const uint8_t* p = block(l);
      fetch(l);
      std::memcpy(d + l, p + 208, 2);
      const __m128i scale = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 192));
      const Ints sums = add_pairs(ints(0), _mm256_cvtepi8_epi16(scale), load_ints(part(0, l).sum16));
      const __m128i order = _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
      const Ints scales = _mm256_cvtepi8_epi16(_mm_shuffle_epi8(scale, order));
      dots[l] = row_dots<Q6_K>(sub32(ints(0), left32(sums, 5)), p, part(0, l).code, scales);  // codes have 32 added
    }
    const Float8 scale = _mm256_cvtph_ps(_mm_load_si128(reinterpret_cast<const __m128i*>(d)));
    *out = _mm256_mul_ps(scale, to_floats(sum_lanes(dots)));
  }
};

}  // namespace trigraph::TRIGRAPH_ISA
