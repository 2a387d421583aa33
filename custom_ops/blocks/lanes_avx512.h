// The codes of a super-block in AVX-512 lanes. Four vectors of unsigned codes; a 32-bit lane of all four holds codes of
// one run only, so that four vpdpbusd add up in one vector and meet their scales there, once for 256 weights.
#pragma once

#include "unpack.h"

namespace trigraph::TRIGRAPH_ISA::native {

constexpr int kGroups = 1;    // sums of 32-bit lanes that a super-block needs
constexpr int kTogether = 2;  // weight rows that have registers together

// Keeps the compiler from loading a vector anew for each instruction that can read memory.
inline void opaque(__m512i* x) {
#if defined(__GNUC__)
  asm("" : "+v"(*x));
#endif
}

struct LaneBlock {
  __m512i code[4];
  __m512 scale, minus_min;
};

// First of the four elements in a lane of a vector: each layout follows from the cheapest way to unpack its types.
struct PairLayout {  // Q4_K, Q5_K: bytes hold runs 2c and 2c + 1
  static constexpr int element(int, int vector, int lane) {
    const int c = lane / 4, t = lane % 4, s = vector % 2;
    return 64 * c + 16 * (vector / 2) + (t < 2 ? 8 * s + 4 * t : 32 + 8 * (1 - s) + 4 * (t - 2));
  }
};
struct NibbleLayout {  // bytes hold elements i and 16 + i of one run
  static constexpr int element(int, int vector, int lane) {
    return 32 * (lane / 4 + lane % 4 / 2 * 4) + 16 * (vector / 2) + 8 * (vector % 2) + 4 * (lane % 2);
  }
};
struct ByteLayout {  // Q8_0
  static constexpr int element(int, int vector, int lane) { return 32 * (lane / 2) + 8 * vector + 4 * (lane % 2); }
};
struct SixLayout {  // Q6_K
  static constexpr int element(int, int vector, int lane) { return 64 * (lane % 4) + 16 * (lane / 4) + 4 * vector; }
};
struct CrumbLayout {  // Q2_K, Q3_K
  static constexpr int element(int, int vector, int lane) {
    return 16 * (lane / 8 * 8 + lane % 4 * 2 + lane / 4 % 2) + 4 * vector;
  }
};

template <class Layout, int kRun, int kOffset = 0>
inline __m512i lane_runs() {
  struct Table {
    alignas(64) int32_t run[16] = {};
    constexpr Table() {
      for (int i = 0; i < 16; ++i) run[i] = Layout::element(0, 0, i) / kRun + kOffset;
    }
  };
  static constexpr Table table;
  return _mm512_load_si512(table.run);
}

inline __m512i bytes(const uint8_t* p) { return _mm512_loadu_si512(p); }
inline __m128i bytes16(const uint8_t* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
inline __m256i bytes32(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
inline __m512i twice(__m256i x) { return _mm512_broadcast_i64x4(x); }
inline __m512i halves(int64_t low, int64_t high) {
  return _mm512_setr_epi64(low, low, low, low, high, high, high, high);
}
inline __m512i four_times(__m128i x) { return _mm512_broadcast_i32x4(x); }
inline __m512i low4(__m512i x) { return _mm512_and_si512(x, _mm512_set1_epi8(15)); }
inline __m512i high4(__m512i x) { return low4(_mm512_srli_epi16(x, 4)); }
// a | (b & mask)
inline __m512i merge(__m512i a, __m512i b, int mask) {
  return _mm512_ternarylogic_epi32(a, b, _mm512_set1_epi8(static_cast<char>(mask)), 0xf8);
}
inline __m512 half(const uint8_t* p) { return _mm512_set1_ps(read_half(p)); }

// Halves at p, p + stride, .. as floats.
inline __m256 halves8(const uint8_t* p, int stride) {
  uint16_t h[8];
  for (int i = 0; i < 8; ++i) std::memcpy(h + i, p + i * stride, 2);
  return _mm256_cvtph_ps(_mm_setr_epi16(h[0], h[1], h[2], h[3], h[4], h[5], h[6], h[7]));
}

template <class Layout>
inline __m512 lanes8(__m256 runs) {
  return _mm512_permutexvar_ps(lane_runs<Layout, 32>(), _mm512_castps256_ps512(runs));
}
template <class Layout>
inline __m512 lanes16(__m512 runs) {
  return _mm512_permutexvar_ps(lane_runs<Layout, 16>(), runs);
}

// Scales and mins of Q4_K and Q5_K: both times eight in one vector, then to lanes.
inline void scales6_lanes(const uint8_t* p, LaneBlock* out) {
  uint32_t pair;
  std::memcpy(&pair, p, 4);
  const __m128 d = _mm_cvtph_ps(_mm_cvtsi32_si128(static_cast<int>(pair ^ 0x80000000)));  // d, -dmin
  const __m512i which = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
  const __m512 factor = _mm512_permutexvar_ps(which, _mm512_castps128_ps512(d));
  // read_scales6_bytes in words: a, c, b, c >> 4 hold the low nibbles, a, a >> 2, b, b >> 2 two bits above them.
  const __m128i words = bytes16(p);
  const __m128i low = _mm_srlv_epi32(_mm_shuffle_epi32(words, 0xed), _mm_setr_epi32(0, 0, 0, 4));
  const __m128i high = _mm_srlv_epi32(_mm_shuffle_epi32(words, 0xa5), _mm_setr_epi32(0, 2, 0, 2));
  const __m128i both = _mm_and_si128(_mm_ternarylogic_epi32(low, high, _mm_set1_epi8(15), 0xe4), _mm_set1_epi8(63));
  const __m512 runs = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(both)), factor);
  out->scale = _mm512_permutexvar_ps(lane_runs<PairLayout, 32>(), runs);
  out->minus_min = _mm512_permutexvar_ps(lane_runs<PairLayout, 32, 8>(), runs);
}

// A matrix for bits(): the `count` bits of a byte from bit `from` go to bit `to`, the others are dropped.
constexpr int64_t move_bits(int from, int count, int to) {
  uint64_t matrix = 0;  // its bytes are the rows, the row of bit 7 first
  for (int i = 0; i < count; ++i) matrix |= uint64_t{1} << (8 * (7 - to - i) + from + i);
  return static_cast<int64_t>(matrix);
}
inline __m512i bits(__m512i x, __m512i matrix) { return _mm512_gf2p8affine_epi64_epi8(x, matrix, 0); }

inline __m512i swap_pairs(__m512i x) { return _mm512_shuffle_epi32(x, static_cast<_MM_PERM_ENUM>(0x4e)); }

inline void pair_nibbles(const uint8_t* p, LaneBlock* out) {
  const __m512i first = bytes(p), second = bytes(p + 64);
  const __m512i a = _mm512_shuffle_i64x2(first, second, 0x88), b = _mm512_shuffle_i64x2(first, second, 0xdd);
  constexpr int64_t kLow = move_bits(0, 4, 0), kHigh = move_bits(4, 4, 0);
  const __m512i nibble = _mm512_set4_epi64(kHigh, kLow, kHigh, kLow);
  out->code[0] = bits(a, nibble);
  out->code[1] = bits(swap_pairs(a), nibble);
  out->code[2] = bits(b, nibble);
  out->code[3] = bits(swap_pairs(b), nibble);
}

// Any type, a code at a time; below are faster ones.
template <class F>
struct Lanes {
  using Layout = std::conditional_t<F::kRun == 16, SixLayout, ByteLayout>;
  static void decode(const uint8_t* p, LaneBlock* out) {
    Codes codes;
    decode_super<F>(p, kSuper, &codes);
    alignas(64) uint8_t lane[4][64];
    alignas(64) float scale[16], minus_min[16] = {};
    for (int v = 0; v < 4; ++v)
      for (int i = 0; i < 64; ++i) {
        const int element = Layout::element(0, v, i / 4) + i % 4;
        lane[v][i] = static_cast<uint8_t>(codes.code[element] + F::kBias);
        scale[i / 4] = codes.scale[element / F::kRun];
        if (F::kMin) minus_min[i / 4] = -codes.min[element / F::kRun];
      }
    for (int v = 0; v < 4; ++v) out->code[v] = _mm512_load_si512(lane[v]);
    out->scale = _mm512_load_ps(scale);
    out->minus_min = _mm512_load_ps(minus_min);
  }
};

template <>
struct Lanes<Q4_K> {
  using Layout = PairLayout;
  TRIGRAPH_INLINE static void decode(const uint8_t* p, LaneBlock* out) {
    scales6_lanes(p, out);
    pair_nibbles(p + 16, out);
  }
};

template <>
struct Lanes<Q5_K> {
  using Layout = PairLayout;
  TRIGRAPH_INLINE static void decode(const uint8_t* p, LaneBlock* out) {
    scales6_lanes(p, out);
    pair_nibbles(p + 48, out);
    // Bit r of byte j is the fifth bit of element j of run r.
    const __m512i fifth =
        _mm512_setr_epi64(move_bits(0, 1, 4), move_bits(1, 1, 4), move_bits(2, 1, 4), move_bits(3, 1, 4),
                          move_bits(4, 1, 4), move_bits(5, 1, 4), move_bits(6, 1, 4), move_bits(7, 1, 4));
    const __m512i a = four_times(bytes16(p + 16)), b = four_times(bytes16(p + 32));
    out->code[0] = _mm512_or_si512(out->code[0], bits(a, fifth));
    out->code[1] = _mm512_or_si512(out->code[1], bits(swap_pairs(a), fifth));
    out->code[2] = _mm512_or_si512(out->code[2], bits(b, fifth));
    out->code[3] = _mm512_or_si512(out->code[3], bits(swap_pairs(b), fifth));
  }
};

template <>
struct Lanes<Q6_K> {
  using Layout = SixLayout;
  TRIGRAPH_INLINE static void decode(const uint8_t* p, LaneBlock* out) {
    const __m512 runs = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes16(p + 192)));
    out->scale = lanes16<Layout>(_mm512_mul_ps(runs, half(p + 208)));
    const __m512i low0 = bytes(p), low1 = bytes(p + 64);
    const __m512i high0 = twice(bytes32(p + 128)), high1 = twice(bytes32(p + 160));
    const __m512i even = halves(move_bits(0, 2, 4), move_bits(2, 2, 4)),
                  odd = halves(move_bits(4, 2, 4), move_bits(6, 2, 4));
    const __m512i a = merge(bits(high0, even), low0, 15), b = merge(bits(high0, odd), _mm512_srli_epi16(low0, 4), 15);
    const __m512i c = merge(bits(high1, even), low1, 15), d = merge(bits(high1, odd), _mm512_srli_epi16(low1, 4), 15);
    const __m512i ab0 = _mm512_unpacklo_epi32(a, b), ab1 = _mm512_unpackhi_epi32(a, b);
    const __m512i cd0 = _mm512_unpacklo_epi32(c, d), cd1 = _mm512_unpackhi_epi32(c, d);
    out->code[0] = _mm512_unpacklo_epi64(ab0, cd0);
    out->code[1] = _mm512_unpackhi_epi64(ab0, cd0);
    out->code[2] = _mm512_unpacklo_epi64(ab1, cd1);
    out->code[3] = _mm512_unpackhi_epi64(ab1, cd1);
  }
};

