// The ggml block types on a device, 32 elements (a run) at a time: codes as signed bytes, four to a word in the order
// of the elements, and the scales of the run's halves. Layouts and arithmetic are those of formats.h, so unpacking is
// exact.
#pragma once

#include "../cuda/device.cuh"

namespace trigraph::TRIGRAPH_ISA {

constexpr int kRun = 32;

struct Codes {
  uint32_t word[8];
  float scale[2], min[2];  // of 16 elements each; the types with one scale a run set the first
};

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
    const unsigned odd = reinterpret_cast<uintptr_t>(p) & 2;
    const auto* words = reinterpret_cast<const uint32_t*>(p - odd);
    uint32_t low = words[0];
    for (int i = 0; i < N; ++i) {
      uint32_t high = 0;
      if (i + 1 < N)
        high = words[i + 1];
      else if (odd)
        high = *reinterpret_cast<const uint16_t*>(words + N);
      out[i] = __funnelshift_r(low, high, 8 * odd);
      low = high;
    }
  }
}

__device__ __forceinline__ float load_half(const uint8_t* p) {
  return half_bits(*reinterpret_cast<const uint16_t*>(p));
}

// Unsigned codes below 128 minus a bias, byte by byte: no borrow crosses a byte.
__device__ __forceinline__ uint32_t biased(uint32_t codes, uint32_t bias) {
  return ((codes | 0x80808080u) - bias * 0x01010101u) ^ 0x80808080u;
}

// The lowest four bits, one to a byte.
__device__ __forceinline__ uint32_t spread(uint32_t bits) { return (bits & 15) * 0x00204081u & 0x01010101u; }

