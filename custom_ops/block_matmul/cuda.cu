// BlockMatMul and GatedBlockMatMul on a device.
#include <vector>

#include "../blocks/few_products.h"
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
    std::vector<Product> left;
    bool int8 = false;  // whether some are
    for (int i = 0; i < count; ++i) {
      const Weight w(weight(context, i), *kernel_[i], width);
      float* y = context.output(i, {rows, w.columns}).as<float>();
      if (!rows || !w.columns) continue;
      left.push_back({w, y});
      int8 = int8 || kernel_[i]->layout == Layout::int8;
    }
    if (FewTasks::fit(width, rows, false)) take_few(left, x.as<float>(), width, rows, stream);
    if (left.empty()) return;
    const Arena::Memory memory = arena_.take<char>(int8 ? rows * prepared_bytes(Layout::int8, width) : 0);
    if (int8) prepare(x.as<float>(), rows, width, memory.as<char>(), stream);
    for (const Product& product : left)
      product.weight.product(product.weight.kernel.layout == Layout::float32 ? x.data : memory.as<char>(), rows,
                             product.y, stream);
  }

 private:
  struct Product {
    Weight weight;
    float* y;
  };

  // Products of few rows, weights that share a launch together; those whose types take none stay.
  static void take_few(std::vector<Product>& left, const float* x, int64_t width, int64_t rows, cudaStream_t stream) {
    std::vector<Product> others;
    while (!left.empty()) {
      const auto few = left.front().weight.kernel.few;
      FewTasks tasks(x, nullptr, width, rows);
      std::vector<Product> rest;
      for (const Product& product : left) {
        const Weight& w = product.weight;
        if (!few && w.kernel.few == few)
          others.push_back(product);
        else if (w.kernel.few == few)
          tasks.add(w.kernel, w.data, w.columns, w.row_bytes, product.y);
        else
          rest.push_back(product);
      }
      if (few) few(tasks, stream);
      left.swap(rest);
    }
    left.swap(others);
  }

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
    if (kernel_.few && kernel_.layout == Layout::int8 && FewTasks::fit(width, rows, true)) {
      FewTasks tasks(gate.as<float>(), up.as<float>(), width, rows);
      tasks.add(kernel_, w.data, w.columns, w.row_bytes, y.as<float>());
      return kernel_.few(tasks, stream);
    }
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