template <>
struct Lanes<Q8_0> {
  using Layout = ByteLayout;
  TRIGRAPH_INLINE static void decode(const uint8_t* p, LaneBlock* out) {
    out->scale = lanes8<Layout>(halves8(p, 34));
    auto two = [p](int i, int k) {
      const __m512i both =
          _mm512_inserti64x4(_mm512_castsi256_si512(bytes32(p + 34 * i + 2)), bytes32(p + 34 * k + 2), 1);
      return _mm512_xor_si512(both, _mm512_set1_epi8(-128));
    };
    const __m512i a = two(0, 2), b = two(1, 3), c = two(4, 6), d = two(5, 7);
    const __m512i ab0 = _mm512_unpacklo_epi64(a, b), ab1 = _mm512_unpackhi_epi64(a, b);
    const __m512i cd0 = _mm512_unpacklo_epi64(c, d), cd1 = _mm512_unpackhi_epi64(c, d);
    out->code[0] = _mm512_shuffle_i64x2(ab0, cd0, 0x88);
    out->code[1] = _mm512_shuffle_i64x2(ab1, cd1, 0x88);
    out->code[2] = _mm512_shuffle_i64x2(ab0, cd0, 0xdd);
    out->code[3] = _mm512_shuffle_i64x2(ab1, cd1, 0xdd);
  }
};

