// LastRows and PreviousRows on a device: a block for each row that is written.
#include "sequences.cuh"
#include "signature.h"

namespace trigraph::TRIGRAPH_ISA {
namespace {

constexpr int kThreads = 256;

// grid: sequences, at least one.
__global__ void __launch_bounds__(kThreads) last_of_each(Last last) { last.take(blockIdx.x); }

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
    const Last last = last_of(context, context.input(0), context.input(1), context.input(2), context.input(3), 0);
    launch(last_of_each, static_cast<unsigned>(std::max(1, last.starts.sequences)), kThreads, 0, stream_of(context),
           last);
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
