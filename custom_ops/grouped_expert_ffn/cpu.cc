#include "../kernel.h"

namespace trigraph::TRIGRAPH_ISA {
namespace {

struct GroupedExpertFFN {
  static constexpr const char* kName = "GroupedExpertFFN";
  static constexpr Argument kInputs[] = {{"x", DType::f32}};
  static constexpr Argument kOutputs[] = {{"y", DType::f32}};
  explicit GroupedExpertFFN(const KernelInfo&) {}
  void compute(Context&) { fail("not implemented"); }
};

}  // namespace

const OrtCustomOp* grouped_expert_ffn() {
  static const Op<GroupedExpertFFN> op;
  return &op;
}

}  // namespace trigraph::TRIGRAPH_ISA
