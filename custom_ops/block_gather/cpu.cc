#include "../kernel.h"

namespace trigraph::TRIGRAPH_ISA {
namespace {

struct BlockGather {
  static constexpr const char* kName = "BlockGather";
  static constexpr Argument kInputs[] = {{"x", DType::f32}};
  static constexpr Argument kOutputs[] = {{"y", DType::f32}};
  explicit BlockGather(const KernelInfo&) {}
  void compute(Context&) { fail("not implemented"); }
};

}  // namespace

const OrtCustomOp* block_gather() {
  static const Op<BlockGather> op;
  return &op;
}

}  // namespace trigraph::TRIGRAPH_ISA
