// The codes of a super-block in AVX2 lanes. Two groups of four vectors; a 32-bit lane of the four vectors of a group
// holds codes of one run only, so that their products add up as 16-bit numbers and meet their scales once a group.
#pragma once

#include "unpack.h"

namespace trigraph::TRIGRAPH_ISA::native {

constexpr int kGroups = 2;
constexpr int kTogether = 1;

struct LaneBlock {
  __m256i code[8];
  __m256 scale[2], minus_min[2];  // scales in lanes; mins in the order of runs, eight or sixteen
};

// First of the four elements in a lane of a vector: each layout follows from the cheapest way to unpack its types.
struct PairLayout {  // Q4_K, Q5_K: bytes hold runs 2c and 2c + 1
  static constexpr int element(int group, int vector, int lane) {
    return 64 * (lane / 2) + 32 * group + 8 * vector + 4 * (lane % 2);
  }
};
struct NibbleLayout {  // bytes hold elements i and 16 + i of one run
  static constexpr int element(int group, int vector, int lane) {
    return 32 * (4 * group + lane / 4 + lane / 2 % 2 * 2) + 8 * vector + 4 * (lane % 2);
  }
};
struct ByteLayout {  // Q8_0
  static constexpr int element(int group, int vector, int lane) {
    return 32 * (4 * group + lane / 2) + 8 * vector + 4 * (lane % 2);
  }
};
struct SixteenLayout {  // Q2_K, Q3_K, Q6_K
  static constexpr int element(int group, int vector, int lane) {
    return 16 * (8 * group + lane % 4 * 2 + lane / 4) + 4 * vector;
  }
};

template <class Layout, int kRun, int kGroup>
inline __m256i lane_runs() {
  struct Table {
    alignas(32) int32_t run[8] = {};
    constexpr Table() {
      for (int i = 0; i < 8; ++i) run[i] = Layout::element(kGroup, 0, i) / kRun % 8;
    }
  };
  static constexpr Table table;
  return _mm256_load_si256(reinterpret_cast<const __m256i*>(table.run));
}

inline __m128i bytes16(const uint8_t* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
inline __m256i bytes32(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
inline __m256i two(const uint8_t* p, const uint8_t* q) {
  return _mm256_inserti128_si256(_mm256_castsi128_si256(bytes16(p)), bytes16(q), 1);
}
inline __m256i low4(__m256i x) { return _mm256_and_si256(x, _mm256_set1_epi8(15)); }
inline __m256i high4(__m256i x) { return low4(_mm256_srli_epi16(x, 4)); }
// a | (b & mask)
inline __m256i merge(__m256i a, __m256i b, int mask) {
  return _mm256_or_si256(a, _mm256_and_si256(b, _mm256_set1_epi8(static_cast<char>(mask))));
}
inline __m256 half(const uint8_t* p) { return _mm256_set1_ps(read_half(p)); }

// Halves at p, p + stride, .. as floats.
inline __m256 halves8(const uint8_t* p, int stride) {
  int16_t h[8];
  for (int i = 0; i < 8; ++i) std::memcpy(h + i, p + i * stride, 2);
  return _mm256_cvtph_ps(_mm_setr_epi16(h[0], h[1], h[2], h[3], h[4], h[5], h[6], h[7]));
}
inline __m256 negated(__m256 x) { return _mm256_xor_ps(x, _mm256_set1_ps(-0.0f)); }

template <class Layout>
inline void lanes8(__m256 runs, LaneBlock* out) {
  out->scale[0] = _mm256_permutevar8x32_ps(runs, lane_runs<Layout, 32, 0>());
  out->scale[1] = _mm256_permutevar8x32_ps(runs, lane_runs<Layout, 32, 1>());
}
inline void lanes16(__m256 first, __m256 second, LaneBlock* out) {
  out->scale[0] = _mm256_permutevar8x32_ps(first, lane_runs<SixteenLayout, 16, 0>());
  out->scale[1] = _mm256_permutevar8x32_ps(second, lane_runs<SixteenLayout, 16, 1>());
}

inline void scales6_lanes(const uint8_t* p, LaneBlock* out) {
  uint64_t scale, min;
  read_scales6_bytes(p + 4, &scale, &min);
  auto floats = [](uint64_t eight) {
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(static_cast<int64_t>(eight))));
  };
  lanes8<PairLayout>(_mm256_mul_ps(floats(scale), half(p)), out);
  out->minus_min[0] = _mm256_mul_ps(floats(min), negated(half(p + 2)));
}

inline void pair_nibbles(const uint8_t* p, LaneBlock* out) {
  for (int k = 0; k < 2; ++k) {
    const __m256i a = two(p + 16 * k, p + 64 + 16 * k), b = two(p + 32 + 16 * k, p + 96 + 16 * k);
    const __m256i even = _mm256_unpacklo_epi64(a, b), odd = _mm256_unpackhi_epi64(a, b);
    out->code[2 * k] = low4(even);
    out->code[2 * k + 1] = low4(odd);
    out->code[4 + 2 * k] = high4(even);
    out->code[5 + 2 * k] = high4(odd);
  }
}

// Any type, a code at a time; below are faster ones.
template <class F>
struct Lanes {
  using Layout = std::conditional_t<F::kRun == 16, SixteenLayout, ByteLayout>;
  static void decode(const uint8_t* p, LaneBlock* out) {
    Codes codes;
    decode_super<F>(p, kSuper, &codes);
    alignas(32) int8_t lane[8][32];
    alignas(32) float scale[2][8];
    for (int v = 0; v < 8; ++v)
      for (int i = 0; i < 32; ++i) {
        const int element = Layout::element(v / 4, v % 4, i / 4) + i % 4;
        lane[v][i] = static_cast<int8_t>(codes.code[element] + (F::kBias == 128 ? 0 : F::kBias));
        scale[v / 4][i / 4] = codes.scale[element / F::kRun];
      }
    for (int v = 0; v < 8; ++v) out->code[v] = _mm256_load_si256(reinterpret_cast<const __m256i*>(lane[v]));
    for (int g = 0; g < 2; ++g) {
      out->scale[g] = _mm256_load_ps(scale[g]);
      if (F::kMin) out->minus_min[g] = negated(_mm256_load_ps(codes.min + 8 * g));
    }
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
    for (int v = 0; v < 4; ++v) {
      int64_t eight;
      std::memcpy(&eight, p + 16 + 8 * v, 8);
      const __m256i bits = _mm256_srlv_epi64(_mm256_set1_epi64x(eight), _mm256_setr_epi64x(0, 2, 4, 6));
      out->code[v] = merge(out->code[v], _mm256_slli_epi16(bits, 4), 16);
      out->code[4 + v] = merge(out->code[4 + v], _mm256_slli_epi16(bits, 3), 16);
    }
  }
};

// Four vectors of two runs of 16 each: dword v of every run to vector v.
inline void transpose16(__m256i a, __m256i b, __m256i c, __m256i d, __m256i* out) {
  const __m256i ab0 = _mm256_unpacklo_epi32(a, b), ab1 = _mm256_unpackhi_epi32(a, b);
  const __m256i cd0 = _mm256_unpacklo_epi32(c, d), cd1 = _mm256_unpackhi_epi32(c, d);
  out[0] = _mm256_unpacklo_epi64(ab0, cd0);
  out[1] = _mm256_unpackhi_epi64(ab0, cd0);
  out[2] = _mm256_unpacklo_epi64(ab1, cd1);
  out[3] = _mm256_unpackhi_epi64(ab1, cd1);
}

template <>
struct Lanes<Q6_K> {
  using Layout = SixteenLayout;
  TRIGRAPH_INLINE static void decode(const uint8_t* p, LaneBlock* out) {
    const __m128i packed = bytes16(p + 192);
    const __m256 d = half(p + 208);
    lanes16(_mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(packed)), d),
            _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(packed, 8))), d), out);
    for (int g = 0; g < 2; ++g) {
      const __m256i first = bytes32(p + 64 * g), second = bytes32(p + 64 * g + 32), high = bytes32(p + 128 + 32 * g);
      transpose16(merge(low4(first), _mm256_slli_epi16(high, 4), 48),
                  merge(low4(second), _mm256_slli_epi16(high, 2), 48), merge(high4(first), high, 48),
                  merge(high4(second), _mm256_srli_epi16(high, 2), 48), out->code + 4 * g);
    }
  }
};

