// The sequences of a step as index inputs tell them, and whether they can be: the same checks on a CPU and on a device.
#pragma once

#include <cstdint>

#include "../everywhere.h"
#include "../reasons.h"

namespace trigraph::TRIGRAPH_ISA {

constexpr float kNoToken = -1;  // beta in a row of gates that holds no pending token; a token's lies between 0 and 1

struct StepInputs {
  const int32_t *cu_seqlens, *past_lens, *accepted, *slots_in, *slots_out;
  const float* past_gates;  // which tell tokens that are pending; nullptr: another operator of the step has them
  int64_t rows, sequences, slots, pending_max, v_heads;
  bool commit;
};

// Whether sequence s can be; else what `wrong(reason, numbers...)` returns. Heads wait together: one of them tells.
template <class Wrong>
TRIGRAPH_EVERYWHERE bool sequence_holds(const StepInputs& step, int s, int64_t head, Wrong&& wrong) {
  const int32_t* cu = step.cu_seqlens;
  const int64_t own = int64_t{cu[s + 1]} - cu[s], past_len = step.past_lens[s], accepted = step.accepted[s];
  const int64_t slot_in = step.slots_in[s], slot_out = step.slots_out[s];
  if (s == 0 && cu[0] != 0) return wrong(Reason::gdn_first_start, cu[0]);
  if (s == 0 && cu[step.sequences] != step.rows) return wrong(Reason::gdn_last_start, cu[step.sequences], step.rows);
  if (own <= 0) return wrong(Reason::gdn_no_token, cu[s], cu[s + 1], s);
  if (!step.commit && own > step.pending_max) return wrong(Reason::gdn_many_tokens, s, own, step.pending_max);
  if (cu[s + 1] > step.rows) return wrong(Reason::gdn_past_end, s + 1, cu[s + 1], step.rows);
  if (past_len < 0) return wrong(Reason::gdn_past, s, past_len);
  if (accepted < 0 || accepted > step.pending_max)
    return wrong(Reason::gdn_accepted_range, s, accepted, step.pending_max);
  if (accepted > past_len) return wrong(Reason::gdn_accepted_past, s, accepted, s, past_len);
  if (slot_in < 0 || slot_in >= step.slots) return wrong(Reason::gdn_slot_in, s, slot_in, step.slots);
  if (slot_out < 0 || slot_out >= step.slots) return wrong(Reason::gdn_slot_out, s, slot_out, step.slots);
  // Loops are as long for every sequence, so that the threads of a device stay together.
  int64_t twin = s, missing = accepted;
  for (int64_t other = step.sequences; other-- > 0;)
    twin = other < s && step.slots_out[other] == slot_out ? other : twin;
  if (twin < s) return wrong(Reason::gdn_two_writers, s, slot_out, twin);
  if (!step.past_gates) return true;
  const float* beta = step.past_gates + slot_in * step.pending_max * 2 * step.v_heads + step.v_heads + head;
  for (int64_t row = step.pending_max; row-- > 0;)
    missing = row < accepted && beta[row * 2 * step.v_heads] < 0 ? row : missing;
  if (missing < accepted) return wrong(Reason::gdn_pending, s, accepted, slot_in, missing);
  return true;
}

// Whether no other sequence writes the slot that s reads; all of them hold otherwise.
template <class Wrong>
TRIGRAPH_EVERYWHERE bool slot_holds(const StepInputs& step, int s, Wrong&& wrong) {
  int64_t writer = -1;
  for (int64_t other = step.sequences; other-- > 0;)
    writer = other != s && step.slots_out[other] == step.slots_in[s] ? other : writer;
  if (step.past_lens[s] != 0 && writer >= 0) return wrong(Reason::gdn_read_written, s, step.slots_in[s], writer);
  return true;
}

// One sequence of a step that holds.
struct Sequence {
  int64_t begin, own;  // its rows of the step
  int64_t pending;     // tokens of the previous verify to commit first
  int64_t slot_in, slot_out;
  bool fresh;  // start of a sequence: state and history are zeros

  TRIGRAPH_EVERYWHERE Sequence(const StepInputs& step, int64_t s)
      : begin(step.cu_seqlens[s]),
        own(step.cu_seqlens[s + 1] - begin),
        pending(step.accepted[s]),
        slot_in(step.slots_in[s]),
        slot_out(step.slots_out[s]),
        fresh(step.past_lens[s] == 0) {}
  TRIGRAPH_EVERYWHERE int64_t count() const { return pending + own; }
  // Columns of the window that the step leaves behind, and those that it keeps.
  TRIGRAPH_EVERYWHERE int64_t left_behind(bool commit) const { return commit ? count() : pending; }
  TRIGRAPH_EVERYWHERE int window_rows(bool commit) const { return 3 + static_cast<int>(commit ? 0 : own); }
  TRIGRAPH_EVERYWHERE bool reads_a_slot(const StepInputs& step) const { return slot_in >= 0 && slot_in < step.slots; }
};

}  // namespace trigraph::TRIGRAPH_ISA
