// A quarter of the lanes: one q register.
#pragma once

#include <arm_neon.h>

#include <cstdint>
#include <cstring>

namespace trigraph::TRIGRAPH_ISA {

constexpr int kPartLanes = 4;
using Part = float32x4_t;
inline Part load_part(const float* p) { return vld1q_f32(p); }
inline Part load_once(const float* p) { return load_part(p); }
inline void store_part(float* p, Part x) { vst1q_f32(p, x); }
inline Part splat_part(float x) { return vdupq_n_f32(x); }
inline Part zero_part() { return vdupq_n_f32(0); }
inline Part add(Part a, Part b) { return vaddq_f32(a, b); }
inline Part sub(Part a, Part b) { return vsubq_f32(a, b); }
inline Part mul(Part a, Part b) { return vmulq_f32(a, b); }
inline Part div(Part a, Part b) { return vdivq_f32(a, b); }
inline Part max(Part a, Part b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
inline Part min(Part a, Part b) { return vbslq_f32(vcltq_f32(a, b), a, b); }
inline Part fmadd(Part a, Part b, Part c) { return vfmaq_f32(c, a, b); }
inline Part round(Part x) { return vrndnq_f32(x); }
inline Part pow2(Part n) {
  return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vcvtnq_s32_f32(n), vdupq_n_s32(127)), 23));
}
inline float reduce_add(Part x) {
  float32x2_t h = vadd_f32(vget_low_f32(x), vget_high_f32(x));
  return vget_lane_f32(h, 0) + vget_lane_f32(h, 1);
}
inline void reduce_add4(Part a, Part b, Part c, Part d, float* out) {
  const Part ab =
      vcombine_f32(vadd_f32(vget_low_f32(a), vget_high_f32(a)), vadd_f32(vget_low_f32(b), vget_high_f32(b)));
  const Part cd =
      vcombine_f32(vadd_f32(vget_low_f32(c), vget_high_f32(c)), vadd_f32(vget_low_f32(d), vget_high_f32(d)));
  vst1q_f32(out, vpaddq_f32(ab, cd));
}
inline Part load_f16_part(const uint16_t* p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))); }
inline Part load_bf16_part(const uint16_t* p) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16)); }
inline Part load_i8_part(const int8_t* p) {
  int32_t codes;
  std::memcpy(&codes, p, sizeof codes);
  return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(vcreate_s8(static_cast<uint32_t>(codes))))));
}
inline void store_f16_part(uint16_t* p, Part x) { vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(x))); }
inline void load_transposed4_part(const float* p, Part* out) {
  const float32x4x4_t rows = vld4q_f32(p);
  for (int j = 0; j < 4; ++j) out[j] = rows.val[j];
}

}  // namespace trigraph::TRIGRAPH_ISA
