#include "../kernel.h"

namespace trigraph::TRIGRAPH_ISA {
namespace {

struct BlockMatMul {
  static constexpr const char* kName = "BlockMatMul";
  static constexpr Argument kInputs[] = {{"x", DType::f32}};
  static constexpr Argument kOutputs[] = {{"y", DType::f32}};
  explicit BlockMatMul(const KernelInfo&) {}
  void compute(Context&) { fail("not implemented"); }
};

}  // namespace

const OrtCustomOp* block_matmul() {
  static const Op<BlockMatMul> op;
  return &op;
}

}  // namespace trigraph::TRIGRAPH_ISA