template <>
struct Lanes<Q8_0> {
  using Layout = ByteLayout;
  TRIGRAPH_INLINE static void decode(const uint8_t* p, LaneBlock* out) {
    lanes8<Layout>(halves8(p, 34), out);
    for (int i = 0; i < 4; ++i) {
      const uint8_t* run = p + 34 * 4 * (i / 2) + 2 + 16 * (i % 2);
      const __m256i a = two(run, run + 68), b = two(run + 34, run + 102);
      out->code[2 * i] = _mm256_unpacklo_epi64(a, b);
      out->code[2 * i + 1] = _mm256_unpackhi_epi64(a, b);
    }
  }
};

// Nibbles of eight runs, 16 bytes each and `stride` apart.
inline void nibbles(const uint8_t* p, int stride, LaneBlock* out) {
  for (int g = 0; g < 2; ++g) {
    const uint8_t* run = p + 4 * g * stride;
    const __m256i a = two(run, run + stride), b = two(run + 2 * stride, run + 3 * stride);
    const __m256i even = _mm256_unpacklo_epi64(a, b), odd = _mm256_unpackhi_epi64(a, b);
    out->code[4 * g] = low4(even);
    out->code[4 * g + 1] = low4(odd);
    out->code[4 * g + 2] = high4(even);
    out->code[4 * g + 3] = high4(odd);
  }
}

