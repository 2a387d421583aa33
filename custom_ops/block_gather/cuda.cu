// BlockGather: rows of a table in ggml blocks as float32: the embedding lookup.
#include "../blocks/cuda/products.h"
#include "../cuda/kernel.h"

namespace trigraph::TRIGRAPH_ISA {
namespace {

class BlockGather {
 public:
  static constexpr const char* kName = "BlockGather";
  static constexpr Argument kInputs[] = {{"ids", DType::i64}, {"table", DType::any}};
  static constexpr Argument kOutputs[] = {{"y", DType::f32}};

  explicit BlockGather(const KernelInfo& info) : kernel_(product_kernel(info.text("type"), "float32")) {}

  void compute(Context& context) {
    const Tensor ids = context.input(0), table = context.input(1);
    ids.expect({-1});
    const int64_t width = table_width(table, kernel_), row_bytes = check_weight(table, kernel_, width);
    check_alignment(table, kernel_);
    const Tensor y = context.output(0, {ids.dims[0], width});
    kernel_.unpack(table.as<uint8_t>(), table.dims[0], row_bytes, width, ids.as<int64_t>(), ids.dims[0], y.as<float>(),
                   stream_of(context));
  }

 private:
  const ProductKernel& kernel_;
};

}  // namespace

const OrtCustomOp* block_gather() {
  static const Op<Checked<BlockGather>> op;
  return &op;
}

}  // namespace trigraph::TRIGRAPH_ISA
