// BlockConvolution and CandidateEdges on a device.
#include "../rows/sequences.cuh"
#include "signature.h"

namespace trigraph::TRIGRAPH_ISA {
namespace {

constexpr int kThreads = 256;

struct Convolution {
  const float *x, *kernels, *base;
  int width, share, first, taps, coefficients;  // coefficients: of a row's kernels
  float* y;
};

// A thread for each element. grid: [rows, blocks of a row].
__global__ void __launch_bounds__(kThreads) convolve(Starts starts, Convolution of) {
  if (!starts.hold()) return;
  const int row = static_cast<int>(blockIdx.x), i = static_cast<int>(blockIdx.y * kThreads + threadIdx.x);
  if (i >= of.width) return;
  const int place = row - starts.start[starts.sequence_of(row)], groups = of.width / of.share;
  const float* x = of.x + int64_t{row} * of.width + i;
  const float* kernel = of.kernels + int64_t{row} * of.coefficients + i / of.share;
  float sum = 0;
  for (int tap = 0; tap < min(of.taps, place + 1); ++tap) {
    const float factor = of.base[int64_t{of.first + tap} * of.width + i] + kernel[(of.first + tap) * groups];
    sum = fmaf(factor, x[-int64_t{tap} * of.width], sum);
  }
  of.y[int64_t{row} * of.width + i] = sum;
}

struct Edges {
  const float *scores, *known, *before, *after, *gate;
  int count, rank, drafting;
  float* edges;
};

// kLanes threads for each candidate. grid: [rows, candidates of the row before].
__global__ void __launch_bounds__(kThreads, 4) join_candidates(Starts starts, Edges of) {
  if (!starts.hold()) return;
  const int64_t row = blockIdx.x;
  const int e = static_cast<int>(blockIdx.y), lane = static_cast<int>(threadIdx.x) % kLanes;
  const int64_t start = starts.start[starts.sequence_of(row)];
  const bool begins = row - start <= of.drafting;
  const float* left = begins ? of.known + start * of.rank : of.before + ((row - 1) * of.count + e) * of.rank;
  for (int first = 0; first < of.count; first += kThreads / kLanes) {
    const int c = first + static_cast<int>(threadIdx.x) / kLanes;
    const float* right = of.after + (row * of.count + min(c, of.count - 1)) * of.rank;
    float sum = 0;
    for (int i = lane; i < of.rank; i += kLanes) {
      const float x = of.gate ? left[i] * of.gate[row * of.rank + i] : left[i];
      sum = fmaf(x, right[i], sum);
    }
    sum = lane_sum(sum, kLanes);
    if (lane == 0 && c < of.count) of.edges[(row * of.count + e) * of.count + c] = of.scores[row * of.count + c] + sum;
  }
}

struct BlockConvolution : BlockConvolutionSignature {
  explicit BlockConvolution(const KernelInfo& info) : BlockConvolutionSignature(info) {}

  void compute(const Context& context) const {
    const Tensor x = context.input(0), kernels = context.input(1), base = context.input(2);
    const int64_t share = group(x, kernels, base), rows = x.dims[0], width = x.dims[1];
    const Starts starts(context.input(3), nullptr, rows, Operator::block_convolution);
    const Tensor y = context.output_like(0, x);
    launch(convolve, dim3(static_cast<unsigned>(rows), blocks_of(width, kThreads)), kThreads, 0, stream_of(context),
           starts,
           Convolution{x.as<float>(), kernels.as<float>(), base.as<float>(), static_cast<int>(width),
                       static_cast<int>(share), static_cast<int>(first), static_cast<int>(taps),
                       static_cast<int>(kernels.dims[1]), y.as<float>()});
  }
};

struct CandidateEdges : CandidateEdgesSignature {
  explicit CandidateEdges(const KernelInfo& info) : CandidateEdgesSignature(info) {}

  void compute(const Context& context) const {
    const Tensor scores = context.input(0), known = context.input(1), before = context.input(2);
    const Tensor after = context.input(3), gate = context.input(5);
    check(scores, known, before, after, gate);
    const int64_t rows = scores.dims[0], count = scores.dims[1];
    const Starts starts(context.input(4), nullptr, rows, Operator::candidate_edges);
    const Tensor edges = context.output(0, {rows, count, count});
    launch(join_candidates, dim3(static_cast<unsigned>(rows), static_cast<unsigned>(count)), kThreads, 0,
           stream_of(context), starts,
           Edges{scores.as<float>(), known.as<float>(), before.as<float>(), after.as<float>(),
                 gate.rank ? gate.as<float>() : nullptr, static_cast<int>(count), static_cast<int>(known.dims[1]),
                 static_cast<int>(drafting), edges.as<float>()});
  }
};

}  // namespace

const OrtCustomOp* block_convolution() {
  static const Op<Checked<BlockConvolution>> op;
  return &op;
}

const OrtCustomOp* candidate_edges() {
  static const Op<Checked<CandidateEdges>> op;
  return &op;
}

}  // namespace trigraph::TRIGRAPH_ISA
