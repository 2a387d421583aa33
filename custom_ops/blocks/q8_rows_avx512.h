// Rows of Q8_0: AVX-512 with VNNI. Two weight rows at a time, a super-block of each. Codes are turned so that each
// 64-bit lane holds those of one block: activations that are turned alike then need no sums over lanes, but for that of
// two neighbours.
#pragma once

#include "../scratch.h"
#include "rows_avx512.h"

namespace trigraph::TRIGRAPH_ISA {

// Of eight blocks of 32 codes, two in each vector: eight codes of each block, in four vectors, whose lanes are those of
// blocks 0, 2, 1, 3, 4, 6, 5 and 7.
TRIGRAPH_INLINE void turn(const Ints* pair, Ints* out) {
  const Ints even[2] = {_mm512_unpacklo_epi64(pair[0], pair[1]), _mm512_unpacklo_epi64(pair[2], pair[3])};
  const Ints odd[2] = {_mm512_unpackhi_epi64(pair[0], pair[1]), _mm512_unpackhi_epi64(pair[2], pair[3])};
  out[0] = _mm512_shuffle_i32x4(even[0], even[1], 0x88);
  out[1] = _mm512_shuffle_i32x4(odd[0], odd[1], 0x88);
  out[2] = _mm512_shuffle_i32x4(even[0], even[1], 0xdd);
  out[3] = _mm512_shuffle_i32x4(odd[0], odd[1], 0xdd);
}

struct EvenTurned {
  alignas(64) uint8_t byte[64] = {};
  constexpr EvenTurned() {
    for (int i = 0; i < 64; ++i) byte[i] = static_cast<uint8_t>(i < 32 ? (i + 2) % 32 : i);
  }
};

// A super-block of activations as the turned codes of weights meet it, which have 128 added.
struct alignas(64) TurnedPart {
  static constexpr EvenTurned kOrder = {};
  Ints code[4], bias;
  float scale;

  explicit TurnedPart(const Int8Part& part) : scale(part.scale) {
    Ints pair[4];
    for (int k = 0; k < 4; ++k)  // the first two codes of an even block come last
      pair[k] = _mm512_permutexvar_epi8(load_ints(kOrder.byte), load_ints(part.code + 64 * k));
    turn(pair, code);
    const __m128i order = _mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15);
    const __m128i sums = _mm_shuffle_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(part.sum32)), order);
    bias = _mm512_maskz_sub_epi32(0x5555, ints(0), _mm512_slli_epi64(_mm512_cvtepi16_epi64(sums), 7));
  }
};
struct TurnedParts;

template <int M>
class TurnedRows {
 public:
  TurnedRows(int64_t row_bytes, int64_t width, const void* const* x) : row_bytes_(row_bytes), supers_(supers(width)) {
    auto* part = static_cast<TurnedPart*>(scratch<TurnedParts>(static_cast<size_t>(M * supers_) * sizeof(TurnedPart)));
    parts_ = part;
    for (int64_t s = 0; s < supers_; ++s)
      for (int i = 0; i < M; ++i) new (part++) TurnedPart(static_cast<const Int8Part*>(x[i])[s]);
  }

  void product(const uint8_t* w, int64_t n, float* const* y) const {
    for (int64_t j = 0; j < n; j += 2, w += 2 * row_bytes_) {
      Floats sum[M];
      const bool single = j + 1 == n;
      chains(w, single ? w : w + row_bytes_, sum);
      TRIGRAPH_UNROLL
      for (int i = 0; i < M; ++i) {  // as sum_of adds them up
        Floats total = add(sum[i], _mm512_shuffle_f32x4(sum[i], sum[i], 0xb1));
        total = add(total, _mm512_permute_ps(total, 0x4e));
        total = add(total, _mm512_permute_ps(total, 0xb1));
        y[i][j] = _mm512_cvtss_f32(total);
        if (!single) y[i][j + 1] = _mm_cvtss_f32(_mm512_extractf32x4_ps(total, 2));
      }
    }
  }

 private:
  // Those of rows a and b, in the halves of a vector.
  TRIGRAPH_INLINE void chains(const uint8_t* a, const uint8_t* b, Floats* sum) const {
    constexpr int kBytes = super_bytes<Q8_0>;
    const Ints order = _mm512_setr_epi32(0, 4, 2, 6, 8, 12, 10, 14, 16, 20, 18, 22, 24, 28, 26, 30);
    TRIGRAPH_UNROLL
    for (int i = 0; i < M; ++i) sum[i] = floats(0);
    const TurnedPart* part = parts_;
    for (int64_t s = 0; s < supers_; ++s, a += kBytes, b += kBytes, part += M) {
      Ints first[4], second[4];
      const __m256i high = codes(a, first), higher = codes(b, second);
      const Floats d = _mm512_cvtph_ps(_mm256_permute2x128_si256(high, higher, 0x31));
      TRIGRAPH_UNROLL
      for (int i = 0; i < M; ++i) {
        Ints dot[2] = {part[i].bias, part[i].bias};
        TRIGRAPH_UNROLL
        for (int q = 0; q < 4; ++q) {
          const Ints x = part[i].code[q];
          dot[0] = _mm512_dpbusd_epi32(dot[0], first[q], x);
          dot[1] = _mm512_dpbusd_epi32(dot[1], second[q], x);
        }
        for (Ints& lanes : dot) lanes = add32(lanes, _mm512_srli_epi64(lanes, 32));
        const Floats value = mul(d, to_floats(_mm512_permutex2var_epi32(dot[0], order, dot[1])));
        sum[i] = fmadd(floats(part[i].scale), value, sum[i]);
      }
    }
  }

  // The turned codes of a super-block with 128 added, an even block's first two last. Returns the halves of its blocks,
  // in the upper half of a vector. Two blocks are four bytes, the half and two codes, and 64 more: 30 codes, the other
  // half, 32 codes.
  TRIGRAPH_INLINE static __m256i codes(const uint8_t* p, Ints* code) {
    for (int i = 0; i < super_bytes<Q8_0>; i += 64) prefetch(p + kAhead + i);
    constexpr uint32_t kHalf = 1 << 15;  // the place of the other half, among words of two bytes
    Ints pair[4];
    __m256i half[4];
    TRIGRAPH_UNROLL
    for (int k = 0; k < 4; ++k, p += 2 * Q8_0::kBytes) {
      int32_t word;
      std::memcpy(&word, p, sizeof word);
      const Ints start = ints(word), rest = load_ints(p + 4);
      pair[k] = sub8(_mm512_mask_mov_epi16(rest, kHalf, start), bytes(-128));
      half[k] = _mm256_mask_mov_epi16(_mm512_castsi512_si256(start), kHalf, _mm512_castsi512_si256(rest));
    }
    turn(pair, code);
    return _mm256_unpackhi_epi64(_mm256_unpackhi_epi32(half[0], half[1]), _mm256_unpackhi_epi32(half[2], half[3]));
  }

  int64_t row_bytes_, supers_;
  const TurnedPart* parts_;
};

template <>
struct Rows<Q8_0> {
  static constexpr int kMost = 8;
};

// Q8_0 is the only type of smaller blocks with rows of its own.
template <class F, int M>
void block_rows(const uint8_t* w, int64_t n, int64_t row_bytes, int64_t width, const void* const* x, float* const* y) {
  static_assert(std::is_same_v<F, Q8_0>);
  TurnedRows<M>(row_bytes, width, x).product(w, n, y);
}

}  // namespace trigraph::TRIGRAPH_ISA
