// GatedDeltaNet on a device: one sequence's few tokens in one launch (scan_one.cuh), else in two
// (mix.cuh, scan.cuh), or three for many tokens (scan_many.cuh). Tokens go one by one, pending ones and own ones, in a
// verify as in a prefill; every sum has the order of the CPU's kernels.
#include <iterator>

#include "mix.cuh"
#include "scan_many.cuh"
#include "scan_one.cuh"

namespace trigraph::TRIGRAPH_ISA {
namespace {

class GatedDeltaNet : public GatedDeltaNetSignature {
 public:
  explicit GatedDeltaNet(const KernelInfo& info)
      : GatedDeltaNetSignature(info),
        arena_(info),
        done_(info.integer("k_heads")),
        multiprocessors_(multiprocessors()) {}

  void compute(Context& context) {
    Tensor in[std::size(kInputs)];
    for (size_t i = 0; i < std::size(kInputs); ++i) in[i] = context.input(i);
    const Geometry g = geometry(in);
    const StepInputs step = step_inputs(g, in);
    check_limits(g);
    const Tensor y = context.output(0, {step.rows, g.v_heads * g.dim}), state = context.output_like(1, in[kState]),
                 window = context.output_like(2, in[kWindow]), gates = context.output_like(3, in[kGates]);
    const cudaStream_t stream = stream_of(context);
    copy_other_buffer(in[kState], state, sizeof(float), stream);
    copy_other_buffer(in[kWindow], window, sizeof(float), stream);
    copy_other_buffer(in[kGates], gates, sizeof(float), stream);

    Work work{};
    work.geometry = g;
    work.step = step;
    const float** inputs[] = {&work.qkv,     &work.z, &work.alpha, &work.beta,       &work.conv,
                              &work.dt_bias, &work.a, &work.norm,  &work.past_state, &work.past_window};
    for (size_t i = 0; i < std::size(inputs); ++i) *inputs[i] = in[i].as<float>();
    work.y = y.as<float>(), work.state = state.as<float>();
    work.window = window.as<float>(), work.gates = gates.as<float>(), work.record = error_record();
    enqueue(work, stream);
  }

 private:
  void enqueue(Work& work, cudaStream_t stream) const {
    const Geometry& g = work.geometry;
    const StepInputs& step = work.step;
    const int64_t index = g.dim / 16 - 1;
    const auto heads = static_cast<unsigned>(g.v_heads), sequences = static_cast<unsigned>(step.sequences);
    const int threads = static_cast<int>((g.dim + kWarp - 1) / kWarp * kWarp);
    // A verify has at most K tokens a sequence, and K pending ones; a prefill may have all its rows in one sequence.
    const int64_t longest = (g.commit ? step.rows : std::min(step.rows, g.pending_max)) + g.pending_max;
    const unsigned parts = blocks_of(g.dim, kColumns);
    if (step.sequences == 1 && step.rows <= kFewOwn && step.rows + g.pending_max <= kFewTokens)
      return launch_step(step.rows, kScanOnes[index], dim3(parts, heads), kOneThreadsOf[index], 0, stream, work,
                         done_.at(0));

    const Arena::Memory mixed = arena_.take<float>((step.rows + step.sequences * g.pending_max) * g.channels());
    const Arena::Memory verdict = arena_.take<int>(1);
    work.mixed = mixed.as<float>(), work.verdict = verdict.as<int>();
    const dim3 chunks(static_cast<unsigned>(g.units()), blocks_of(longest, kMixTokens), sequences);
    launch(mix, chunks, threads, 0, stream, work);
    const bool many = g.commit && step.rows > kFewRows && step.rows * g.v_heads * g.dim <= UINT32_MAX;
    if (!many || parts * g.v_heads * step.sequences > kScanBlocks * multiprocessors_)
      return launch(kScans[index], dim3(heads, sequences), threads, 0, stream, work);
    launch(kManyScans[index], dim3(parts, heads, sequences), kScanThreads, 0, stream, work);
    launch(kFinishes[index], dim3(blocks_of(step.rows, kGroup), heads), kGroup * kLanes, 0, stream, work);
  }

  static void check_limits(const Geometry& g) {
    constexpr int kMostPending = kMixTokens - kHistory;  // a first chunk reads the whole window
    if (g.dim > kMostDim)
      fail("input norm has %lld values; heads on a GPU have at most %d", static_cast<long long>(g.dim), kMostDim);
    if (g.pending_max > kMostPending)
      fail("input past_gates has %lld rows a slot; on a GPU there are at most %d",
           static_cast<long long>(g.pending_max), kMostPending);
  }

  static constexpr int64_t kFewOwn = 8;      // tokens of one sequence, in one launch
  static constexpr int64_t kFewRows = 64;    // more may be worth a third launch
  static constexpr int64_t kScanBlocks = 2;  // of a multiprocessor, that scan many tokens at once
  Arena arena_;
  Counters done_;
  int64_t multiprocessors_;
};

}  // namespace

const OrtCustomOp* gated_delta_net() {
  static const Op<Checked<GatedDeltaNet>> op;
  return &op;
}

}  // namespace trigraph::TRIGRAPH_ISA
