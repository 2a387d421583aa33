// Repacked IQ3 weights, by rows as lanes: AVX2 and AVX-512.
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
    scales[0] = nibble_scales(head[0], 0), scales[1] = nibble_scales(head[0], 1);
  }
  template <class Use>
  TRIGRAPH_INLINE static void codes(Interleaved p, int64_t stride, Use&& use) {
    TRIGRAPH_LOOP
    for (int run = 0; run < kSuper / F::kRun; ++run) {
      Ints raw[4], code[8];
      load_rows(p + F::kCodesAt + 16 * run, stride, raw);
      nibbles(raw, code);
      levels<F, F::kLevels>(code);
      use(run, code);
    }
  }
};

}  // namespace trigraph::TRIGRAPH_ISA
