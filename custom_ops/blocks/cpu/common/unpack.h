// Super-blocks of weights on a CPU: the integers of up to 256 elements, and their values as float32.
#pragma once

#include <type_traits>

#include "../../formats/formats.h"

// Before a loop that shall stay one: unrolled it would not fit the cache of decoded instructions, or not be vectorised.
#if defined(__clang__)
#define TRIGRAPH_LOOP _Pragma("nounroll")
#elif defined(__GNUC__)
#define TRIGRAPH_LOOP _Pragma("GCC unroll 1")
#else
#define TRIGRAPH_LOOP
#endif

namespace trigraph::TRIGRAPH_ISA {

constexpr int kSuper = 256;  // elements that kernels handle at a time: one K block, or eight blocks of 32

template <class F>
constexpr int kBlocks = kSuper / F::kBlock;  // of a super-block
template <class F>
constexpr int super_bytes = kBlocks<F> * F::kBytes;

// What formats.h says of up to kSuper elements.
struct Codes {
  alignas(64) int8_t code[kSuper];
  int32_t scale[kSuper / 16], min[kSuper / 16];  // of runs
  float d[kSuper / 32], dmin[kSuper / 32];       // of steps
};

// `count` elements, a multiple of the block.
template <class F>
void decode(const uint8_t* p, int count, Codes* out) {
  constexpr int kRuns = F::kBlock / F::kRun;
  for (int block = 0; block < count / F::kBlock; ++block, p += F::kBytes) {
    for (int step = 0; step < kSteps<F>; ++step) {
      out->d[block * kSteps<F> + step] = step_d<F>(p, step);
      if constexpr (kTwoSums<F>) out->dmin[block * kSteps<F> + step] = step_dmin<F>(p, step);
    }
    for (int run = 0; run < kRuns; ++run) {
      out->scale[block * kRuns + run] = F::scale(p, run);
      if constexpr (F::kMin) out->min[block * kRuns + run] = F::min(p, run);
    }
    for (int part = 0; part < F::kBlock / 32; ++part)
      for (int i = 0; i < 32; ++i)
        out->code[block * F::kBlock + part * 32 + i] = static_cast<int8_t>(F::code(p, part, i));
  }
}

// VL codes as float32.
TRIGRAPH_INLINE vf load_codes(const int8_t* p) {
#if defined(TRIGRAPH_ISA_avx512)
  return {{_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))}};
#elif defined(TRIGRAPH_ISA_avx2)
  const auto eight = [](const int8_t* p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
  };
  return {{eight(p), eight(p + 8)}};
#else
  float value[VL];
  for (int i = 0; i < VL; ++i) value[i] = p[i];
  return load(value);
#endif
}

// `count` weights as float32, exactly as ggml defines them.
template <class F>
void unpack(const uint8_t* p, int64_t count, float* out) {
  for (int64_t block = 0; block < count / F::kBlock; ++block, p += F::kBytes) {
    const float d = F::d(p);
    TRIGRAPH_UNROLL
    for (int part = 0; part < F::kBlock / 32; ++part) {
      alignas(32) int8_t code[32];
      TRIGRAPH_LOOP
      for (int i = 0; i < 32; ++i) code[i] = static_cast<int8_t>(F::code(p, part, i));
      TRIGRAPH_UNROLL
      for (int i = 0; i < 32; i += F::kRun, out += F::kRun) {
        const int run = (part * 32 + i) / F::kRun;
        const float scale = d * static_cast<float>(F::scale(p, run));
        float min = 0;
        if constexpr (F::kMin) min = F::dmin(p) * static_cast<float>(F::min(p, run));
        for (int k = 0; k < F::kRun; k += VL) {
          const vf product = mul(load_codes(code + i + k), splat(scale));
          store(out + k, F::kMin ? sub(product, splat(min)) : product);
        }
      }
    }
  }
}

// VL neighbouring weights of a plain type; p may lie at any alignment.
template <class F>
TRIGRAPH_INLINE vf load_plain(const uint8_t* p) {
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
void unpack_plain(const uint8_t* p, int64_t count, float* out) {
  int64_t i = 0;
  for (; i + VL <= count; i += VL) store(out + i, load_plain<F>(p + i * F::kBytes));
  if (i == count) return;
  uint8_t rest[VL * F::kBytes] = {};
  std::memcpy(rest, p + i * F::kBytes, static_cast<size_t>((count - i) * F::kBytes));
  store_first(out + i, load_plain<F>(rest), count - i);
}
template <>
inline void unpack<F32>(const uint8_t* p, int64_t count, float* out) {
  unpack_plain<F32>(p, count, out);
}
template <>
inline void unpack<F16>(const uint8_t* p, int64_t count, float* out) {
  unpack_plain<F16>(p, count, out);
}
template <>
inline void unpack<BF16>(const uint8_t* p, int64_t count, float* out) {
  unpack_plain<BF16>(p, count, out);
}

}  // namespace trigraph::TRIGRAPH_ISA
