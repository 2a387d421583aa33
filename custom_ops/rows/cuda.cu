// LastRows and PreviousRows on a device: a block for each row that is written.
#include "../cuda/kernel.h"
#include "signature.h"

namespace trigraph::TRIGRAPH_ISA {
namespace {

constexpr int kThreads = 256;

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
    for (int s = threadIdx.x; s < sequences; s += kThreads) bad = bad || !sequence_holds(s, false);
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

__device__ void copy(const float* from, float* to, int64_t width) {
  for (int64_t i = threadIdx.x; i < width; i += kThreads) to[i] = from[i];
}

// grid: sequences, at least one.
__global__ void __launch_bounds__(kThreads)
    last_of_each(Starts starts, const float* x, int64_t width, const float* also, int64_t also_width,
                 int32_t* last_starts, int32_t* last_past, float* last_x, float* last_also) {
  if (!starts.hold()) return;
  const int s = blockIdx.x;
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

// grid: rows.
__global__ void __launch_bounds__(kThreads)
    previous_of_each(Starts starts, const float* x, const float* before, int64_t width, float* y) {
  if (!starts.hold()) return;
  const int64_t row = blockIdx.x;
  const int s = starts.sequence_of(row);
  copy(starts.start[s] == row ? before + s * width : x + (row - 1) * width, y + row * width, width);
}

struct LastRows : LastRowsSignature {
  explicit LastRows(const KernelInfo&) {}

  void compute(const Context& context) const {
    const Tensor cu_seqlens = context.input(0), past_lens = context.input(1);
    const Tensor x = context.input(2), also = context.input(3);
    x.expect({-1, -1});
    if (also.rank) also.expect({x.dims[0], -1});
    context.expect_outputs(also.rank ? 4 : 3);
    const Starts starts(cu_seqlens, past_lens.as<int32_t>(), x.dims[0], Operator::last_rows);
    past_lens.expect({starts.sequences});
    const int64_t count = starts.sequences, also_width = also.rank ? also.dims[1] : 0;
    const Tensor last_starts = context.output(0, {count + 1}), last_past = context.output(1, {count});
    const Tensor last_x = context.output(2, {count, x.dims[1]});
    float* last_also = also.rank ? context.output(3, {count, also_width}).as<float>() : nullptr;
    launch(last_of_each, static_cast<unsigned>(std::max<int64_t>(1, count)), kThreads, 0, stream_of(context), starts,
           x.as<float>(), x.dims[1], also.rank ? also.as<float>() : nullptr, also_width, last_starts.as<int32_t>(),
           last_past.as<int32_t>(), last_x.as<float>(), last_also);
  }
};

struct PreviousRows : PreviousRowsSignature {
  explicit PreviousRows(const KernelInfo&) {}

  void compute(const Context& context) const {
    const Tensor x = context.input(0), before = context.input(1);
    x.expect({-1, -1});
    const Starts starts(context.input(2), nullptr, x.dims[0], Operator::previous_rows);
    before.expect({starts.sequences, x.dims[1]});
    const Tensor y = context.output_like(0, x);
    launch(previous_of_each, static_cast<unsigned>(x.dims[0]), kThreads, 0, stream_of(context), starts, x.as<float>(),
           before.as<float>(), x.dims[1], y.as<float>());
  }
};

}  // namespace

const OrtCustomOp* last_rows() {
  static const Op<Checked<LastRows>> op;
  return &op;
}

const OrtCustomOp* previous_rows() {
  static const Op<Checked<PreviousRows>> op;
  return &op;
}

}  // namespace trigraph::TRIGRAPH_ISA