// Fifth bits of eight runs: bit i of the word at p + run * stride belongs to element i.
inline void fifth_bits(const uint8_t* p, int stride, LaneBlock* out) {
  const __m256i bit = _mm256_set1_epi64x(static_cast<int64_t>(0x8040201008040201ull));
  for (int g = 0; g < 2; ++g) {
    uint32_t word[4];
    for (int i = 0; i < 4; ++i) std::memcpy(word + i, p + (4 * g + i) * stride, 4);
    const __m256i words = _mm256_setr_epi64x(word[0], word[2], word[1], word[3]);
    for (int v = 0; v < 4; ++v) {
      const __m256i byte = _mm256_setr_epi64x(0x0101010101010101 * v, 0x0101010101010101 * (8 + v),
                                              0x0101010101010101 * v, 0x0101010101010101 * (8 + v));
      const __m256i set = _mm256_cmpeq_epi8(_mm256_and_si256(_mm256_shuffle_epi8(words, byte), bit), bit);
      out->code[4 * g + v] = merge(out->code[4 * g + v], set, 16);
    }
  }
}

template <class F, int kData>
struct NibbleLanes {
  using Layout = NibbleLayout;
  TRIGRAPH_INLINE static void decode(const uint8_t* p, LaneBlock* out) {
    lanes8<Layout>(halves8(p, F::kBytes), out);
    if (F::kMin) out->minus_min[0] = halves8(p + 2, F::kBytes);  // the block holds minus the min
    nibbles(p + kData, F::kBytes, out);
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
  const __m256i table = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(levels4())));
  for (__m256i& code : out->code) code = _mm256_shuffle_epi8(table, code);
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
    uint32_t low;
    std::memcpy(&low, p + 4, 4);
    const uint64_t six = _pdep_u64(low, 0x0f0f0f0f0f0f0f0full) |
                         _pdep_u64(static_cast<uint64_t>(p[2] | p[3] << 8), 0x3030303030303030ull);
    const __m256i runs =
        _mm256_sub_epi32(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(static_cast<int64_t>(six))), _mm256_set1_epi32(32));
    lanes8<Layout>(_mm256_mul_ps(_mm256_cvtepi32_ps(runs), half(p)), out);
    nibbles(p + 8, 16, out);
    look_up(out);
  }
};