// The 16 bytes of nibbles of eight runs, `stride` apart, with equal runs in equal lanes.
inline void nibbles(const uint8_t* p, int stride, __m512i* first, __m512i* second) {
  auto four = [p, stride](int i) {
    __m512i x = _mm512_castsi128_si512(bytes16(p + i * stride));
    x = _mm512_inserti32x4(x, bytes16(p + (i + 1) * stride), 1);
    x = _mm512_inserti32x4(x, bytes16(p + (i + 2) * stride), 2);
    return _mm512_inserti32x4(x, bytes16(p + (i + 3) * stride), 3);
  };
  const __m512i a = four(0), b = four(4);
  *first = _mm512_unpacklo_epi64(a, b);
  *second = _mm512_unpackhi_epi64(a, b);
}
inline void split(__m512i first, __m512i second, LaneBlock* out) {
  out->code[0] = low4(first);
  out->code[1] = low4(second);
  out->code[2] = high4(first);
  out->code[3] = high4(second);
}

// Fifth bits of eight runs: bit i of the word at p + run * stride belongs to element i.
inline void fifth_bits(const uint8_t* p, int stride, LaneBlock* out) {
  uint32_t bits[8];
  for (int i = 0; i < 8; ++i) std::memcpy(bits + i, p + i % 2 * 4 * stride + i / 2 * stride, 4);  // runs 0, 4, 1, 5, ..
  const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(bits));
  const __m256i columns = _mm256_setr_epi8(0, 4, 8, 12, 16, 20, 24, 28, 1, 5, 9, 13, 17, 21, 25, 29, 2, 6, 10, 14, 18,
                                           22, 26, 30, 3, 7, 11, 15, 19, 23, 27, 31);
  alignas(32) uint64_t mask[4];
  _mm256_store_si256(reinterpret_cast<__m256i*>(mask), _mm256_permutexvar_epi8(columns, words));
  for (int v = 0; v < 4; ++v)
    out->code[v] = _mm512_mask_add_epi8(out->code[v], mask[v], out->code[v], _mm512_set1_epi8(16));
}

