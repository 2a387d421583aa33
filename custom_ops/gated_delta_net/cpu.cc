#include "../kernel.h"

namespace trigraph::TRIGRAPH_ISA {
namespace {

struct GatedDeltaNet {
  static constexpr const char* kName = "GatedDeltaNet";
  static constexpr Argument kInputs[] = {{"x", DType::f32}};
  static constexpr Argument kOutputs[] = {{"y", DType::f32}};
  explicit GatedDeltaNet(const KernelInfo&) {}
  void compute(Context&) { fail("not implemented"); }
};

}  // namespace

const OrtCustomOp* gated_delta_net() {
  static const Op<GatedDeltaNet> op;
  return &op;
}

}  // namespace trigraph::TRIGRAPH_ISA
