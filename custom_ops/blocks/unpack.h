// Blocks as the row products take them on a CPU: the codes of up to 256 elements, and weights as float32.
#pragma once

#include <type_traits>

#include "formats.h"
#include "native.h"

namespace trigraph::TRIGRAPH_ISA::native {

constexpr int kSuper = 256;  // elements that kernels handle at a time: one K block, or eight blocks of 32

struct Codes {
  alignas(64) int8_t code[kSuper];
  alignas(64) float scale[kSuper / 16];
  alignas(64) float min[kSuper / 16];  // set by the types with kMin only
};

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

template <class F>
constexpr int super_bytes = kSuper / F::kBlock * F::kBytes;

// Codes of one block; `scale` and `min` get one entry for each run of kRun elements.
template <class F>
void decode(const uint8_t* p, int8_t* code, float* scale, float* min) {
  const float d = F::d(p);
  for (int run = 0; run < F::kBlock / F::kRun; ++run) {
    scale[run] = d * static_cast<float>(F::scale(p, run));
    if constexpr (F::kMin) min[run] = F::dmin(p) * static_cast<float>(F::min(p, run));
  }
  for (int part = 0; part < F::kBlock / 32; ++part)
    for (int i = 0; i < 32; ++i) code[32 * part + i] = static_cast<int8_t>(F::code(p, part, i));
}

// Codes of up to kSuper elements; `count` is a multiple of the block.
template <class F>
void decode_super(const uint8_t* p, int count, Codes* out) {
  for (int i = 0; i < count / F::kBlock; ++i)
    decode<F>(p + i * F::kBytes, out->code + i * F::kBlock, out->scale + i * (F::kBlock / F::kRun),
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
