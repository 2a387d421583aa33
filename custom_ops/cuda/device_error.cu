// Where a device error is kept, and how it reads.
#include "device_error.cuh"

namespace trigraph::TRIGRAPH_ISA {
namespace {

constexpr const char* kOps[] = {"BlockGather",    "GatedDeltaNet", "GroupedExpertFFN", "PagedKVWrite",
                                "PagedAttention", "LastRows",      "PreviousRows"};

// By Reason; every number is a long long.
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
};
static_assert(sizeof kSentences / sizeof *kSentences == static_cast<size_t>(Reason::last_position) + 1);

ErrorRecord* made = nullptr;  // once the first kernel needs it

ErrorRecord* make_record() {
  void* memory = nullptr;
  check(cudaHostAlloc(&memory, sizeof(ErrorRecord), cudaHostAllocMapped | cudaHostAllocPortable),
        "memory for error records");
  std::memset(memory, 0, sizeof(ErrorRecord));
  return made = static_cast<ErrorRecord*>(memory);
}

}  // namespace

ErrorRecord* error_record() {
  static ErrorRecord* const record = make_record();
  return record;
}

DeviceError take_device_error() {
  DeviceError error{};
  ErrorRecord* record = made;
  if (!record || !record->ready) return error;
  error.found = true;
  error.op = kOps[record->op];
  const long long* v = record->value;
  std::snprintf(error.text, sizeof error.text, kSentences[record->reason], v[0], v[1], v[2], v[3]);
  record->ready = 0;
  record->taken = 0;  // a kernel that is still running may report another
  return error;
}

}  // namespace trigraph::TRIGRAPH_ISA
