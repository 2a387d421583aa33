// What can be wrong with index inputs, in sentences that CPU and device share.
#pragma once

#include <cstddef>

namespace trigraph {

// With up to four numbers; the sentences are in the same order.
enum class Reason : int {
  gather_id,
  expert_id,
  first_start,
  no_rows,
  last_start,
  negative_past,
  few_columns,
  page,
  gdn_first_start,
  gdn_last_start,
  gdn_no_token,
  gdn_past_end,
  gdn_many_tokens,
  gdn_past,
  gdn_accepted_range,
  gdn_accepted_past,
  gdn_slot_in,
  gdn_slot_out,
  gdn_two_writers,
  gdn_pending,
  gdn_read_written,
  last_position,
  table_row,
  place,
  host_memory,
  host_silent,
  input_id,
  previous_id,
  ngram_constant,
  group,
  host_rows_memory,
  gather_index,
};

// Every number is a long long.
constexpr const char* kSentences[] = {
    "input ids[%lld] is %lld, outside the %lld rows of the table",
    "input ids holds expert %lld at token %lld, slot %lld: input gate has %lld experts",
    "input cu_seqlens starts at %lld, not at 0",
    "input cu_seqlens goes from %lld to %lld: sequence %lld has no rows",
    "input cu_seqlens ends at %lld, but there are %lld rows",
    "input past_lens[%lld] is %lld, below 0",
    "input page_table has %lld columns of %lld positions, too few for position %lld of sequence %lld",
    "input page_table[%lld][%lld] is page %lld, outside [0, %lld)",
    "input cu_seqlens[0] is %lld, expected 0",
    "input cu_seqlens ends at %lld, but the step has %lld tokens",
    "input cu_seqlens goes from %lld to %lld at sequence %lld: each sequence needs a token",
    "input cu_seqlens[%lld] is %lld, but the step has %lld tokens",
    "input cu_seqlens gives sequence %lld %lld tokens, but a verify takes at most %lld",
    "input past_lens[%lld] is %lld, expected at least 0",
    "input accepted[%lld] is %lld, expected 0 to %lld",
    "input accepted[%lld] is %lld, more than past_lens[%lld] = %lld, which includes it",
    "input slots_in[%lld] is %lld, but there are %lld slots",
    "input slots_out[%lld] is %lld, but there are %lld slots",
    "input slots_out[%lld] is %lld, which sequence %lld writes too",
    "input accepted[%lld] is %lld, but slot %lld holds %lld pending tokens",
    "input slots_in[%lld] is %lld, which sequence %lld writes in the same step",
    "input past_lens[%lld] is %lld, not a position that %lld more follow",
    "input rows[%lld][%lld] is %lld, outside the %lld rows of the table",
    "input places[%lld][%lld] is %lld, below 0",
    "the host has no memory left to compute experts with",
    "the host has not computed its experts in %lld seconds; was the program stopped, in a debugger say?",
    "input input_ids holds %lld, expected token ids",
    "input previous_ids holds %lld, expected token ids",
    "inputs moduli[%lld], offsets[%lld] are %lld, %lld, expected at least 1 and 0, and a sum below 2^63",
    "input groups[%lld][%lld] is %lld, not one of %lld groups in ascending order",
    "the host has no memory left to read rows with",
    "input indices[%lld] is %lld, outside [0, %lld)",
};
static_assert(sizeof kSentences / sizeof *kSentences == static_cast<size_t>(Reason::gather_index) + 1);

}  // namespace trigraph