// Two bits of each of four runs in a byte: vector v takes dword v of every 16 bytes, shifted by lane.
template <int kWord>
inline __m256i spread(__m256i x) {
  return _mm256_shuffle_epi32(x, kWord * 0x55);
}
inline void crumbs(const uint8_t* p, LaneBlock* out) {
  const __m256i shift = _mm256_setr_epi32(0, 2, 4, 6, 0, 2, 4, 6), three = _mm256_set1_epi8(3);
  for (int g = 0; g < 2; ++g) {
    const __m256i x = bytes32(p + 32 * g);
    out->code[4 * g] = _mm256_and_si256(_mm256_srlv_epi32(spread<0>(x), shift), three);
    out->code[4 * g + 1] = _mm256_and_si256(_mm256_srlv_epi32(spread<1>(x), shift), three);
    out->code[4 * g + 2] = _mm256_and_si256(_mm256_srlv_epi32(spread<2>(x), shift), three);
    out->code[4 * g + 3] = _mm256_and_si256(_mm256_srlv_epi32(spread<3>(x), shift), three);
  }
}
inline __m256 low_nibbles(__m128i x) {
  return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_and_si128(x, _mm_set1_epi8(15))));
}

template <>
struct Lanes<Q2_K> {
  using Layout = SixteenLayout;
  TRIGRAPH_INLINE static void decode(const uint8_t* p, LaneBlock* out) {
    const __m128i first = bytes16(p), second = _mm_srli_si128(first, 8);
    const __m256 d = half(p + 80), minus = negated(half(p + 82));
    lanes16(_mm256_mul_ps(low_nibbles(first), d), _mm256_mul_ps(low_nibbles(second), d), out);
    out->minus_min[0] = _mm256_mul_ps(low_nibbles(_mm_srli_epi16(first, 4)), minus);
    out->minus_min[1] = _mm256_mul_ps(low_nibbles(_mm_srli_epi16(second, 4)), minus);
    crumbs(p + 16, out);
  }
};

template <>
struct Lanes<Q3_K> {
  using Layout = SixteenLayout;
  TRIGRAPH_INLINE static void decode(const uint8_t* p, LaneBlock* out) {
    uint64_t first, second;
    read_scales3_bytes(p + 96, &first, &second);
    const __m256 d = half(p + 108);
    auto runs = [d](uint64_t eight) {
      const __m256i wide = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(static_cast<int64_t>(eight)));
      return _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_sub_epi32(wide, _mm256_set1_epi32(32))), d);
    };
    lanes16(runs(first), runs(second), out);
    crumbs(p + 32, out);
    // Bit b of byte j is the third bit of element 32 b + j; lane (i, k) of group g has b = 4 g + k. It goes to bit 2.
    const __m256i high = bytes32(p);
    for (int g = 0; g < 2; ++g) {
      const __m256i nibble = _mm256_and_si256(_mm256_srli_epi16(high, 4 * g), _mm256_set1_epi8(15));
      const __m256i turn = _mm256_setr_epi32(3, 2, 1, 0, 3, 2, 1, 0);  // bit k to bit 3
      auto third = [&](__m256i words) { return _mm256_srli_epi16(_mm256_sllv_epi32(words, turn), 1); };
      out->code[4 * g] = merge(out->code[4 * g], third(spread<0>(nibble)), 4);
      out->code[4 * g + 1] = merge(out->code[4 * g + 1], third(spread<1>(nibble)), 4);
      out->code[4 * g + 2] = merge(out->code[4 * g + 2], third(spread<2>(nibble)), 4);
      out->code[4 * g + 3] = merge(out->code[4 * g + 3], third(spread<3>(nibble)), 4);
    }
  }
};

inline __m256i pairs(__m256i weight, const int8_t* code) {
  return _mm256_maddubs_epi16(weight, _mm256_load_si256(reinterpret_cast<const __m256i*>(code)));
}
inline __m256i wide(__m256i sum) { return _mm256_madd_epi16(sum, _mm256_set1_epi16(1)); }

