#include "../kernel.h"

namespace trigraph::TRIGRAPH_ISA {
namespace {

struct PagedKVWrite {
  static constexpr const char* kName = "PagedKVWrite";
  static constexpr Argument kInputs[] = {{"x", DType::f32}};
  static constexpr Argument kOutputs[] = {{"y", DType::f32}};
  explicit PagedKVWrite(const KernelInfo&) {}
  void compute(Context&) { fail("not implemented"); }
};

}  // namespace

const OrtCustomOp* paged_kv_write() {
  static const Op<PagedKVWrite> op;
  return &op;
}

}  // namespace trigraph::TRIGRAPH_ISA
