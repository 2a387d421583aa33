// NgramRows on a device: a thread for each token. NgramMix: a block for each stream of a row, then a thread for each
// channel of a sequence, which alone reads and moves that channel of the window.
#include <iterator>

#include "../gated_delta_net/holds.cuh"
#include "../rows/sequences.cuh"
#include "hash.h"

namespace trigraph::TRIGRAPH_ISA {
namespace {

constexpr int kThreads = 256;

// grid: tokens.
__global__ void __launch_bounds__(kThreads) find_rows(Starts starts, NgramHash hash, int64_t* out) {
  if (!starts.hold()) return;
  const auto wrong = [](Reason, int64_t, int64_t = 0, int64_t = 0, int64_t = 0) { return false; };
  bool bad = false;
  for (int64_t i = threadIdx.x; i < hash.values(); i += kThreads) bad = bad || !hash.holds(i, wrong);
  if (__syncthreads_or(bad)) {
    const auto tell = [&](Reason reason, int64_t a, int64_t b = 0, int64_t c = 0, int64_t d = 0) {
      report(starts.record, starts.op, reason, a, b, c, d);
      return false;
    };
    if (threadIdx.x == 0 && blockIdx.x == 0)
      for (int64_t i = 0; i < hash.values() && hash.holds(i, tell); ++i) {
      }
    return;
  }
  const int64_t t = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (t >= hash.shape.tokens) return;
  const int s = starts.sequence_of(t);
  hash.rows_of(t, starts.start[s], s, out + t * hash.shape.rows);
}

struct NgramRows : NgramRowsSignature {
  using NgramRowsSignature::NgramRowsSignature;

  void compute(const Context& context) const {
    Tensor in[std::size(kInputs)];
    for (size_t i = 0; i < std::size(kInputs); ++i) in[i] = context.input(i);
    const NgramRowsShape shape(in);
    const Starts starts(in[2], nullptr, shape.tokens, Operator::ngram_rows);
    const Tensor out = context.output(0, {shape.tokens * shape.rows});
    launch(find_rows, blocks_of(shape.tokens, kThreads), kThreads, 0, stream_of(context), starts,
           NgramHash(in, shape, eos), out.as<int64_t>());
  }
};

struct Mix {
  MixShape shape;
  StepInputs step;
  const float *x, *key, *query, *value, *conv_norm, *conv, *past_window;
  int64_t dilation;
  float eps;
  float *columns, *y, *window;  // columns: [rows, streams x hidden]
  ErrorRecord* record;
};

// Gates one stream of one row: y = x + v with v = gate value, and v's norm, the column. grid: streams of all rows.
__global__ void __launch_bounds__(kThreads) gate_rows(const __grid_constant__ Mix mix) {
  __shared__ float factor;
  const MixShape& shape = mix.shape;
  const int width = static_cast<int>(shape.hidden);
  const int64_t row = blockIdx.x / shape.streams, stream = blockIdx.x % shape.streams, at = blockIdx.x * shape.hidden;
  if (threadIdx.x < kWarp) {
    const float product = dot(mix.key + at, mix.query + at, width);
    if (threadIdx.x == 0) factor = sigmoid(signed_root(product / sqrtf(static_cast<float>(width))));
  }
  __syncthreads();
  const float open = factor;
  float* column = mix.columns + at;
  for (int i = threadIdx.x; i < width; i += kThreads) {
    const float gated = open * mix.value[row * shape.hidden + i];
    mix.y[at + i] = mix.x[at + i] + gated;
    column[i] = gated;
  }
  __syncthreads();
  if (threadIdx.x < kWarp) {
    const float squares = dot(column, column, width);
    if (threadIdx.x == 0) factor = 1.0f / sqrtf(squares / static_cast<float>(width) + mix.eps);
  }
  __syncthreads();
  const float* norm = mix.conv_norm + stream * shape.hidden;
  for (int i = threadIdx.x; i < width; i += kThreads) column[i] = column[i] * factor * norm[i];
}

// A channel's column i of a sequence: history, pending tokens, own tokens.
__device__ __forceinline__ float column_of(const Mix& mix, const Sequence& sequence, int64_t i, int64_t channel) {
  const int64_t stored = mix.shape.history + sequence.pending, width = mix.shape.width();
  if (i >= stored) return mix.columns[(sequence.begin + i - stored) * width + channel];
  if (sequence.fresh) return 0;
  return mix.past_window[(sequence.slot_in * mix.shape.window_rows() + i) * width + channel];
}

// grid: [channels, sequences].
__global__ void __launch_bounds__(kThreads) convolve_rows(const __grid_constant__ Mix mix) {
  if (!step_holds(mix.step, 0, Operator::ngram_mix, nullptr, mix.record)) return;
  const int64_t width = mix.shape.width(), channel = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (channel >= width) return;
  const Sequence sequence(mix.step, blockIdx.y);
  const float* taps = mix.conv + channel * NgramMixSignature::kTaps;
  for (int64_t t = 0; t < sequence.own; ++t) {
    float sum = 0;
    for (int64_t j = 0; j < NgramMixSignature::kTaps; ++j) {
      const float column = column_of(mix, sequence, sequence.pending + t + j * mix.dilation, channel);
      sum = j ? fmaf(column, taps[j], sum) : column * taps[j];
    }
    mix.y[(sequence.begin + t) * width + channel] += silu(sum);
  }
  // No column lies before its own destination.
  const int64_t kept = sequence.left_behind(mix.step.commit);
  const int64_t moved = mix.shape.history + (mix.step.commit ? 0 : sequence.own);
  float* window = mix.window + sequence.slot_out * mix.shape.window_rows() * width + channel;
  for (int64_t i = 0; i < moved; ++i) window[i * width] = column_of(mix, sequence, kept + i, channel);
}

class NgramMix : public NgramMixSignature {
 public:
  explicit NgramMix(const KernelInfo& info) : NgramMixSignature(info), arena_(info) {}

