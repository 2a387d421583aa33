// LastRows: a step cut down to the last row of each sequence. PreviousRows: the row before each row.
#include <cstring>

#include "signature.h"

namespace trigraph::TRIGRAPH_ISA {
namespace {

struct LastRows : LastRowsSignature {
  explicit LastRows(const KernelInfo&) {}

  void compute(const Context& context) const {
    const Tensor cu_seqlens = context.input(0), past_lens = context.input(1);
    const Tensor x = context.input(2), also = context.input(3);
    x.expect({-1, -1});
    if (also.rank) also.expect({x.dims[0], -1});
    context.expect_outputs(also.rank ? 4 : 3);
    const SequenceStarts sequences(cu_seqlens, x.dims[0]);
    past_lens.expect({sequences.count});
    auto* starts = context.output(0, {sequences.count + 1}).as<int32_t>();
    auto* positions = context.output(1, {sequences.count}).as<int32_t>();
    for (int64_t s = 0; s <= sequences.count; ++s) starts[s] = static_cast<int32_t>(s);
    for (int64_t s = 0; s < sequences.count; ++s) positions[s] = position(past_lens, sequences, s);
    copy(x, sequences, context.output(2, {sequences.count, x.dims[1]}).as<float>());
    if (also.rank) copy(also, sequences, context.output(3, {sequences.count, also.dims[1]}).as<float>());
  }

 private:
  static int32_t position(const Tensor& past_lens, const SequenceStarts& sequences, int64_t s) {
    const int32_t past = past_lens.as<int32_t>()[s], before = sequences.start[s + 1] - sequences.start[s] - 1;
    if (past < 0 || past > INT32_MAX - before)
      fail("input past_lens[%lld] is %d, not a position that %d more follow", static_cast<long long>(s), past, before);
    return past + before;
  }
  static void copy(const Tensor& from, const SequenceStarts& sequences, float* to) {
    const int64_t width = from.dims[1];
    if (!width) return;
    for (int64_t s = 0; s < sequences.count; ++s)
      std::memcpy(to + s * width, from.as<float>() + (sequences.start[s + 1] - 1) * width,
                  static_cast<size_t>(width) * sizeof(float));
  }
};

struct PreviousRows : PreviousRowsSignature {
  explicit PreviousRows(const KernelInfo&) {}

  void compute(const Context& context) const {
    const Tensor x = context.input(0), before = context.input(1);
    x.expect({-1, -1});
    const int64_t width = x.dims[1];
    const SequenceStarts sequences(context.input(2), x.dims[0]);
    before.expect({sequences.count, width});
    auto* y = context.output_like(0, x).as<float>();
    if (!width) return;
    const size_t row_bytes = static_cast<size_t>(width) * sizeof(float);
    for (int64_t s = 0; s < sequences.count; ++s) {
      const int64_t start = sequences.start[s], more = sequences.start[s + 1] - start - 1;
      std::memcpy(y + start * width, before.as<float>() + s * width, row_bytes);
      std::memcpy(y + (start + 1) * width, x.as<float>() + start * width, static_cast<size_t>(more) * row_bytes);
    }
  }
};

}  // namespace

const OrtCustomOp* last_rows() {
  static const Op<LastRows> op;
  return &op;
}

const OrtCustomOp* previous_rows() {
  static const Op<PreviousRows> op;
  return &op;
}

}  // namespace trigraph::TRIGRAPH_ISA
