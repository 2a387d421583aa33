// Where a device error is kept, and how it reads.
#include <atomic>

#include "device_error.cuh"

namespace trigraph::TRIGRAPH_ISA {
namespace {

constexpr const char* kOps[] = {
    "BlockGather",  "GatedDeltaNet",   "GroupedExpertFFN", "PagedKVWrite",   "PagedAttention", "LastRows",
    "PreviousRows", "PositionRows",    "PatchAttention",   "NgramRows",      "NgramMix",       "PagedIndexWrite",
    "PagedSelect",  "HostBlockGather", "BlockConvolution", "CandidateEdges", "Gather",         "ScatterND"};

ErrorRecord* made = nullptr;  // once the first kernel needs it

ErrorRecord* make_record() {
  const BesideCaptures beside;
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
  std::atomic_thread_fence(std::memory_order_acquire);  // what the device wrote before it set `ready`
  error.found = true;
  error.op = kOps[record->op];
  const long long* v = record->value;
  std::snprintf(error.text, sizeof error.text, kSentences[record->reason], v[0], v[1], v[2], v[3]);
  record->ready = 0;
  std::atomic_thread_fence(std::memory_order_release);
  record->taken = 0;  // a kernel that is still running may report another
  return error;
}

void report_from_host(Operator op, Reason reason, int64_t a, int64_t b, int64_t c) {
  ErrorRecord* record = error_record();
  if (record->taken) return;  // once is enough
  record->taken = 1;
  record->op = static_cast<int>(op), record->reason = static_cast<int>(reason);
  record->value[0] = a, record->value[1] = b, record->value[2] = c;
  std::atomic_thread_fence(std::memory_order_release);
  record->ready = 1;
}

}  // namespace trigraph::TRIGRAPH_ISA
