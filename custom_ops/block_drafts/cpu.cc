// BlockConvolution and CandidateEdges: what block drafters do with the rows of their blocks.
#include <algorithm>

#include "../cu_seqlens.h"
#include "../simd.h"
#include "signature.h"

namespace trigraph::TRIGRAPH_ISA {
namespace {

// body(row, place): the place of a row in its block.
template <class Body>
void for_rows(const Context& context, const SequenceStarts& blocks, int64_t rows, Body&& body) {
  context.parallel_for(rows, [&](int64_t row) {
    const auto* next = std::upper_bound(blocks.start, blocks.start + blocks.count + 1, row);
    body(row, row - next[-1]);
  });
}

struct BlockConvolution : BlockConvolutionSignature {
  using BlockConvolutionSignature::BlockConvolutionSignature;

  void compute(const Context& context) const {
    const Tensor x = context.input(0), kernels = context.input(1), base = context.input(2);
    const int64_t share = group(x, kernels, base), rows = x.dims[0], width = x.dims[1], groups = width / share;
    const SequenceStarts blocks(context.input(3), rows);
    float* y = context.output_like(0, x).as<float>();
    for_rows(context, blocks, rows, [&](int64_t row, int64_t place) {
      const float *own = x.as<float>() + row * width, *kernel = kernels.as<float>() + row * kernels.dims[1];
      for (int64_t tap = 0; tap < std::min(taps, place + 1); ++tap)
        for (int64_t g = 0; g < groups; ++g)
          add(own - tap * width + g * share, base.as<float>() + (first + tap) * width + g * share,
              kernel[(first + tap) * groups + g], share, !tap, y + row * width + g * share);
    });
  }

 private:
  // y = (base + kernel) * x, added to what y holds unless it `begins`.
  static void add(const float* x, const float* base, float kernel, int64_t count, bool begins, float* y) {
    for (int64_t i = 0; i < count; i += VL) {
      const int64_t left = count - i;
      const vf factor = trigraph::TRIGRAPH_ISA::add(load_first(base + i, left), splat(kernel));
      const vf before = begins ? zero() : load_first(y + i, left);
      store_first(y + i, fmadd(factor, load_first(x + i, left), before), left);
    }
  }
};

struct CandidateEdges : CandidateEdgesSignature {
  using CandidateEdgesSignature::CandidateEdgesSignature;

  void compute(const Context& context) const {
    const Tensor scores = context.input(0), known = context.input(1), before = context.input(2);
    const Tensor after = context.input(3), gate = context.input(5);
    check(scores, known, before, after, gate);
    const int64_t rows = scores.dims[0], count = scores.dims[1], rank = known.dims[1];
    const SequenceStarts blocks(context.input(4), rows);
    float* edges = context.output(0, {rows, count, count}).as<float>();
    for_rows(context, blocks, rows, [&](int64_t row, int64_t place) {
      const float *own = scores.as<float>() + row * count, *factors = gate.as<float>() + (gate.rank ? row * rank : 0);
      const float* right = after.as<float>() + row * count * rank;
      float* out = edges + row * count * count;
      for (int64_t e = 0; e < count; ++e) {
        const float* left = place <= drafting ? known.as<float>() + (row - place) * rank
                                              : before.as<float>() + ((row - 1) * count + e) * rank;
        for (int64_t c = 0; c < count; ++c)
          out[e * count + c] = own[c] + product(left, gate.rank ? factors : nullptr, right + c * rank, rank);
      }
    });
  }

 private:
  // A chain of fma for each lane of the rank, then all lanes.
  static float product(const float* left, const float* factors, const float* right, int64_t rank) {
    vf sum = zero();
    for (int64_t i = 0; i < rank; i += VL) {
      vf x = load_first(left + i, rank - i);
      if (factors) x = mul(x, load_first(factors + i, rank - i));
      sum = fmadd(x, load_first(right + i, rank - i), sum);
    }
    return reduce_add(sum);
  }
};

}  // namespace

const OrtCustomOp* block_convolution() {
  static const Op<BlockConvolution> op;
  return &op;
}

const OrtCustomOp* candidate_edges() {
  static const Op<CandidateEdges> op;
  return &op;
}

}  // namespace trigraph::TRIGRAPH_ISA
