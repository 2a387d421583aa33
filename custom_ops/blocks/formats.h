// The ggml block types as codes: every element of a block is `code * scale - min`, where a run of kRun elements shares
// scale and min. Codes fit int8; kBias makes them unsigned. The arithmetic is ggml's, so unpacking is exact to the bit.
#pragma once

#include <type_traits>

#include "../kernel.h"
#include "native.h"

namespace trigraph::TRIGRAPH_ISA::native {

constexpr int kSuper = 256;  // elements that kernels handle at a time: one K block, or eight blocks of 32

struct Codes {
  alignas(64) int8_t code[kSuper];
  alignas(64) float scale[kSuper / 16];
  alignas(64) float min[kSuper / 16];  // set by the types with kMin only
};

inline float read_half(const uint8_t* p) {
  uint16_t h;
  std::memcpy(&h, p, 2);
  return fast_half(h);
}

// 6-bit scales and mins of Q4_K and Q5_K: eight of each in 12 bytes, to one byte each.
inline void read_scales6_bytes(const uint8_t* p, uint64_t* scale, uint64_t* min) {
  uint32_t a, b, c;
  std::memcpy(&a, p, 4);
  std::memcpy(&b, p + 4, 4);
  std::memcpy(&c, p + 8, 4);
  *scale = (a & 0x3f3f3f3f) | static_cast<uint64_t>((c & 0x0f0f0f0f) | (a >> 2 & 0x30303030)) << 32;
  *min = (b & 0x3f3f3f3f) | static_cast<uint64_t>((c >> 4 & 0x0f0f0f0f) | (b >> 2 & 0x30303030)) << 32;
}

// 6-bit scales of Q3_K: sixteen in 12 bytes, to one byte each (32 stands for zero).
inline void read_scales3_bytes(const uint8_t* p, uint64_t* first, uint64_t* second) {
  uint64_t low, high = 0;
  std::memcpy(&low, p, 8);
  std::memcpy(&high, p + 8, 4);
  const uint64_t nibble = 0x0f0f0f0f0f0f0f0f, two = 0x03030303;
  *first = (low & nibble) | ((high & two) | (high >> 2 & two) << 32) << 4;
  *second = (low >> 4 & nibble) | ((high >> 4 & two) | (high >> 6 & two) << 32) << 4;
}

// Scales and mins of a block of Q4_K or Q5_K.
inline void read_scales6(const uint8_t* p, float* scale, float* min) {
  uint64_t scales, mins;
  read_scales6_bytes(p + 4, &scales, &mins);
  const float d = read_half(p), dmin = read_half(p + 2);
  for (int i = 0; i < 8; ++i) {
    scale[i] = d * static_cast<float>(scales >> (8 * i) & 63);
    min[i] = dmin * static_cast<float>(mins >> (8 * i) & 63);
  }
}

constexpr int8_t kNonLinear4[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

// Codes of one block; `scale` and `min` have one entry for each run of kRun elements.
struct Q8_0 {
  static constexpr const char* kName = "Q8_0";
  static constexpr int kBlock = 32, kBytes = 34, kRun = 32, kBias = 128;
  static constexpr bool kMin = false;
  static constexpr DType kDType = DType::u8;
  static void decode(const uint8_t* p, int8_t* code, float* scale, float*) {
    scale[0] = read_half(p);
    std::memcpy(code, p + 2, 32);
  }
};

struct Q4_0 {
  static constexpr const char* kName = "Q4_0";
  static constexpr int kBlock = 32, kBytes = 18, kRun = 32, kBias = 8;
  static constexpr bool kMin = false;
  static constexpr DType kDType = DType::u8;
  static void decode(const uint8_t* p, int8_t* code, float* scale, float*) {
    scale[0] = read_half(p);
    for (int i = 0; i < 16; ++i) {
      code[i] = static_cast<int8_t>((p[2 + i] & 15) - 8);
      code[16 + i] = static_cast<int8_t>((p[2 + i] >> 4) - 8);
    }
  }
};

struct Q4_1 {
  static constexpr const char* kName = "Q4_1";
  static constexpr int kBlock = 32, kBytes = 20, kRun = 32, kBias = 0;
  static constexpr bool kMin = true;
  static constexpr DType kDType = DType::u8;
  static void decode(const uint8_t* p, int8_t* code, float* scale, float* min) {
    scale[0] = read_half(p);
    min[0] = -read_half(p + 2);
    for (int i = 0; i < 16; ++i) {
      code[i] = static_cast<int8_t>(p[4 + i] & 15);
      code[16 + i] = static_cast<int8_t>(p[4 + i] >> 4);
    }
  }
};

inline void decode5(const uint8_t* high, const uint8_t* low, int bias, int8_t* code) {
  uint32_t bits;
  std::memcpy(&bits, high, 4);
  for (int i = 0; i < 16; ++i) {
    code[i] = static_cast<int8_t>(((low[i] & 15) | (bits >> i & 1) << 4) - bias);
    code[16 + i] = static_cast<int8_t>(((low[i] >> 4) | (bits >> (16 + i) & 1) << 4) - bias);
  }
}

struct Q5_0 {
  static constexpr const char* kName = "Q5_0";
  static constexpr int kBlock = 32, kBytes = 22, kRun = 32, kBias = 16;
  static constexpr bool kMin = false;
  static constexpr DType kDType = DType::u8;
  static void decode(const uint8_t* p, int8_t* code, float* scale, float*) {
    scale[0] = read_half(p);
    decode5(p + 2, p + 6, 16, code);
  }
};

struct Q5_1 {
  static constexpr const char* kName = "Q5_1";
  static constexpr int kBlock = 32, kBytes = 24, kRun = 32, kBias = 0;
  static constexpr bool kMin = true;
  static constexpr DType kDType = DType::u8;
  static void decode(const uint8_t* p, int8_t* code, float* scale, float* min) {
    scale[0] = read_half(p);
    min[0] = -read_half(p + 2);
    decode5(p + 4, p + 8, 0, code);
  }
};

struct IQ4_NL {
  static constexpr const char* kName = "IQ4_NL";
  static constexpr int kBlock = 32, kBytes = 18, kRun = 32, kBias = 128;
  static constexpr bool kMin = false;
  static constexpr DType kDType = DType::u8;
  static void decode(const uint8_t* p, int8_t* code, float* scale, float*) {
    scale[0] = read_half(p);
    for (int i = 0; i < 16; ++i) {
      code[i] = kNonLinear4[p[2 + i] & 15];
      code[16 + i] = kNonLinear4[p[2 + i] >> 4];
    }
  }
};

struct Q2_K {
  static constexpr const char* kName = "Q2_K";
  static constexpr int kBlock = 256, kBytes = 84, kRun = 16, kBias = 0;
  static constexpr bool kMin = true;
  static constexpr DType kDType = DType::u8;
  static void decode(const uint8_t* p, int8_t* code, float* scale, float* min) {
    const float d = read_half(p + 80), dmin = read_half(p + 82);
    for (int i = 0; i < 16; ++i) {
      scale[i] = d * static_cast<float>(p[i] & 15);
      min[i] = dmin * static_cast<float>(p[i] >> 4);
    }
    for (int i = 0; i < kBlock; ++i)
      code[i] = static_cast<int8_t>(p[16 + i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3);
  }
};

struct Q3_K {
  static constexpr const char* kName = "Q3_K";
  static constexpr int kBlock = 256, kBytes = 110, kRun = 16, kBias = 4;
  static constexpr bool kMin = false;
  static constexpr DType kDType = DType::u8;
  static void decode(const uint8_t* p, int8_t* code, float* scale, float*) {
    const float d = read_half(p + 108);
    uint64_t packed[2];
    read_scales3_bytes(p + 96, packed, packed + 1);
    for (int i = 0; i < 16; ++i)
      scale[i] = d * static_cast<float>(static_cast<int>(packed[i / 8] >> (i % 8 * 8) & 63) - 32);
    for (int i = 0; i < kBlock; ++i) {
      int low = p[32 + i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3, high = p[i % 32] >> (i / 32) & 1;
      code[i] = static_cast<int8_t>(low - (high ? 0 : 4));
    }
  }
};

struct Q4_K {
  static constexpr const char* kName = "Q4_K";
  static constexpr int kBlock = 256, kBytes = 144, kRun = 32, kBias = 0;
  static constexpr bool kMin = true;
  static constexpr DType kDType = DType::u8;
  static void decode(const uint8_t* p, int8_t* code, float* scale, float* min) {
    read_scales6(p, scale, min);
    for (int chunk = 0; chunk < 4; ++chunk)
      for (int i = 0; i < 32; ++i) {
        const uint8_t byte = p[16 + chunk * 32 + i];
        code[chunk * 64 + i] = static_cast<int8_t>(byte & 15);
        code[chunk * 64 + 32 + i] = static_cast<int8_t>(byte >> 4);
      }
  }
};

struct Q5_K {
  static constexpr const char* kName = "Q5_K";
  static constexpr int kBlock = 256, kBytes = 176, kRun = 32, kBias = 0;
  static constexpr bool kMin = true;
  static constexpr DType kDType = DType::u8;
  static void decode(const uint8_t* p, int8_t* code, float* scale, float* min) {
    read_scales6(p, scale, min);
    for (int chunk = 0; chunk < 4; ++chunk)
      for (int i = 0; i < 32; ++i) {
        const uint8_t byte = p[48 + chunk * 32 + i], high = static_cast<uint8_t>(p[16 + i] >> (2 * chunk));
        code[chunk * 64 + i] = static_cast<int8_t>((byte & 15) | (high & 1) << 4);
        code[chunk * 64 + 32 + i] = static_cast<int8_t>((byte >> 4) | (high & 2) << 3);
      }
  }
};

struct Q6_K {
  static constexpr const char* kName = "Q6_K";
  static constexpr int kBlock = 256, kBytes = 210, kRun = 16, kBias = 32;
  static constexpr bool kMin = false;
  static constexpr DType kDType = DType::u8;
  static void decode(const uint8_t* p, int8_t* code, float* scale, float*) {
    const float d = read_half(p + 208);
    for (int i = 0; i < 16; ++i) scale[i] = d * static_cast<float>(static_cast<int8_t>(p[192 + i]));
    for (int half = 0; half < 2; ++half)
      for (int i = 0; i < 128; ++i) {
        const int low = p[half * 64 + i % 64] >> (i / 64 * 4) & 15,
                  high = p[128 + half * 32 + i % 32] >> (i / 32 * 2) & 3;
        code[half * 128 + i] = static_cast<int8_t>((low | high << 4) - 32);
      }
  }
};

struct IQ4_XS {
  static constexpr const char* kName = "IQ4_XS";
  static constexpr int kBlock = 256, kBytes = 136, kRun = 32, kBias = 128;
  static constexpr bool kMin = false;
  static constexpr DType kDType = DType::u8;
  static void decode(const uint8_t* p, int8_t* code, float* scale, float*) {
    const float d = read_half(p);
    const int high = p[2] | p[3] << 8;
    for (int i = 0; i < 8; ++i) {
      const int s = (p[4 + i / 2] >> (i % 2 * 4) & 15) | (high >> (2 * i) & 3) << 4;
      scale[i] = d * static_cast<float>(s - 32);
      for (int k = 0; k < 16; ++k) {
        code[i * 32 + k] = kNonLinear4[p[8 + i * 16 + k] & 15];
        code[i * 32 + 16 + k] = kNonLinear4[p[8 + i * 16 + k] >> 4];
      }
    }
  }
};

template <class F>
constexpr int super_bytes = kSuper / F::kBlock * F::kBytes;

// Codes of up to kSuper elements; `count` is a multiple of the block.
template <class F>
void decode_super(const uint8_t* p, int count, Codes* out) {
  for (int i = 0; i < count / F::kBlock; ++i)
    F::decode(p + i * F::kBytes, out->code + i * F::kBlock, out->scale + i * (F::kBlock / F::kRun),
              out->min + i * (F::kBlock / F::kRun));
}

// Up to kSuper weights as float32, exactly as ggml defines them.
template <class F>
void unpack_super(const uint8_t* p, int count, float* out) {
  Codes codes;
  decode_super<F>(p, count, &codes);
  for (int run = 0; run < count / F::kRun; ++run) {
    const float scale = codes.scale[run], min = F::kMin ? codes.min[run] : 0.0f;
    for (int i = run * F::kRun; i < (run + 1) * F::kRun; ++i) {
      const float product = static_cast<float>(codes.code[i]) * scale;
      out[i] = F::kMin ? product - min : product;
    }
  }
}

// Plain types: one element a block, no codes.
struct F32 {
  static constexpr const char* kName = "F32";
  static constexpr int kBlock = 1, kBytes = 4;
  static constexpr DType kDType = DType::f32;
};
struct F16 {
  static constexpr const char* kName = "F16";
  static constexpr int kBlock = 1, kBytes = 2;
  static constexpr DType kDType = DType::f16;
};
struct BF16 {
  static constexpr const char* kName = "BF16";
  static constexpr int kBlock = 1, kBytes = 2;
  static constexpr DType kDType = DType::bf16;
};

// VL neighbouring weights; p may lie at any alignment.
template <class F>
inline vf load_plain(const uint8_t* p) {
#if defined(TRIGRAPH_ISA_avx512) || defined(TRIGRAPH_ISA_avx2)
  const void* data = p;  // these loads take any address
#else
  alignas(16) uint8_t data[VL * F::kBytes];
  std::memcpy(data, p, sizeof data);
#endif
  if constexpr (std::is_same_v<F, F32>) return load(reinterpret_cast<const float*>(data));
  if constexpr (std::is_same_v<F, F16>) return load_f16(reinterpret_cast<const uint16_t*>(data));
  if constexpr (std::is_same_v<F, BF16>) return load_bf16(reinterpret_cast<const uint16_t*>(data));
}

template <class F>
inline void unpack_plain(const uint8_t* p, int count, float* out) {
  int i = 0;
  for (; i + VL <= count; i += VL) store(out + i, load_plain<F>(p + i * F::kBytes));
  if (i == count) return;
  uint8_t rest[VL * F::kBytes] = {};
  std::memcpy(rest, p + i * F::kBytes, static_cast<size_t>((count - i) * F::kBytes));
  float values[VL];
  store(values, load_plain<F>(rest));
  std::memcpy(out + i, values, static_cast<size_t>(count - i) * 4);
}
template <>
inline void unpack_super<F32>(const uint8_t* p, int count, float* out) {
  unpack_plain<F32>(p, count, out);
}
template <>
inline void unpack_super<F16>(const uint8_t* p, int count, float* out) {
  unpack_plain<F16>(p, count, out);
}
template <>
inline void unpack_super<BF16>(const uint8_t* p, int count, float* out) {
  unpack_plain<BF16>(p, count, out);
}

}  // namespace trigraph::TRIGRAPH_ISA::native