template <class F, int kData>
struct NibbleLanes {
  using Layout = NibbleLayout;
  TRIGRAPH_INLINE static void decode(const uint8_t* p, LaneBlock* out) {
    out->scale = lanes8<Layout>(halves8(p, F::kBytes));
    if (F::kMin) out->minus_min = lanes8<Layout>(halves8(p + 2, F::kBytes));
    __m512i first, second;
    nibbles(p + kData, F::kBytes, &first, &second);
    split(first, second, out);
  }
};
template <>
struct Lanes<Q4_0> : NibbleLanes<Q4_0, 2> {};
template <>
struct Lanes<Q4_1> : NibbleLanes<Q4_1, 4> {};
template <>
struct Lanes<Q5_0> : NibbleLanes<Q5_0, 6> {
  TRIGRAPH_INLINE static void decode(const uint8_t* p, LaneBlock* out) {
    NibbleLanes::decode(p, out);
    fifth_bits(p + 2, Q5_0::kBytes, out);
  }
};
template <>
struct Lanes<Q5_1> : NibbleLanes<Q5_1, 8> {
  TRIGRAPH_INLINE static void decode(const uint8_t* p, LaneBlock* out) {
    NibbleLanes::decode(p, out);
    fifth_bits(p + 4, Q5_1::kBytes, out);
  }
};

