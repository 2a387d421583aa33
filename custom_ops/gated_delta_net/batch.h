// What a step asks for: sequences and slots, checked before anything is written.
#pragma once

#include <vector>

#include "signature.h"

namespace trigraph::TRIGRAPH_ISA {

struct Sequence {
  int64_t begin, own;  // its rows of the step
  int64_t pending;     // tokens of the previous verify to commit first
  int64_t slot_in, slot_out;
  bool fresh;     // start of a sequence: state and history are zeros
  int64_t first;  // its first token in the step's scratch, pending tokens included
  int64_t count() const { return pending + own; }
};

struct Step {
  std::vector<Sequence> sequences;
  int64_t tokens = 0;         // pending and own tokens of all sequences
  std::vector<char> written;  // by slot
};

struct StepInputs {
  Tensor cu_seqlens, past_lens, accepted, slots_in, slots_out, past_gates;
};

// Throws Error that names the input and the value for a step that cannot be.
inline Step read_step(const Geometry& geometry, const StepInputs& inputs, int64_t rows) {
  inputs.past_lens.expect({-1});
  const int64_t count = inputs.past_lens.dims[0], slots = inputs.past_gates.dims[0];
  inputs.cu_seqlens.expect({count + 1});
  inputs.accepted.expect({count});
  inputs.slots_in.expect({count});
  inputs.slots_out.expect({count});
  const int32_t* cu = inputs.cu_seqlens.as<int32_t>();
  if (cu[0] != 0) fail("input cu_seqlens[0] is %d, expected 0", cu[0]);
  if (cu[count] != rows)
    fail("input cu_seqlens ends at %d, but the step has %lld tokens", cu[count], static_cast<long long>(rows));

  Step step;
  step.sequences.reserve(count);
  std::vector<int32_t> writer(slots, -1);
  for (int64_t s = 0; s < count; ++s) {
    const int n = static_cast<int>(s);
    const int32_t past_len = inputs.past_lens.as<int32_t>()[s], accepted = inputs.accepted.as<int32_t>()[s];
    const int32_t slot_in = inputs.slots_in.as<int32_t>()[s], slot_out = inputs.slots_out.as<int32_t>()[s];
    if (cu[s + 1] <= cu[s])
      fail("input cu_seqlens goes from %d to %d at sequence %d: each sequence needs a token", cu[s], cu[s + 1], n);
    const int own = cu[s + 1] - cu[s], most = static_cast<int>(geometry.pending_max);
    if (!geometry.commit && own > most)
      fail("input cu_seqlens gives sequence %d %d tokens, but a verify takes at most %d", n, own, most);
    if (cu[s + 1] > rows)
      fail("input cu_seqlens[%d] is %d, but the step has %lld tokens", n + 1, cu[s + 1], static_cast<long long>(rows));
    if (past_len < 0) fail("input past_lens[%d] is %d, expected at least 0", n, past_len);
    if (accepted < 0 || accepted > most) fail("input accepted[%d] is %d, expected 0 to %d", n, accepted, most);
    if (accepted > past_len)
      fail("input accepted[%d] is %d, more than past_lens[%d] = %d, which includes it", n, accepted, n, past_len);
    if (slot_in < 0 || slot_in >= slots)
      fail("input slots_in[%d] is %d, but there are %lld slots", n, slot_in, static_cast<long long>(slots));
    if (slot_out < 0 || slot_out >= slots)
      fail("input slots_out[%d] is %d, but there are %lld slots", n, slot_out, static_cast<long long>(slots));
    if (writer[slot_out] >= 0)
      fail("input slots_out[%d] is %d, which sequence %d writes too", n, slot_out, writer[slot_out]);
    writer[slot_out] = n;
    // A row that holds no pending token has beta = -1; head 0 stands for all.
    const float* gates = inputs.past_gates.as<float>() + slot_in * geometry.pending_max * 2 * geometry.v_heads;
    for (int row = 0; row < accepted; ++row)
      if (gates[(2 * row + 1) * geometry.v_heads] < 0)
        fail("input accepted[%d] is %d, but slot %d holds %d pending tokens", n, accepted, slot_in, row);
    step.sequences.push_back({cu[s], own, accepted, slot_in, slot_out, past_len == 0, step.tokens});
    step.tokens += accepted + own;
  }
  for (int64_t s = 0; s < count; ++s) {
    const Sequence& sequence = step.sequences[s];
    const int32_t other = writer[sequence.slot_in];
    if (!sequence.fresh && other >= 0 && other != s)
      fail("input slots_in[%d] is %d, which sequence %d writes in the same step", static_cast<int>(s),
           static_cast<int>(sequence.slot_in), other);
  }
  step.written.resize(slots);
  for (const Sequence& sequence : step.sequences) step.written[sequence.slot_out] = 1;
  return step;
}

}  // namespace trigraph::TRIGRAPH_ISA
