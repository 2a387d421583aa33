// Bad values in index inputs are found by the kernels themselves: the inputs lie on the device, where the host cannot
// look without waiting, and where a replayed CUDA graph finds them too. A kernel that finds a bad value leaves a
// record in memory that the host sees, and does no work. The host raises it at the next operator, or when it asks after
// a run.
#pragma once

#include <cstring>

#include "../reasons.h"
#include "platform.cuh"

namespace trigraph::TRIGRAPH_ISA {

enum class Operator : int {
  block_gather,
  gated_delta_net,
  grouped_expert_ffn,
  paged_kv_write,
  paged_attention,
  last_rows,
  previous_rows,
  position_rows,
  patch_attention,
  ngram_rows,
  ngram_mix,
  paged_index_write,
  paged_select,
  host_block_gather,
  block_convolution,
  candidate_edges,
  gather,
  scatter_nd
};

// Written by the device, read by the host.
struct ErrorRecord {
  int taken;           // by the first kernel that reports
  volatile int ready;  // everything below is there
  int op, reason;
  long long value[4];
};

// In memory that host and device share, one for the process.
ErrorRecord* error_record();

struct DeviceError {
  bool found;
  const char* op;
  char text[400];
};
DeviceError take_device_error();
// What the host finds in the midst of a step, in a function that a stream calls.
void report_from_host(Operator op, Reason reason, int64_t a = 0, int64_t b = 0, int64_t c = 0);

__device__ inline void report(ErrorRecord* record, Operator op, Reason reason, int64_t a = 0, int64_t b = 0,
                              int64_t c = 0, int64_t d = 0) {
  if (atomicCAS(&record->taken, 0, 1) != 0) return;
  record->op = static_cast<int>(op);
  record->reason = static_cast<int>(reason);
  record->value[0] = a, record->value[1] = b, record->value[2] = c, record->value[3] = d;
  __threadfence_system();
  record->ready = 1;
}

}  // namespace trigraph::TRIGRAPH_ISA