inline void look_up(LaneBlock* out) {
  alignas(16) int8_t biased[16];
  for (int i = 0; i < 16; ++i) biased[i] = static_cast<int8_t>(levels4()[i] + 128);
  const __m512i table = four_times(_mm_load_si128(reinterpret_cast<const __m128i*>(biased)));
  for (__m512i& code : out->code) code = _mm512_shuffle_epi8(table, code);
}
template <>
struct Lanes<IQ4_NL> : NibbleLanes<IQ4_NL, 2> {
  TRIGRAPH_INLINE static void decode(const uint8_t* p, LaneBlock* out) {
    NibbleLanes::decode(p, out);
    look_up(out);
  }
};
template <>
struct Lanes<IQ4_XS> {
  using Layout = NibbleLayout;
  TRIGRAPH_INLINE static void decode(const uint8_t* p, LaneBlock* out) {
    uint32_t low, high = static_cast<uint32_t>(p[2] | p[3] << 8);
    std::memcpy(&low, p + 4, 4);
    const uint64_t six = _pdep_u64(low, 0x0f0f0f0f0f0f0f0full) | _pdep_u64(high, 0x3030303030303030ull);
    const __m256i runs =
        _mm256_sub_epi32(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(static_cast<int64_t>(six))), _mm256_set1_epi32(32));
    out->scale = lanes8<Layout>(_mm256_mul_ps(_mm256_cvtepi32_ps(runs), _mm256_set1_ps(read_half(p))));
    const __m512i a = bytes(p + 8), b = bytes(p + 72);
    split(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b), out);
    look_up(out);
  }
};

// Two bits of each of four runs in a byte: vector j takes dword j of every 16 bytes, shifted by lane.
template <int kWord>
inline __m512i spread(__m512i x) {
  return _mm512_shuffle_epi32(x, static_cast<_MM_PERM_ENUM>(kWord * 0x55));
}
inline void crumbs(const uint8_t* p, LaneBlock* out) {
  const __m512i x = bytes(p), shift = _mm512_set4_epi32(6, 4, 2, 0), three = _mm512_set1_epi8(3);
  out->code[0] = _mm512_and_si512(_mm512_srlv_epi32(spread<0>(x), shift), three);
  out->code[1] = _mm512_and_si512(_mm512_srlv_epi32(spread<1>(x), shift), three);
  out->code[2] = _mm512_and_si512(_mm512_srlv_epi32(spread<2>(x), shift), three);
  out->code[3] = _mm512_and_si512(_mm512_srlv_epi32(spread<3>(x), shift), three);
}

template <>
struct Lanes<Q2_K> {
  using Layout = CrumbLayout;
  TRIGRAPH_INLINE static void decode(const uint8_t* p, LaneBlock* out) {
    const __m512i packed = _mm512_cvtepu8_epi32(bytes16(p));
    const __m512 scale = _mm512_cvtepi32_ps(_mm512_and_si512(packed, _mm512_set1_epi32(15)));
    const __m512 min = _mm512_cvtepi32_ps(_mm512_srli_epi32(packed, 4));
    out->scale = lanes16<Layout>(_mm512_mul_ps(scale, half(p + 80)));
    out->minus_min = lanes16<Layout>(_mm512_mul_ps(min, _mm512_set1_ps(-read_half(p + 82))));
    crumbs(p + 16, out);
  }
};

template <>
struct Lanes<Q3_K> {
  using Layout = CrumbLayout;
  TRIGRAPH_INLINE static void decode(const uint8_t* p, LaneBlock* out) {
    uint64_t first, second;
    read_scales3_bytes(p + 96, &first, &second);
    const __m128i six = _mm_set_epi64x(static_cast<int64_t>(second), static_cast<int64_t>(first));
    const __m512i runs = _mm512_sub_epi32(_mm512_cvtepu8_epi32(six), _mm512_set1_epi32(32));
    out->scale = lanes16<Layout>(_mm512_mul_ps(_mm512_cvtepi32_ps(runs), half(p + 108)));
    crumbs(p + 32, out);
    // Bit b of byte j is the third bit of element 32 b + j; lane (i, k) has b = 4 (i / 2) + k, turned to bit 2.
    const __m512i mask = twice(bytes32(p)),
                  turn = _mm512_setr_epi32(2, 1, 0, 31, 2, 1, 0, 31, 30, 29, 28, 27, 30, 29, 28, 27);
    out->code[0] = merge(out->code[0], _mm512_rolv_epi32(spread<0>(mask), turn), 4);
    out->code[1] = merge(out->code[1], _mm512_rolv_epi32(spread<1>(mask), turn), 4);
    out->code[2] = merge(out->code[2], _mm512_rolv_epi32(spread<2>(mask), turn), 4);
    out->code[3] = merge(out->code[3], _mm512_rolv_epi32(spread<3>(mask), turn), 4);
  }
};

