// Which rows of the table a token's n-grams have, and how a score becomes a gate: on a CPU as on a device.
#pragma once

#include <cmath>

#include "signature.h"

namespace trigraph::TRIGRAPH_ISA {

struct NgramHash {
  const int64_t *ids, *previous, *multipliers, *moduli, *offsets;
  NgramRowsShape shape;
  int64_t eos;

  NgramHash(const Tensor* in, const NgramRowsShape& of, int64_t end)
      : ids(in[0].as<int64_t>()),
        previous(in[1].as<int64_t>()),
        multipliers(in[3].as<int64_t>()),
        moduli(in[4].as<int64_t>()),
        offsets(in[5].as<int64_t>()),
        shape(of),
        eos(end) {}

  // Whether the i-th id, constant or previous id can be; else what `wrong(reason, numbers...)` returns.
  template <class Wrong>
  TRIGRAPH_EVERYWHERE bool holds(int64_t i, Wrong&& wrong) const {
    if (i < shape.tokens && ids[i] < 0) return wrong(Reason::input_id, ids[i]);
    if (i < shape.sequences * (shape.size - 1) && previous[i] < 0) return wrong(Reason::previous_id, previous[i]);
    if (i < shape.rows && (moduli[i] < 1 || offsets[i] < 0 || offsets[i] > INT64_MAX - moduli[i]))
      return wrong(Reason::ngram_constant, i, i, moduli[i], offsets[i]);
    return true;
  }
  // So many there are at most.
  TRIGRAPH_EVERYWHERE int64_t values() const { return shape.tokens + shape.sequences * (shape.size - 1) + shape.rows; }

  // Rows of token t of sequence s, which begins at `start`. From the nearest EOS before the token on, all tokens read
  // as EOS.
  TRIGRAPH_EVERYWHERE void rows_of(int64_t t, int64_t start, int64_t s, int64_t* out) const {
    uint64_t mixed = static_cast<uint64_t>(ids[t]) * static_cast<uint64_t>(multipliers[0]);
    const int64_t heads = shape.heads(), before = shape.size - 1;
    bool cut = false;
    for (int64_t back = 1; back <= before; ++back) {
      const int64_t at = t - back;
      const int64_t id = at >= start ? ids[at] : previous[s * before + before + at - start];
      cut = cut || id == eos;
      mixed ^= static_cast<uint64_t>(cut ? eos : id) * static_cast<uint64_t>(multipliers[back]);
      for (int64_t h = (back - 1) * heads; h < back * heads; ++h)
        out[h] = static_cast<int64_t>(mixed % static_cast<uint64_t>(moduli[h])) + offsets[h];
    }
  }
};

// The root of a score's size, with its sign; of zero, zero.
TRIGRAPH_EVERYWHERE inline float signed_root(float score) {
  const float size = score < 0 ? -score : score, root = sqrtf(size > 1e-6f ? size : 1e-6f);
  return score > 0 ? root : score < 0 ? -root : score * 0;  // NaN stays NaN
}

}  // namespace trigraph::TRIGRAPH_ISA
