// The rows of a step's sequences on a device.
#pragma once

#include "../cuda/kernel.h"

namespace trigraph::TRIGRAPH_ISA {

// Where the rows of each sequence start; checked by every block alike, block 0 tells what is wrong.
struct Starts {
  const int32_t* start;
  const int32_t* past;  // past_lens, or nullptr
  int sequences;
  int64_t rows;
  Operator op;
  ErrorRecord* record;

  Starts(const Tensor& cu_seqlens, const int32_t* past, int64_t rows, Operator op)
      : start(cu_seqlens.as<int32_t>()), past(past), rows(rows), op(op), record(error_record()) {
    cu_seqlens.expect({-1});
    if (cu_seqlens.dims[0] < 1) fail("input %s is empty", cu_seqlens.name);
    sequences = static_cast<int>(cu_seqlens.dims[0] - 1);
    if (!sequences && rows)
      fail("input %s is for no sequence, but there are %lld rows", cu_seqlens.name, static_cast<long long>(rows));
  }

  __device__ bool hold() const {
    bool bad = false;
    for (int s = threadIdx.x; s < sequences; s += blockDim.x) bad = bad || !sequence_holds(s, false);
    if (!__syncthreads_or(bad)) return true;
    if (threadIdx.x == 0 && blockIdx.x == 0)
      for (int s = 0; s < sequences && sequence_holds(s, true); ++s) {
      }
    return false;
  }
  __device__ int sequence_of(int64_t row) const {
    int low = 0, high = sequences;  // start[low] <= row < start[high]
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (start[middle] <= row ? low : high) = middle;
    }
    return low;
  }

 private:
  __device__ bool wrong(bool tell, Reason reason, int64_t a, int64_t b = 0, int64_t c = 0) const {
    if (tell) report(record, op, reason, a, b, c);
    return false;
  }
  __device__ bool sequence_holds(int s, bool tell) const {
    if (s == 0 && start[0] != 0) return wrong(tell, Reason::first_start, start[0]);
    if (start[s + 1] <= start[s]) return wrong(tell, Reason::no_rows, start[s], start[s + 1], s);
    if (s + 1 == sequences && start[s + 1] != rows) return wrong(tell, Reason::last_start, start[s + 1], rows);
    if (!past) return true;
    const int32_t more = start[s + 1] - start[s] - 1;
    return (past[s] >= 0 && past[s] <= INT32_MAX - more) || wrong(tell, Reason::last_position, s, past[s], more);
  }
};

__device__ __forceinline__ void copy(const float* from, float* to, int64_t width) {
  for (int64_t i = threadIdx.x; i < width; i += blockDim.x) to[i] = from[i];
}

// The last row of each sequence, and the step of those rows alone.
struct Last {
  Starts starts;
  const float *x, *also;  // also: or nullptr
  int64_t width, also_width;
  int32_t *last_starts, *last_past;
  float *last_x, *last_also;

  // Takes the last row of sequence s, or none, for the step's end; the whole block calls.
  __device__ void take(int s) const {
    if (!starts.hold()) return;
    if (threadIdx.x == 0) last_starts[s] = s;
    if (s == starts.sequences) return;
    const int64_t row = starts.start[s + 1] - 1;
    if (threadIdx.x == 0) {
      if (s + 1 == starts.sequences) last_starts[s + 1] = s + 1;
      last_past[s] = starts.past[s] + static_cast<int32_t>(row - starts.start[s]);
    }
    copy(x + row * width, last_x + s * width, width);
    if (also) copy(also + row * also_width, last_also + s * also_width, also_width);
  }
};

// The last rows in a call whose outputs for them begin at number `first`, checked.
inline Last last_of(const Context& context, const Tensor& cu_seqlens, const Tensor& past_lens, const Tensor& x,
                    const Tensor& also, int first) {
  x.expect({-1, -1});
  if (also.rank) also.expect({x.dims[0], -1});
  context.expect_outputs(first + (also.rank ? 4 : 3));
  const Starts starts(cu_seqlens, past_lens.as<int32_t>(), x.dims[0], Operator::last_rows);
  past_lens.expect({starts.sequences});
  const int64_t count = starts.sequences, also_width = also.rank ? also.dims[1] : 0;
  return {starts,
          x.as<float>(),
          also.as<float>(),
          x.dims[1],
          also_width,
          context.output(first, {count + 1}).as<int32_t>(),
          context.output(first + 1, {count}).as<int32_t>(),
          context.output(first + 2, {count, x.dims[1]}).as<float>(),
          also.rank ? context.output(first + 3, {count, also_width}).as<float>() : nullptr};
}

}  // namespace trigraph::TRIGRAPH_ISA
