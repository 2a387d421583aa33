// Router on a device: a warp for each row.
#include "../cuda/kernel.h"
#include "choose_experts.cuh"
#include "signature.h"

namespace trigraph::TRIGRAPH_ISA {
namespace {

constexpr int kWarps = 4;  // of a block

__global__ void __launch_bounds__(kWarps* kWarp) route_rows(Routing routing, int rows) {
  allow_next();
  await_previous();
  const int row = static_cast<int>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  if (row < rows) routing(row);
}

struct Router : RouterSignature {
  using RouterSignature::RouterSignature;

  void compute(const Context& context) const {
    const Tensor logits = context.input(0);
    check(logits);
    const int64_t rows = logits.dims[0];
    const Tensor ids = context.output(0, {rows, k}), weights = context.output(1, {rows, k});
    route({logits.as<float>(), static_cast<int>(logits.dims[1]), static_cast<int>(k), normalize, ids.as<int64_t>(),
           weights.as<float>()},
          rows, stream_of(context));
  }
};

}  // namespace

void route(const Routing& routing, int64_t rows, cudaStream_t stream) {
  launch_step(rows, route_rows, blocks_of(rows, kWarps), kWarps * kWarp, 0, stream, routing, rows);
}

const OrtCustomOp* router() {
  static const Op<Checked<Router>> op;
  return &op;
}

}  // namespace trigraph::TRIGRAPH_ISA
