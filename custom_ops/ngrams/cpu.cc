// NgramRows: which rows of a table the n-grams of each token have. NgramMix: what those rows add to residual streams.
#include <algorithm>
#include <iterator>

#include "../gated_delta_net/batch.h"
#include "arithmetic.h"

namespace trigraph::TRIGRAPH_ISA {
namespace {

struct NgramRows : NgramRowsSignature {
  using NgramRowsSignature::NgramRowsSignature;

  void compute(const Context& context) const {
    Tensor in[std::size(kInputs)];
    for (size_t i = 0; i < std::size(kInputs); ++i) in[i] = context.input(i);
    const NgramRowsShape shape(in);
    const SequenceStarts sequences(in[2], shape.tokens);
    const NgramHash hash(in, shape, eos);
    const auto wrong = [](Reason reason, long long a = 0, long long b = 0, long long c = 0, long long d = 0) -> bool {
      fail(kSentences[static_cast<int>(reason)], a, b, c, d);
    };
    for (int64_t i = 0; i < hash.values(); ++i) hash.holds(i, wrong);
    int64_t* out = context.output(0, {shape.tokens * shape.rows}).as<int64_t>();
    for (int64_t s = 0; s < sequences.count; ++s)
      for (int64_t t = sequences.start[s]; t < sequences.start[s + 1]; ++t)
        hash.rows_of(t, sequences.start[s], s, out + t * shape.rows);
  }
};

struct Columns;
struct Pointers;

class NgramMix : public NgramMixSignature {
 public:
  using NgramMixSignature::NgramMixSignature;

  void compute(const Context& context) const {
    Tensor in[std::size(kInputs)];
    for (size_t i = 0; i < std::size(kInputs); ++i) in[i] = context.input(i);
    const MixShape shape = this->shape(in);
    const DeltaStep step = read_step(step_inputs(shape, in));
    float* y = context.output(0, {shape.rows, shape.width()}).as<float>();
    const Tensor window = context.output_like(1, in[kWindow]);
    const int64_t slot = shape.window_rows() * shape.width();
    if (window.data != in[kWindow].data)  // rows past the step's own too, so that both ways leave the same bits
      context.parallel_for(shape.slots, [&](int64_t i) {
        std::memcpy(window.as<float>() + i * slot, in[kWindow].as<float>() + i * slot, slot * sizeof(float));
      });

    auto* columns = static_cast<float*>(scratch<Columns>(shape.rows * shape.width() * sizeof(float)));
    context.parallel_for(shape.rows * streams, [&](int64_t i) { gate(in, shape, i, y, columns); });
    const float** read = gather(shape, step, in[kWindow].as<float>(), columns);
    constexpr int64_t kChannels = 256;  // of a task
    const int64_t tasks = (shape.width() + kChannels - 1) / kChannels;
    context.parallel_for(tasks * static_cast<int64_t>(step.sequences.size()), [&](int64_t task) {
      const int64_t s = task / tasks, first = task % tasks * kChannels;
      const int64_t count = std::min(kChannels, shape.width() - first);
      const StepSequence& sequence = step.sequences[s];
      const float* const* own = read + s * shape.history + sequence.first;
      convolve_channels(own + sequence.pending, sequence.own, dilation, in[kConv].as<float>(), first, count,
                        shape.width(), y + sequence.begin * shape.width());
      save(own, shape, sequence, first, count, window.as<float>() + sequence.slot_out * slot);
    });
  }

 private:
  // Gates one stream of one row: y = x + v with v = gate value, and the column that the convolution reads, v's norm.
  void gate(const Tensor* in, const MixShape& shape, int64_t i, float* y, float* columns) const {
    const int64_t hidden = shape.hidden, row = i / streams, at = i * hidden, own = i % streams * hidden;
    const float *x = in[kX].as<float>() + at, *key = in[kKey].as<float>() + at, *query = in[kQuery].as<float>() + at;
    gate_stream(x, key, query, in[kValue].as<float>() + row * hidden, in[kConvNorm].as<float>() + own, hidden, eps,
                y + at, columns + at);
  }

  // For each sequence its history, the pending tokens that it commits, and its own tokens; nullptr: zeros.
  static const float** gather(const MixShape& shape, const DeltaStep& step, const float* window, const float* columns) {
    const auto sequences = static_cast<int64_t>(step.sequences.size());
    const int64_t count = step.tokens + sequences * shape.history;
    auto** read = static_cast<const float**>(scratch<Pointers>(static_cast<size_t>(count) * sizeof(float*)));
    const float** next = read;
    for (const StepSequence& sequence : step.sequences) {
      const float* slot = window + sequence.slot_in * shape.window_rows() * shape.width();
      for (int64_t row = 0; row < shape.history + sequence.pending; ++row)
        *next++ = sequence.fresh ? nullptr : slot + row * shape.width();
      for (int64_t row = 0; row < sequence.own; ++row) *next++ = columns + (sequence.begin + row) * shape.width();
    }
    return read;
  }

  // The window after the step, over some channels. No column lies before its own destination.
  void save(const float* const* columns, const MixShape& shape, const Sequence& sequence, int64_t first, int64_t count,
            float* window) const {
    const float* const* kept = columns + sequence.left_behind(commit);
    const int64_t rows = shape.history + (commit ? 0 : sequence.own);
    for (int64_t row = 0; row < rows; ++row) {
      float* to = window + row * shape.width() + first;
      if (!kept[row])
        std::memset(to, 0, static_cast<size_t>(count) * sizeof(float));
      else if (kept[row] + first != to)
        std::memmove(to, kept[row] + first, static_cast<size_t>(count) * sizeof(float));
    }
  }
};

}  // namespace

const OrtCustomOp* ngram_rows() {
  static const Op<NgramRows> op;
  return &op;
}

const OrtCustomOp* ngram_mix() {
  static const Op<NgramMix> op;
  return &op;
}

}  // namespace trigraph::TRIGRAPH_ISA