  void compute(const Context& context) const {
    Tensor in[std::size(kInputs)];
    for (size_t i = 0; i < std::size(kInputs); ++i) in[i] = context.input(i);
    const MixShape shape = this->shape(in);
    const StepInputs step = step_inputs(shape, in);
    const Tensor y = context.output(0, {shape.rows, shape.width()}), window = context.output_like(1, in[kWindow]);
    const cudaStream_t stream = stream_of(context);
    copy_other_buffer(in[kWindow], window, sizeof(float), stream);
    const Arena::Memory columns = arena_.take<float>(shape.rows * shape.width());
    Mix mix{};
    mix.shape = shape, mix.step = step, mix.dilation = dilation, mix.eps = eps, mix.record = error_record();
    const float** inputs[] = {&mix.x, &mix.key, &mix.query, &mix.value, &mix.conv_norm, &mix.conv, &mix.past_window};
    for (size_t i = 0; i < std::size(inputs); ++i) *inputs[i] = in[i].as<float>();
    mix.columns = columns.as<float>(), mix.y = y.as<float>(), mix.window = window.as<float>();
    launch(gate_rows, static_cast<unsigned>(shape.rows * shape.streams), kThreads, 0, stream, mix);
    const dim3 grid(blocks_of(shape.width(), kThreads), static_cast<unsigned>(step.sequences));
    launch(convolve_rows, grid, kThreads, 0, stream, mix);
  }

 private:
  Arena arena_;
};

}  // namespace

const OrtCustomOp* ngram_rows() {
  static const Op<Checked<NgramRows>> op;
  return &op;
}

const OrtCustomOp* ngram_mix() {
  static const Op<Checked<NgramMix>> op;
  return &op;
}

}  // namespace trigraph::TRIGRAPH_ISA
