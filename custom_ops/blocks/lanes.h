// The lane order of this instruction set, and unpacking into it.
#pragma once

#include "rows.h"
#if defined(TRIGRAPH_ISA_avx512)
#include "lanes_avx512.h"
#elif defined(TRIGRAPH_ISA_avx2)
#include "lanes_avx2.h"
#else
#include "lanes_generic.h"
#endif

namespace trigraph::TRIGRAPH_ISA::native {

// Super-block `super` of a weight row; the last one of a row may be short.
template <class F>
TRIGRAPH_INLINE void decode_lanes(const uint8_t* row, int64_t width, int64_t super, LaneBlock* out) {
  constexpr int kWhole = kSuper / F::kBlock;
  const uint8_t* p = row + super * super_bytes<F>;
  if constexpr (kWhole > 1) {
    alignas(16) uint8_t padded[kWhole * F::kBytes];
    const int64_t left = width / F::kBlock - super * kWhole;
    const bool whole = left >= kWhole;
    if (!whole) {
      std::memset(padded, 0, sizeof padded);
      std::memcpy(padded, p, static_cast<size_t>(left * F::kBytes));
    }
    Lanes<F>::decode(whole ? p : padded, out);
  } else {
    Lanes<F>::decode(p, out);
  }
}

// Calls body(i, values) for each super-block i of an activation row; the last one is padded with zeros.
template <class Body>
void each_super(const float* x, int64_t width, Body&& body) {
  const int64_t whole = width / kSuper;
  for (int64_t i = 0; i < whole; ++i) body(i, x + i * kSuper);
  if (width % kSuper == 0) return;
  alignas(64) float padded[kSuper] = {};
  std::memcpy(padded, x + whole * kSuper, static_cast<size_t>(width % kSuper) * 4);
  body(whole, static_cast<const float*>(padded));
}

// One number for each lane or run, for the types with a bias or a min.
constexpr int kLaneNumbers = 16;

}  // namespace trigraph::TRIGRAPH_ISA::native
