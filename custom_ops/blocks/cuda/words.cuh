// Blocks on a device: the codes of 32 elements (a run) as signed bytes, four to a word in the order of the elements.
// What words hold is what formats.h says element by element.
#pragma once

#include "../formats/formats.h"

namespace trigraph::TRIGRAPH_ISA {

constexpr int kRun = 32;

// N words at an address that is a multiple of kAlign.
template <int kAlign, int N>
__device__ __forceinline__ void load_words(const uint8_t* p, uint32_t* out) {
  if constexpr (kAlign >= 16 && N % 4 == 0) {
    for (int i = 0; i < N / 4; ++i) {
      const uint4 four = reinterpret_cast<const uint4*>(p)[i];
      out[4 * i] = four.x, out[4 * i + 1] = four.y, out[4 * i + 2] = four.z, out[4 * i + 3] = four.w;
    }
  } else if constexpr (kAlign >= 8 && N % 2 == 0) {
    for (int i = 0; i < N / 2; ++i) {
      const uint2 two = reinterpret_cast<const uint2*>(p)[i];
      out[2 * i] = two.x, out[2 * i + 1] = two.y;
    }
  } else if constexpr (kAlign >= 4) {
    for (int i = 0; i < N; ++i) out[i] = reinterpret_cast<const uint32_t*>(p)[i];
  } else {  // whole words around the address, shifted together; nothing behind the last byte is read
    const unsigned odd = reinterpret_cast<uintptr_t>(p) & (kAlign == 2 ? 2 : 3);
    const auto* words = reinterpret_cast<const uint32_t*>(p - odd);
    uint32_t low = words[0];
    for (int i = 0; i < N; ++i) {
      uint32_t high = 0;
      if (i + 1 < N)
        high = words[i + 1];
      else if (kAlign == 2 && odd)
        high = *reinterpret_cast<const uint16_t*>(words + N);
      else
        for (unsigned k = 0; k < odd; ++k) high |= uint32_t{reinterpret_cast<const uint8_t*>(words + N)[k]} << 8 * k;
      out[i] = __funnelshift_r(low, high, 8 * odd);
      low = high;
    }
  }
}

// Unsigned codes below 128 minus a bias, byte by byte: no borrow crosses a byte.
__device__ __forceinline__ uint32_t biased(uint32_t codes, uint32_t bias) {
  return ((codes | 0x80808080u) - bias * 0x01010101u) ^ 0x80808080u;
}

// The lowest four bits, one to a byte.
__device__ __forceinline__ uint32_t spread(uint32_t bits) { return (bits & 15) * 0x00204081u & 0x01010101u; }

// Four bytes that hold a nibble each -> the bytes of a table of 16: those of the nibbles 0 to 3, 4 to 7, 8 to 11 ..
__device__ __forceinline__ uint32_t levels(uint32_t nibbles, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  const uint32_t low = nibbles & 0x07070707u;
  const uint32_t selector = (low & 7) | (low >> 4 & 0x70) | (low >> 8 & 0x700) | (low >> 12 & 0x7000);
  const uint32_t high = (nibbles >> 3 & 0x01010101u) * 255;
  return (__byte_perm(a, b, selector) & ~high) | (__byte_perm(c, d, selector) & high);
}
__device__ __forceinline__ uint32_t iq4_levels(uint32_t nibbles) {
  // -127, -104, -83, -65 | -49, -35, -22, -10 | 1, 13, 25, 38 | 53, 69, 89, 113
  return levels(nibbles, 0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u);
}
__device__ __forceinline__ uint32_t mxfp4_levels(uint32_t nibbles) {
  // 0, 1, 2, 3 | 4, 6, 8, 12, and the same negative
  return levels(nibbles, 0x03020100u, 0x0c080604u, 0xfdfeff00u, 0xf4f8fafcu);
}

// 16 bytes of nibbles: the low ones are elements 0 to 15, the high ones 16 to 31.
template <int kAlign>
__device__ __forceinline__ void load_nibbles(const uint8_t* p, uint32_t* word) {
  uint32_t packed[4];
  load_words<kAlign, 4>(p, packed);
  for (int i = 0; i < 4; ++i) {
    word[i] = packed[i] & 0x0f0f0f0fu;
    word[4 + i] = packed[i] >> 4 & 0x0f0f0f0fu;
  }
}

// Weight rows lie at multiples of this.
template <class F>
constexpr int kAlign = F::kBytes % 16 == 0  ? 16
                       : F::kBytes % 8 == 0 ? 8
                       : F::kBytes % 4 == 0 ? 4
                       : F::kBytes % 2 == 0 ? 2
                                            : 1;
template <class F>
constexpr int kScales = kRun / F::kRun;  // of a run

// The codes of run `run` of the block at p. Any type, a code at a time; below are faster ones.
template <class F>
struct Words {
  __device__ static void load(const uint8_t* p, int run, uint32_t* word) {
    for (int i = 0; i < kRun; ++i) {
      const uint32_t code = static_cast<uint32_t>(F::code(p, run, i)) & 255;
      word[i / 4] = (i % 4 ? word[i / 4] : 0) | code << i % 4 * 8;
    }
  }
};

template <>
struct Words<Q8_0> {
  __device__ static void load(const uint8_t* p, int, uint32_t* word) { load_words<2, 8>(p + 2, word); }
};

template <>
struct Words<Q4_0> {
  __device__ static void load(const uint8_t* p, int, uint32_t* word) {
    load_nibbles<2>(p + 2, word);
    for (int i = 0; i < 8; ++i) word[i] = biased(word[i], 8);
  }
};

template <>
struct Words<Q4_1> {
  __device__ static void load(const uint8_t* p, int, uint32_t* word) { load_nibbles<4>(p + 4, word); }
};

template <>
struct Words<Q5_0> {
  __device__ static void load(const uint8_t* p, int, uint32_t* word) {
    uint32_t high;
    load_words<2, 1>(p + 2, &high);
    load_nibbles<2>(p + 6, word);
    for (int i = 0; i < 8; ++i) word[i] = biased(word[i] | spread(high >> 4 * i) << 4, 16);
  }
};

template <>
struct Words<Q5_1> {
  __device__ static void load(const uint8_t* p, int, uint32_t* word) {
    uint32_t high;
    load_words<4, 1>(p + 4, &high);
    load_nibbles<8>(p + 8, word);
    for (int i = 0; i < 8; ++i) word[i] |= spread(high >> 4 * i) << 4;
  }
};

template <>
struct Words<IQ4_NL> {
  __device__ static void load(const uint8_t* p, int, uint32_t* word) {
    load_nibbles<2>(p + 2, word);
    for (int i = 0; i < 8; ++i) word[i] = iq4_levels(word[i]);
  }
};

template <>
struct Words<MXFP4> {
  __device__ static void load(const uint8_t* p, int, uint32_t* word) {
    load_nibbles<1>(p + 1, word);
    for (int i = 0; i < 8; ++i) word[i] = mxfp4_levels(word[i]);
  }
};

template <>
struct Words<NVFP4> {
  __device__ static void load(const uint8_t* p, int run, uint32_t* word) {
    uint32_t packed[4];
    load_words<4, 4>(p + 4 + run * 16, packed);
    for (int i = 0; i < 4; ++i) {
      const int at = i / 2 * 4 + i % 2;
      word[at] = mxfp4_levels(packed[i] & 0x0f0f0f0fu), word[at + 2] = mxfp4_levels(packed[i] >> 4 & 0x0f0f0f0fu);
    }
  }
};

template <>
struct Words<Q1_0> {
  __device__ static void load(const uint8_t* p, int run, uint32_t* word) {
    uint32_t bits;
    load_words<2, 1>(p + 2 + 4 * run, &bits);
    for (int i = 0; i < 8; ++i) word[i] = biased(spread(bits >> 4 * i) << 1, 1);
  }
};

template <>
struct Words<Q2_K> {
  __device__ static void load(const uint8_t* p, int run, uint32_t* word) {
    load_words<4, 8>(p + 16 + run / 4 * 32, word);
    for (int i = 0; i < 8; ++i) word[i] = word[i] >> run % 4 * 2 & 0x03030303u;
  }
};

template <>
struct Words<Q3_K> {
  __device__ static void load(const uint8_t* p, int run, uint32_t* word) {
    uint32_t high[8];
    load_words<2, 8>(p, high);
    load_words<2, 8>(p + 32 + run / 4 * 32, word);
    for (int i = 0; i < 8; ++i)
      word[i] = biased((word[i] >> run % 4 * 2 & 0x03030303u) | (high[i] >> run & 0x01010101u) << 2, 4);
  }
};

template <>
struct Words<Q4_K> {
  __device__ static void load(const uint8_t* p, int run, uint32_t* word) {
    load_words<16, 8>(p + 16 + run / 2 * 32, word);
    for (int i = 0; i < 8; ++i) word[i] = word[i] >> run % 2 * 4 & 0x0f0f0f0fu;
  }
};

template <>
struct Words<Q5_K> {
  __device__ static void load(const uint8_t* p, int run, uint32_t* word) {
    uint32_t high[8];
    load_words<16, 8>(p + 16, high);
    load_words<16, 8>(p + 48 + run / 2 * 32, word);
    for (int i = 0; i < 8; ++i) word[i] = (word[i] >> run % 2 * 4 & 0x0f0f0f0fu) | (high[i] >> run & 0x01010101u) << 4;
  }
};

template <>
struct Words<Q6_K> {
  __device__ static void load(const uint8_t* p, int run, uint32_t* word) {
    const int half = run / 4, quarter = run % 4;
    uint32_t high[8];
    load_words<2, 8>(p + 128 + half * 32, high);
    load_words<2, 8>(p + half * 64 + quarter % 2 * 32, word);
    for (int i = 0; i < 8; ++i)
      word[i] = biased((word[i] >> quarter / 2 * 4 & 0x0f0f0f0fu) | (high[i] >> quarter * 2 & 0x03030303u) << 4, 32);
  }
};

template <>
struct Words<IQ4_XS> {
  __device__ static void load(const uint8_t* p, int run, uint32_t* word) {
    load_nibbles<8>(p + 8 + run * 16, word);
    for (int i = 0; i < 8; ++i) word[i] = iq4_levels(word[i]);
  }
};

template <class F>
constexpr bool kPlain = F::kBlock == 1;
template <class F>
__device__ __forceinline__ float load_plain(const uint8_t* p) {
  if constexpr (std::is_same_v<F, F32>) return *reinterpret_cast<const float*>(p);
  if constexpr (std::is_same_v<F, F16>) return read_half(p);
  if constexpr (std::is_same_v<F, BF16>) return __uint_as_float(uint32_t{*reinterpret_cast<const uint16_t*>(p)} << 16);
}

// Element i of a row as float32, exactly as ggml defines it: product and difference are rounded one after the other.
template <class F>
__device__ __forceinline__ float weight_at(const uint8_t* row, int64_t i) {
  const uint8_t* p = row + i / F::kBlock * F::kBytes;
  if constexpr (kPlain<F>) {
    return load_plain<F>(p);
  } else {
    const int at = static_cast<int>(i % F::kBlock), run = at / F::kRun;
    const float scale = F::d(p) * static_cast<float>(F::scale(p, run));
    const float product = static_cast<float>(F::code(p, at / kRun, at % kRun)) * scale;
    if constexpr (F::kMin) return product - F::dmin(p) * static_cast<float>(F::min(p, run));
    return product;
  }
}

}  // namespace trigraph::TRIGRAPH_ISA