// Four bytes that hold a nibble each -> the levels of IQ4.
__device__ __forceinline__ uint32_t iq4_levels(uint32_t nibbles) {
  // -127, -104, -83, -65 | -49, -35, -22, -10 | 1, 13, 25, 38 | 53, 69, 89, 113
  const uint32_t low = nibbles & 0x07070707u;
  const uint32_t selector = (low & 7) | (low >> 4 & 0x70) | (low >> 8 & 0x700) | (low >> 12 & 0x7000);
  const uint32_t negative = __byte_perm(0xbfad9881u, 0xf6eaddcfu, selector);
  const uint32_t positive = __byte_perm(0x26190d01u, 0x71594535u, selector);
  const uint32_t high = (nibbles >> 3 & 0x01010101u) * 255;
  return (negative & ~high) | (positive & high);
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

// Each type: elements and bytes of a block, scales of a run, and
// decode(p, run, codes): run `run` of the block at p.
struct Q8_0 {
  static constexpr const char* kName = "Q8_0";
  static constexpr int kBlock = 32, kBytes = 34, kScales = 1, kAlign = 2;
  static constexpr bool kMin = false;
  __device__ static void decode(const uint8_t* p, int, Codes* out) {
    out->scale[0] = load_half(p);
    load_words<2, 8>(p + 2, out->word);
  }
};

struct Q4_0 {
  static constexpr const char* kName = "Q4_0";
  static constexpr int kBlock = 32, kBytes = 18, kScales = 1, kAlign = 2;
  static constexpr bool kMin = false;
  __device__ static void decode(const uint8_t* p, int, Codes* out) {
    out->scale[0] = load_half(p);
    load_nibbles<2>(p + 2, out->word);
    for (int i = 0; i < 8; ++i) out->word[i] = biased(out->word[i], 8);
  }
};

struct Q4_1 {
  static constexpr const char* kName = "Q4_1";
  static constexpr int kBlock = 32, kBytes = 20, kScales = 1, kAlign = 4;
  static constexpr bool kMin = true;
  __device__ static void decode(const uint8_t* p, int, Codes* out) {
    out->scale[0] = load_half(p);
    out->min[0] = -load_half(p + 2);
    load_nibbles<4>(p + 4, out->word);
  }
};

struct Q5_0 {
  static constexpr const char* kName = "Q5_0";
  static constexpr int kBlock = 32, kBytes = 22, kScales = 1, kAlign = 2;
  static constexpr bool kMin = false;
  __device__ static void decode(const uint8_t* p, int, Codes* out) {
    uint32_t high;
    out->scale[0] = load_half(p);
    load_words<2, 1>(p + 2, &high);
    load_nibbles<2>(p + 6, out->word);
    for (int i = 0; i < 8; ++i) out->word[i] = biased(out->word[i] | spread(high >> 4 * i) << 4, 16);
  }
};

struct Q5_1 {
  static constexpr const char* kName = "Q5_1";
  static constexpr int kBlock = 32, kBytes = 24, kScales = 1, kAlign = 8;
  static constexpr bool kMin = true;
  __device__ static void decode(const uint8_t* p, int, Codes* out) {
    uint32_t high;
    out->scale[0] = load_half(p);
    out->min[0] = -load_half(p + 2);
    load_words<4, 1>(p + 4, &high);
    load_nibbles<8>(p + 8, out->word);
    for (int i = 0; i < 8; ++i) out->word[i] |= spread(high >> 4 * i) << 4;
  }
};

struct IQ4_NL {
  static constexpr const char* kName = "IQ4_NL";
  static constexpr int kBlock = 32, kBytes = 18, kScales = 1, kAlign = 2;
  static constexpr bool kMin = false;
  __device__ static void decode(const uint8_t* p, int, Codes* out) {
    out->scale[0] = load_half(p);
    load_nibbles<2>(p + 2, out->word);
    for (int i = 0; i < 8; ++i) out->word[i] = iq4_levels(out->word[i]);
  }
};

struct Q2_K {
  static constexpr const char* kName = "Q2_K";
  static constexpr int kBlock = 256, kBytes = 84, kScales = 2, kAlign = 4;
  static constexpr bool kMin = true;
  __device__ static void decode(const uint8_t* p, int run, Codes* out) {
    const float d = load_half(p + 80), dmin = load_half(p + 82);
    for (int i = 0; i < 2; ++i) {
      const int packed = p[2 * run + i];
      out->scale[i] = d * static_cast<float>(packed & 15);
      out->min[i] = dmin * static_cast<float>(packed >> 4);
    }
    load_words<4, 8>(p + 16 + run / 4 * 32, out->word);
    for (int i = 0; i < 8; ++i) out->word[i] = out->word[i] >> run % 4 * 2 & 0x03030303u;
  }
};

struct Q3_K {
  static constexpr const char* kName = "Q3_K";
  static constexpr int kBlock = 256, kBytes = 110, kScales = 2, kAlign = 2;
  static constexpr bool kMin = false;
  __device__ static void decode(const uint8_t* p, int run, Codes* out) {
    const float d = load_half(p + 108);
    for (int i = 0; i < 2; ++i) {
      const int s = 2 * run + i, low = p[96 + s % 8] >> s / 8 * 4 & 15, high = p[104 + s % 4] >> s / 4 * 2 & 3;
      out->scale[i] = d * static_cast<float>((low | high << 4) - 32);
    }
    uint32_t high[8];
    load_words<2, 8>(p, high);
    load_words<2, 8>(p + 32 + run / 4 * 32, out->word);
    for (int i = 0; i < 8; ++i)
      out->word[i] = biased((out->word[i] >> run % 4 * 2 & 0x03030303u) | (high[i] >> run & 0x01010101u) << 2, 4);
  }
};

// Scale and minimum of a run of Q4_K or Q5_K: 6 bits each, in 12 bytes behind the two halves.
__device__ __forceinline__ void load_scales6(const uint8_t* p, int run, Codes* out) {
  const uint8_t* q = p + 4;
  const int scale = run < 4 ? q[run] & 63 : (q[run + 4] & 15) | (q[run - 4] >> 6) << 4;
  const int min = run < 4 ? q[run + 4] & 63 : q[run + 4] >> 4 | (q[run] >> 6) << 4;
  out->scale[0] = load_half(p) * static_cast<float>(scale);
  out->min[0] = load_half(p + 2) * static_cast<float>(min);
}

struct Q4_K {
  static constexpr const char* kName = "Q4_K";
  static constexpr int kBlock = 256, kBytes = 144, kScales = 1, kAlign = 16;
  static constexpr bool kMin = true;
  __device__ static void decode(const uint8_t* p, int run, Codes* out) {
    load_scales6(p, run, out);
    load_words<16, 8>(p + 16 + run / 2 * 32, out->word);
    for (int i = 0; i < 8; ++i) out->word[i] = out->word[i] >> run % 2 * 4 & 0x0f0f0f0fu;
  }
};

struct Q5_K {
  static constexpr const char* kName = "Q5_K";
  static constexpr int kBlock = 256, kBytes = 176, kScales = 1, kAlign = 16;
  static constexpr bool kMin = true;
  __device__ static void decode(const uint8_t* p, int run, Codes* out) {
    load_scales6(p, run, out);
    uint32_t high[8];
    load_words<16, 8>(p + 16, high);
    load_words<16, 8>(p + 48 + run / 2 * 32, out->word);
    for (int i = 0; i < 8; ++i)
      out->word[i] = (out->word[i] >> run % 2 * 4 & 0x0f0f0f0fu) | (high[i] >> run & 0x01010101u) << 4;
  }
};

struct Q6_K {
  static constexpr const char* kName = "Q6_K";
  static constexpr int kBlock = 256, kBytes = 210, kScales = 2, kAlign = 2;
  static constexpr bool kMin = false;
  __device__ static void decode(const uint8_t* p, int run, Codes* out) {
    const float d = load_half(p + 208);
    for (int i = 0; i < 2; ++i) out->scale[i] = d * static_cast<float>(static_cast<int8_t>(p[192 + 2 * run + i]));
    const int half = run / 4, quarter = run % 4;
    uint32_t high[8];
    load_words<2, 8>(p + 128 + half * 32, high);
    load_words<2, 8>(p + half * 64 + quarter % 2 * 32, out->word);
    for (int i = 0; i < 8; ++i)
      out->word[i] =
          biased((out->word[i] >> quarter / 2 * 4 & 0x0f0f0f0fu) | (high[i] >> quarter * 2 & 0x03030303u) << 4, 32);
  }
};

struct IQ4_XS {
  static constexpr const char* kName = "IQ4_XS";
  static constexpr int kBlock = 256, kBytes = 136, kScales = 1, kAlign = 8;
  static constexpr bool kMin = false;
  __device__ static void decode(const uint8_t* p, int run, Codes* out) {
    const int high = *reinterpret_cast<const uint16_t*>(p + 2);
    const int scale = (p[4 + run / 2] >> run % 2 * 4 & 15) | (high >> 2 * run & 3) << 4;
    out->scale[0] = load_half(p) * static_cast<float>(scale - 32);
    load_nibbles<8>(p + 8 + run * 16, out->word);
    for (int i = 0; i < 8; ++i) out->word[i] = iq4_levels(out->word[i]);
  }
};

// Plain types: one element a block.
struct F32 {
  static constexpr const char* kName = "F32";
  static constexpr int kBlock = 1, kBytes = 4, kAlign = 4;
  __device__ static float load(const uint8_t* p) { return *reinterpret_cast<const float*>(p); }
};
struct F16 {
  static constexpr const char* kName = "F16";
  static constexpr int kBlock = 1, kBytes = 2, kAlign = 2;
  __device__ static float load(const uint8_t* p) { return load_half(p); }
};
struct BF16 {
  static constexpr const char* kName = "BF16";
  static constexpr int kBlock = 1, kBytes = 2, kAlign = 2;
  __device__ static float load(const uint8_t* p) {
    return __uint_as_float(uint32_t{*reinterpret_cast<const uint16_t*>(p)} << 16);
  }
};
template <class F>
constexpr bool kPlain = F::kBlock == 1;

// Element i of a run as ggml defines it: product and difference are rounded one after the other.
template <class F>
__device__ __forceinline__ float element(const Codes& codes, int i) {
  const float code = static_cast<float>(static_cast<int8_t>(codes.word[i / 4] >> i % 4 * 8));
  const int part = F::kScales == 1 ? 0 : i / 16;
  const float product = code * codes.scale[part];
  return F::kMin ? product - codes.min[part] : product;
}

}  // namespace trigraph::TRIGRAPH_ISA
