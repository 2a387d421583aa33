// BlockMatMul: y = x @ W^T for a weight matrix in ggml blocks, as the GGUF file holds it.
#include "../blocks/products.h"
#include "../cuda/kernel.h"

namespace trigraph::TRIGRAPH_ISA {
namespace {

class BlockMatMul {
 public:
  static constexpr const char* kName = "BlockMatMul";
  static constexpr Argument kInputs[] = {{"x", DType::f32}, {"weight", DType::any}};
  static constexpr Argument kOutputs[] = {{"y", DType::f32}};

  explicit BlockMatMul(const KernelInfo& info)
      : kernel_(product_kernel(info.text("type"), info.text("activations", "float32"))), arena_(info) {}

  void compute(Context& context) {
    const Tensor x = context.input(0), weight = context.input(1);
    x.expect({-1, -1});
    const int64_t rows = x.dims[0], width = x.dims[1], row_bytes = check_weight(weight, kernel_, width);
    if (weight.rank != 2) fail("input weight has %d dimensions, expected 2", weight.rank);
    check_alignment(weight, kernel_);
    const int64_t columns = weight.dims[0];
    const Tensor y = context.output(0, {rows, columns});
    if (!rows || !columns) return;
    const cudaStream_t stream = stream_of(context);
    const uint8_t* w = weight.as<uint8_t>();
    if (kernel_.few && kernel_.few(w, columns, row_bytes, width, x.as<float>(), rows, y.as<float>(), stream)) return;
    const bool as_is = kernel_.layout == Layout::float32;
    const Arena::Memory memory = arena_.take<char>(as_is ? 0 : rows * prepared_bytes(kernel_.layout, width));
    if (!as_is) prepare(x.as<float>(), rows, width, memory.as<char>(), stream);
    kernel_.product(w, columns, row_bytes, width, as_is ? x.data : memory.as<char>(), rows, y.as<float>(), stream);
  }

 private:
  const ProductKernel& kernel_;
  Arena arena_;
};

}  // namespace

const OrtCustomOp* block_matmul() {
  static const Op<Checked<BlockMatMul>> op;
  return &op;
}

}  // namespace trigraph::TRIGRAPH_ISA
