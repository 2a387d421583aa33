// BlockMatMul and GatedBlockMatMul on a device.
#include <vector>

#include "../blocks/many_products.h"
#include "device.h"
#include "signature.h"

namespace trigraph::TRIGRAPH_ISA {
namespace {

// Products of few rows, weights that share a launch together; those whose types take none stay.
void take_few(std::vector<Product>& left, const float* x, int64_t width, int64_t rows, cudaStream_t stream) {
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

constexpr int64_t kManyRows = 3;  // from which on tiles are faster than few rows at a time

// Products of prepared rows with weights that share a launch; those whose types take none stay.
void take_many(std::vector<Product>& left, const float* x, const void* prepared, int64_t width, int64_t rows,
               cudaStream_t stream) {
  std::vector<Product> others;
  while (!left.empty()) {
    const auto many = left.front().weight.kernel.many;
    ManyTasks tasks(x, prepared, width);
    std::vector<Product> rest;
    for (const Product& product : left) {
      const Weight& w = product.weight;
      if (w.kernel.many != many || tasks.count == ManyTasks::kMost)
        rest.push_back(product);
      else if (many)
        tasks.add(w.kernel, w.data, 0, w.columns, w.row_bytes, product.y);
      else
        others.push_back(product);
    }
    if (many) many(tasks, {}, 1, rows, stream);
    left.swap(rest);
  }
  left.swap(others);
}

void multiply_prepared(std::vector<Product> products, const float* x, const void* prepared, int64_t width, int64_t rows,
                       cudaStream_t stream) {
  if (rows >= kManyRows) take_many(products, x, prepared, width, rows, stream);
  for (const Product& product : products) {
    const bool plain = product.weight.kernel.layout == Layout::float32;
    product.weight.product(plain ? static_cast<const void*>(x) : prepared, rows, product.y, stream);
  }
}

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
    std::vector<Product> products;
    for (int i = 0; i < count; ++i) {
      const Weight w(weight(context, i), *kernel_[i], width);
      float* y = context.output(i, {rows, w.columns}).as<float>();
      if (rows && w.columns) products.push_back({w, y});
    }
    multiply(std::move(products), x.as<float>(), width, rows, arena_, stream_of(context));
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
    w.gated_product(gate.as<float>(), up.as<float>(), rows, y.as<float>(), arena_, stream_of(context));
  }

 private:
  const ProductKernel& kernel_;
  Arena arena_;
};

}  // namespace

void Weight::gated_product(const float* gate, const float* up, int64_t rows, float* y, const Arena& arena,
                           cudaStream_t stream) const {
  if (!rows || !columns) return;
  if (kernel.few && kernel.layout == Layout::int8 && FewTasks::fit(width, rows, true)) {
    FewTasks tasks(gate, up, width, rows);
    tasks.add(kernel, data, columns, row_bytes, y);
    return kernel.few(tasks, stream);
  }
  const Arena::Memory memory = arena.take<char>(rows * prepared_bytes(kernel.layout, width));
  prepare_gated(kernel.layout, gate, up, rows, width, memory.as<char>(), stream);
  multiply_prepared({{*this, y}}, memory.as<float>(), memory.as<char>(), width, rows, stream);
}

void multiply(std::vector<Product> products, const float* x, int64_t width, int64_t rows, const Arena& arena,
              cudaStream_t stream) {
  if (FewTasks::fit(width, rows, false)) take_few(products, x, width, rows, stream);
  const bool int8 = std::any_of(products.begin(), products.end(),
                                [](const Product& product) { return product.weight.kernel.layout == Layout::int8; });
  const Arena::Memory memory = arena.take<char>(int8 ? rows * prepared_bytes(Layout::int8, width) : 0);
  if (int8) prepare(x, rows, width, memory.as<char>(), stream);
  multiply_prepared(std::move(products), x, memory.as<char>(), width, rows, stream);
}

const OrtCustomOp* block_matmul() {
  static const Op<Checked<BlockMatMul>> op;
  return &op;
}

const OrtCustomOp* gated_block_matmul() {
  static const Op<Checked<GatedBlockMatMul>> op;
  return &op;
}

}  // namespace trigraph::TRIGRAPH_ISA
