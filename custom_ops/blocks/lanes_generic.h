// The codes of a super-block in their own order, for NEON and for any other processor: products
// add up run by run.
#pragma once

#include "unpack.h"

namespace trigraph::TRIGRAPH_ISA::native {

constexpr int kGroups = 4;
constexpr int kTogether = 1;

using LaneBlock = Codes;

struct NaturalLayout {
  static constexpr int element(int group, int vector, int lane) { return 64 * group + 16 * vector + 4 * lane; }
};

template <class F>
struct Lanes {
  using Layout = NaturalLayout;
  TRIGRAPH_INLINE static void decode(const uint8_t* p, LaneBlock* out) { decode_super<F>(p, kSuper, out); }
};

// Sums of runs as float32, for the types with a min.
template <class F>
inline void lane_numbers(const int8_t* natural, const int8_t*, int32_t* out) {
  for (int i = 0; i < kSuper / F::kRun; ++i) {
    int32_t sum = 0;
    for (int k = 0; k < F::kRun; ++k) sum += natural[i * F::kRun + k];
    const float value = static_cast<float>(sum);
    std::memcpy(out + i, &value, 4);
  }
}

#if defined(TRIGRAPH_ISA_neon)
// 32-bit sums of four neighbouring products each.
inline int32x4_t dot16(int32x4_t sum, const int8_t* w, const int8_t* a) {
  const int8x16_t x = vld1q_s8(w), y = vld1q_s8(a);
#if defined(__ARM_FEATURE_DOTPROD)
  return vdotq_s32(sum, x, y);
#else
  const int32x4_t low = vpaddlq_s16(vmull_s8(vget_low_s8(x), vget_low_s8(y)));
  return vaddq_s32(sum, vpadalq_s16(low, vmull_high_s8(x, y)));
#endif
}
#endif

// Dots of four runs, each times its scale; the integer sums are exact, so only the order of runs matters.
template <class F>
inline vf four_runs(const LaneBlock& w, const int8_t* code, int run, vf sum) {
#if defined(TRIGRAPH_ISA_neon)
  int32x4_t dot[4];
  for (int i = 0; i < 4; ++i) {
    dot[i] = vdupq_n_s32(0);
    for (int k = 0; k < F::kRun; k += 16)
      dot[i] = dot16(dot[i], w.code + (run + i) * F::kRun + k, code + (run + i) * F::kRun + k);
  }
  const int32x4_t runs = vpaddq_s32(vpaddq_s32(dot[0], dot[1]), vpaddq_s32(dot[2], dot[3]));
  return fmadd(vcvtq_f32_s32(runs), load(w.scale + run), sum);
#else
  float dot[4];
  for (int i = 0; i < 4; ++i) {
    int32_t total = 0;
    for (int k = (run + i) * F::kRun; k < (run + i + 1) * F::kRun; ++k)
      total += static_cast<int16_t>(w.code[k]) * static_cast<int16_t>(code[k]);
    dot[i] = static_cast<float>(total);
  }
  return fmadd(load(dot), load(w.scale + run), sum);
#endif
}

// Adds the product of one super-block with one activation row to the row's sums. Large, and called for each of up to
// eight rows.
template <class F>
TRIGRAPH_NOINLINE vf accumulate(const LaneBlock& w, const int8_t* code, const int32_t* lane, float scale, vf sum) {
  vf value = zero(), offset = zero();
  for (int i = 0; i < kSuper / F::kRun; i += 4) {
    value = four_runs<F>(w, code, i, value);
    if (F::kMin) offset = fmadd(load(w.min + i), load(reinterpret_cast<const float*>(lane) + i), offset);
  }
  if (F::kMin) value = sub(value, offset);
  return fmadd(value, splat(scale), sum);
}

}  // namespace trigraph::TRIGRAPH_ISA::native
