// GatedDeltaNet: convolution, gates, delta rule with commit of accepted tokens, output norm and gate; see reference.py.
#include <iterator>

#include "run.h"

namespace trigraph::TRIGRAPH_ISA {
namespace {

// Slots that the step does not write, when the state comes out in another buffer. A written slot's window rows past the
// step's own are copied too, so that both ways leave the same bits.
void copy_untouched(const Context& context, const Slots& slots, const std::vector<char>* written) {
  if (slots.past == slots.present) return;
  context.parallel_for(slots.count, [&](int64_t slot) {
    if (!written || !(*written)[slot]) std::memcpy(slots.out(slot), slots.in(slot), slots.size * sizeof(float));
  });
}

struct StepScratch;

class GatedDeltaNet : public GatedDeltaNetSignature {
 public:
  using GatedDeltaNetSignature::GatedDeltaNetSignature;

  void compute(Context& context) {
    Tensor in[std::size(kInputs)];
    for (size_t i = 0; i < std::size(kInputs); ++i) in[i] = context.input(i);
    const Geometry geometry = this->geometry(in);
    const int64_t rows = in[kQkv].dims[0];
    const DeltaStep step = read_step(step_inputs(geometry, in));

    Run run;
    run.geometry = geometry;
    run.z = in[kZ].as<float>();
    run.conv = in[kConv].as<float>();
    run.norm = in[kNorm].as<float>();
    run.y = context.output(0, {rows, geometry.v_heads * geometry.dim}).as<float>();
    run.state = slots(in[kState], context.output_like(1, in[kState]));
    run.window = slots(in[kWindow], context.output_like(2, in[kWindow]));
    run.gates = slots(in[kGates], context.output_like(3, in[kGates]));
    copy_untouched(context, run.state, &step.written);
    copy_untouched(context, run.window, nullptr);
    copy_untouched(context, run.gates, nullptr);

    run.gate_row = (geometry.v_heads + VL - 1) / VL * VL;
    const int64_t values = step.tokens * run.gate_row;
    const int64_t columns = step.tokens + 3 * static_cast<int64_t>(step.sequences.size());
    float* decay = static_cast<float*>(scratch<StepScratch>(2 * values * sizeof(float) + columns * sizeof(float*)));
    float* beta = decay + values;
    const float** column = reinterpret_cast<const float**>(beta + values);
    run.decay = decay;
    run.beta = beta;
    run.columns = column;
    gather_columns(run, step, in[kQkv].as<float>(), column);
    compute_gates(run, step, in, decay, beta);
    if (geometry.commit)
      prefill(context, run, step);
    else
      verify(context, run, step);
  }

 private:
  static Slots slots(const Tensor& past, const Tensor& present) {
    int64_t size = 1;
    for (int i = 1; i < past.rank; ++i) size *= past.dims[i];
    return {past.as<float>(), present.as<float>(), past.dims[0], size};
  }

  static void gather_columns(const Run& run, const DeltaStep& step, const float* qkv, const float** columns) {
    const int64_t size = run.geometry.channels();
    for (const StepSequence& sequence : step.sequences) {
      const float* window = run.window.in(sequence.slot_in);
      for (int64_t row = 0; row < 3 + sequence.pending; ++row)
        *columns++ = sequence.fresh ? nullptr : window + row * size;
      for (int64_t row = 0; row < sequence.own; ++row) *columns++ = qkv + (sequence.begin + row) * size;
    }
  }

  // Gates of every token, [tokens][gate_row], those of pending tokens as they were saved; and what is pending from now
  // on.
  static void compute_gates(const Run& run, const DeltaStep& step, const Tensor* in, float* log_decay, float* beta) {
    const int64_t heads = run.geometry.v_heads, row = run.gate_row;
    const size_t bytes = heads * sizeof(float);
    for (const StepSequence& sequence : step.sequences) {
      float *g = log_decay + sequence.first * row, *b = beta + sequence.first * row;
      const float* saved = run.gates.in(sequence.slot_in);
      for (int64_t t = 0; t < sequence.pending; ++t) {
        std::memcpy(g + t * row, saved + 2 * t * heads, bytes);
        std::memcpy(b + t * row, saved + (2 * t + 1) * heads, bytes);
      }
      g += sequence.pending * row;
      b += sequence.pending * row;
      for (int64_t t = 0; t < sequence.own; ++t) {
        const int64_t at = (sequence.begin + t) * heads;
        gates(in[kAlpha].as<float>() + at, in[kBeta].as<float>() + at, in[kDtBias].as<float>(), in[kA].as<float>(),
              heads, g + t * row, b + t * row);
      }
      float* out = run.gates.out(sequence.slot_out);
      for (int64_t t = 0; t < run.geometry.pending_max; ++t, out += 2 * heads) {
        const bool pending = !run.geometry.commit && t < sequence.own;
        for (int64_t h = 0; h < heads; ++h) {
          out[h] = pending ? g[t * row + h] : 0;
          out[heads + h] = pending ? b[t * row + h] : kNoToken;
        }
      }
    }
    decays(log_decay, step.tokens * row);
  }
};

}  // namespace

const OrtCustomOp* gated_delta_net() {
  static const Op<GatedDeltaNet> op;
  return &op;
}

}  // namespace trigraph::TRIGRAPH_ISA
