// BlockMatMul and GatedBlockMatMul on a device.
#include "../blocks/products.h"
#include "../cuda/kernel.h"
#include "signature.h"

namespace trigraph::TRIGRAPH_ISA {
namespace {

// One weight matrix of a node.
struct Weight {
  const ProductKernel& kernel;
  const uint8_t* data;
  int64_t columns, row_bytes, width;

  Weight(const Tensor& tensor, const ProductKernel& kernel, int64_t width)
      : kernel(kernel),
        data(tensor.as<uint8_t>()),
        columns(tensor.dims[0]),
        row_bytes(check_weight(tensor, kernel, width)),
        width(width) {
    check_alignment(tensor, kernel);
  }
  void product(const void* x, int64_t rows, float* y, cudaStream_t stream) const {
    kernel.product(data, columns, row_bytes, width, x, rows, y, stream);
  }
  // Without rows prepared before, where there are few.
  bool product_of_few(const float* x, int64_t rows, float* y, cudaStream_t stream) const {
    return kernel.few && kernel.few(data, columns, row_bytes, width, x, rows, y, stream);
  }
};

class BlockMatMul : public BlockMatMulSignature {
 public:
  explicit BlockMatMul(const KernelInfo& info) : BlockMatMulSignature(info), arena_(info) {
    for (int i = 0; i < count; ++i) kernel_[i] = &product_kernel(type[i], info.text("activations", "float32"));
  }

  void compute(const Context& context) const {
    const Tensor x = context.input(0);
    x.expect({-1, -1});
    const int64_t rows = x.dims[0], width = x.dims[1];
    context.expect_outputs(count);
    const cudaStream_t stream = stream_of(context);
    const bool int8 = std::any_of(kernel_, kernel_ + count, [](auto* k) { return k->layout == Layout::int8; });
    const Arena::Memory memory = arena_.take<char>(int8 ? rows * prepared_bytes(Layout::int8, width) : 0);
    bool prepared = false;
    for (int i = 0; i < count; ++i) {
      const Weight w(weight(context, i), *kernel_[i], width);
      float* y = context.output(i, {rows, w.columns}).as<float>();
      if (!rows || !w.columns || w.product_of_few(x.as<float>(), rows, y, stream)) continue;
      const bool as_is = kernel_[i]->layout == Layout::float32;
      if (!as_is && !prepared) prepare(x.as<float>(), rows, width, memory.as<char>(), stream), prepared = true;
      w.product(as_is ? x.data : memory.as<char>(), rows, y, stream);
    }
  }

 private:
  const ProductKernel* kernel_[kMost];
  Arena arena_;
};

class GatedBlockMatMul : public GatedBlockMatMulSignature {
 public:
  explicit GatedBlockMatMul(const KernelInfo& info)
      : kernel_(product_kernel(info.text("type"), info.text("activations", "float32"))), arena_(info) {}

  void compute(const Context& context) const {
    const Tensor gate = context.input(0), up = context.input(1), weight = context.input(2);
    gate.expect({-1, -1});
    const int64_t rows = gate.dims[0], width = gate.dims[1];
    up.expect({rows, width});
    if (weight.rank != 2) fail("input weight has %d dimensions, expected 2", weight.rank);
    const Weight w(weight, kernel_, width);
    const Tensor y = context.output(0, {rows, w.columns});
    if (!rows || !w.columns) return;
    const cudaStream_t stream = stream_of(context);
    const Arena::Memory memory = arena_.take<char>(rows * prepared_bytes(kernel_.layout, width));
    prepare_gated(kernel_.layout, gate.as<float>(), up.as<float>(), rows, width, memory.as<char>(), stream);
    w.product(memory.as<char>(), rows, y.as<float>(), stream);
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

const OrtCustomOp* gated_block_matmul() {
  static const Op<Checked<GatedBlockMatMul>> op;
  return &op;
}

}  // namespace trigraph::TRIGRAPH_ISA