// Integer products of one group, exact: no sum of 16-bit numbers can exceed 32767.
template <class F>
inline __m256i group_dot(const __m256i* weight, const int8_t* code) {
  if constexpr (F::kBias == 128) {  // signed codes: the weight's sign moves to the activation
    __m256i dot = _mm256_setzero_si256();
    for (int v = 0; v < 4; ++v) {
      const __m256i a = _mm256_load_si256(reinterpret_cast<const __m256i*>(code + 32 * v));
      const __m256i product = _mm256_maddubs_epi16(_mm256_abs_epi8(weight[v]), _mm256_sign_epi8(a, weight[v]));
      dot = _mm256_add_epi32(dot, wide(product));
    }
    return dot;
  } else {
    const __m256i first = _mm256_add_epi16(pairs(weight[0], code), pairs(weight[1], code + 32));
    const __m256i second = _mm256_add_epi16(pairs(weight[2], code + 64), pairs(weight[3], code + 96));
    if constexpr (F::kBias == 32) return _mm256_add_epi32(wide(first), wide(second));  // codes up to 63
    return wide(_mm256_add_epi16(first, second));
  }
}

// One number a lane for accumulate: sums of runs as float32 for the types with a min, else -bias * sum of the lane.
template <class F>
inline void lane_numbers(const int8_t* natural, const int8_t* code, int32_t* out) {
  for (int i = 0; i < 16; ++i) {
    int32_t sum = 0;
    if (F::kMin) {
      if (i < kSuper / F::kRun)
        for (int k = 0; k < F::kRun; ++k) sum += natural[i * F::kRun + k];
      const float value = static_cast<float>(sum);
      std::memcpy(out + i, &value, 4);
    } else {
      for (int v = 0; v < 4; ++v)
        for (int k = 0; k < 4; ++k) sum += code[(i / 8 * 4 + v) * 32 + i % 8 * 4 + k];
      out[i] = F::kBias == 128 ? 0 : -F::kBias * sum;
    }
  }
}

template <class F>
inline vf add_mins(const LaneBlock& w, const float* sums, vf sum) {
  sum = fmadd(w.minus_min[0], load(sums), sum);
  return F::kRun == 16 ? fmadd(w.minus_min[1], load(sums + 8), sum) : sum;
}

// Adds the product of one super-block with one activation row to the row's sums.
template <class F>
inline vf accumulate(const LaneBlock& w, const int8_t* code, const int32_t* lane, float scale, vf sum) {
  __m256i first = group_dot<F>(w.code, code), second = group_dot<F>(w.code + 4, code + 128);
  if constexpr (!F::kMin && F::kBias != 128) {
    first = _mm256_add_epi32(first, _mm256_load_si256(reinterpret_cast<const __m256i*>(lane)));
    second = _mm256_add_epi32(second, _mm256_load_si256(reinterpret_cast<const __m256i*>(lane + 8)));
  }
  vf value = fmadd(_mm256_cvtepi32_ps(second), w.scale[1], mul(_mm256_cvtepi32_ps(first), w.scale[0]));
  if constexpr (F::kMin) value = add_mins<F>(w, reinterpret_cast<const float*>(lane), value);
  return fmadd(value, splat(scale), sum);
}

// Eight vectors of codes as float32, one byte of the lanes after another.
template <class F>
inline void expand(const LaneBlock& w, int chain, vf* out) {
  const __m256i first = _mm256_set_epi32(12, 8, 4, 0, 12, 8, 4, 0),
                none = _mm256_set1_epi32(static_cast<int>(0x80808000));
  for (int i = 0; i < 8; ++i) {
    __m256i code = w.code[chain * 2 + i / 4];
    if constexpr (F::kBias == 128) code = _mm256_xor_si256(code, _mm256_set1_epi8(-128));
    const __m256i byte = _mm256_or_si256(_mm256_add_epi32(first, _mm256_set1_epi32(i % 4)), none);
    out[i] = _mm256_cvtepi32_ps(_mm256_shuffle_epi8(code, byte));
    if constexpr (F::kBias != 0) out[i] = sub(out[i], splat(F::kBias));
  }
}
inline vf chain_scale(const LaneBlock& w, int chain) { return w.scale[chain / 2]; }

// Sums of float32 activations of each run.
template <class F>
inline void lane_sums(const float* natural, const float*, float* out) {
  for (int i = 0; i < kSuper / F::kRun; ++i) {
    vf sum = load(natural + i * F::kRun);
    for (int k = VL; k < F::kRun; k += VL) sum = add(sum, load(natural + i * F::kRun + k));
    out[i] = reduce_add(sum);
  }
}

}  // namespace trigraph::TRIGRAPH_ISA::native
