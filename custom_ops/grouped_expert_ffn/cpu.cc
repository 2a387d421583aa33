// GroupedExpertFFN on a CPU.
#include "expert_step.h"
#include "signature.h"

namespace trigraph::TRIGRAPH_ISA {
namespace {

long long ll(int64_t value) { return value; }

struct GroupedExpertFFN : GroupedExpertFFNSignature {
  explicit GroupedExpertFFN(const KernelInfo& info) {
    const std::string activations = info.text("activations", "float32"), up_type = info.text("up_type", "");
    gate_ = &row_kernel(info.text("gate_type"), activations);
    if (!up_type.empty()) up_ = &row_kernel(up_type, activations);
    down_ = &row_kernel(info.text("down_type"), activations);
  }

  void compute(const Context& context) const {
    const ExpertShapes shapes = GroupedExpertFFNSignature::shapes(context, up_ != nullptr);
    const Tensor x = context.input(0), ids = context.input(1), weights = context.input(2);
    const Matrices gates(context.input(3), *gate_, shapes.width);
    const ExpertStep<Context> step{context,
                                   shapes.experts,
                                   shapes.k,
                                   shapes.width,
                                   shapes.ffn,
                                   gates,
                                   shapes.fused ? gates : Matrices(context.input(5), *up_, shapes.width),
                                   Matrices(context.input(4), *down_, shapes.ffn),
                                   shapes.fused ? shapes.ffn : 0};
    if (shapes.ffn % gates.kernel->rows)
      fail("input gate has %lld rows an expert, expected a multiple of %lld for type %s", ll(gates.rows),
           ll(2 * gates.kernel->rows), gates.kernel->type);
    check_ids(ids, shapes.experts);
    const Tensor shared = context.input(6), shared_gate = context.input(7);
    const int64_t tokens = shapes.tokens, width = shapes.width, k = shapes.k;
    float* y = context.output(0, {tokens, width}).as<float>();
    for (int64_t t = 0; t < tokens; t += kTokensAtOnce)
      step.run({x.as<float>() + t * width, ids.as<int64_t>() + t * k, weights.as<float>() + t * k,
                shared.rank ? shared.as<float>() + t * width : nullptr,
                shared.rank ? shared_gate.as<float>() + t : nullptr, std::min(kTokensAtOnce, tokens - t),
                y + t * width});
  }

 private:
  static void check_ids(const Tensor& ids, int64_t experts) {
    const int64_t k = ids.dims[1];
    const int64_t* id = ids.as<int64_t>();
    for (int64_t i = 0; i < ids.dims[0] * k; ++i)
      if (id[i] < 0 || id[i] >= experts)
        fail("input ids holds expert %lld at token %lld, slot %lld: input gate has %lld experts", ll(id[i]), ll(i / k),
             ll(i % k), ll(experts));
  }

  const RowKernel* gate_;
  const RowKernel* up_ = nullptr;  // nullptr: gate holds gate|up
  const RowKernel* down_;
};

}  // namespace

const OrtCustomOp* grouped_expert_ffn() {
  static const Op<GroupedExpertFFN> op;
  return &op;
}

}  // namespace trigraph::TRIGRAPH_ISA
