// Repacked IQ2 and IQ3 weights, by rows as lanes: AVX2 and AVX-512.
#pragma once

#include "../levels.h"
#include "grid_lanes.h"
#include "interleaved.h"

namespace trigraph::TRIGRAPH_ISA {

template <class G>
struct Lanes<Levels<G>> {
  using F = Levels<G>;

  TRIGRAPH_INLINE static Ints halves(Interleaved p, int64_t stride) { return load_halves(p + F::kDAt, stride); }
  TRIGRAPH_INLINE static void scales(Interleaved p, int64_t stride, Ints* scales, Ints*) {
    Ints head[4];
    load_rows(p, stride, head);
    TRIGRAPH_UNROLL
    for (uint32_t k = 0; k < kSuper / F::kRun / 4; ++k) scales[k] = nibble_scales(head[k / 2], k % 2);
  }
  template <class Use>
  TRIGRAPH_INLINE static void codes(Interleaved p, int64_t stride, Use&& use) {
    TRIGRAPH_LOOP
    for (int part = 0; part < kSuper / 32; ++part) {
      Ints raw[4], code[8];
      load_rows(p + F::kCodesAt + 16 * part, stride, raw);
      nibbles(raw, code);
      levels<F, F::kLevels>(code);
      TRIGRAPH_UNROLL
      for (int half = 0; half < 32 / F::kRun; ++half) use(32 / F::kRun * part + half, code + 4 * half);
    }
  }
};

}  // namespace trigraph::TRIGRAPH_ISA