// One number a lane for accumulate: sums of the lane as float32 for the types with a min, else -bias * sum.
template <class F>
inline void lane_numbers(const int8_t*, const int8_t* code, int32_t* out) {
  __m512i sum = _mm512_setzero_si512();
  for (int v = 0; v < 4; ++v) sum = _mm512_dpbusd_epi32(sum, _mm512_set1_epi8(1), _mm512_load_si512(code + 64 * v));
  if (F::kMin)
    _mm512_store_ps(out, _mm512_cvtepi32_ps(sum));
  else
    _mm512_store_si512(out, _mm512_mullo_epi32(sum, _mm512_set1_epi32(-F::kBias)));
}

template <class F>
inline vf add_mins(const LaneBlock& w, const float* sums, vf sum) {
  return fmadd(w.minus_min, load(sums), sum);
}

// Adds the products of N super-blocks with one activation row to the row's sums, which lie M apart. `lane` holds -bias
// * sum for the types with a bias (int32) and the sums for the types with a min (float32).
template <class F, int N, int M>
TRIGRAPH_INLINE void accumulate(const LaneBlock* const* w, const int8_t* code, const int32_t* lane, float scale,
                                vf* sum) {
  __m512i dot[N];
  TRIGRAPH_UNROLL
  for (int r = 0; r < N; ++r) dot[r] = F::kMin ? _mm512_setzero_si512() : _mm512_load_si512(lane);
  TRIGRAPH_UNROLL
  for (int v = 0; v < 4; ++v) {
    __m512i codes = _mm512_load_si512(code + 64 * v);
    if (N > 1) opaque(&codes);
    TRIGRAPH_UNROLL
    for (int r = 0; r < N; ++r) dot[r] = _mm512_dpbusd_epi32(dot[r], w[r]->code[v], codes);
  }
  TRIGRAPH_UNROLL
  for (int r = 0; r < N; ++r) {
    vf value = mul(_mm512_cvtepi32_ps(dot[r]), w[r]->scale);
    if (F::kMin) value = add_mins<F>(*w[r], reinterpret_cast<const float*>(lane), value);
    sum[r * M] = fmadd(value, splat(scale), sum[r * M]);
  }
}

// Eight vectors of codes as float32, one byte of the lanes after another. A byte in the last place of 2^23 is that
// number plus 2^23: no conversion is needed.
template <class F>
inline void expand(const LaneBlock& w, int chain, vf* out) {
  const __m512i base = _mm512_set1_epi32(0x4b000000), first = _mm512_set4_epi32(12, 8, 4, 0);
  for (int i = 0; i < 8; ++i) {
    const __m512i byte = _mm512_add_epi32(first, _mm512_set1_epi32(i % 4));
    const __m512i lifted = _mm512_mask_shuffle_epi8(base, 0x1111111111111111, w.code[chain * 2 + i / 4], byte);
    out[i] = sub(_mm512_castsi512_ps(lifted), splat(8388608.0f + F::kBias));
  }
}
inline vf chain_scale(const LaneBlock& w, int) { return w.scale; }

// Sums of float32 activations in each lane.
template <class F>
inline void lane_sums(const float*, const float* lanes, float* out) {
  vf sum = load(lanes);
  for (int v = 1; v < kSuper / VL; ++v) sum = add(sum, load(lanes + v * VL));
  store(out, sum);
}

}  // namespace trigraph::TRIGRAPH_ISA::native
