// BlockMatMul and GatedBlockMatMul on a device.
#include <vector>

#include "../blocks/cuda/many_products.h"
#include "../cuda/last_block.cuh"
#include "signature.h"
#include "weights.h"

namespace trigraph::TRIGRAPH_ISA {
namespace {

// Products of few rows, weights that share a launch together; those whose types take none stay.
void take_few(std::vector<Product>& left, const ActivationRows& rows, cudaStream_t stream) {
  std::vector<Product> others;
  while (!left.empty()) {
    const auto few = left.front().weight.kernel.few;
    FewTasks tasks(rows.x, rows.width, rows.count);
    tasks.prepared = rows.prepared;
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

constexpr int64_t kOwnRows = 2;   // that each block of few rows prepares for itself: for more, one for all is faster
constexpr int64_t kManyRows = 3;  // from which on tiles are faster than few rows at a time

// Products of prepared rows with weights that share a launch; those whose types take none stay.
void take_many(std::vector<Product>& left, const ActivationRows& rows, cudaStream_t stream) {
  std::vector<Product> others;
  while (!left.empty()) {
    const auto many = left.front().weight.kernel.many;
    ManyTasks tasks(rows.x, rows.prepared, rows.width);
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
    if (many) many(tasks, {}, 1, rows.count, stream);
    left.swap(rest);
  }
  left.swap(others);
}

void multiply_prepared(std::vector<Product> products, const ActivationRows& rows, cudaStream_t stream) {
  if (rows.count >= kManyRows) take_many(products, rows, stream);
  for (const Product& product : products) {
    const bool plain = product.weight.kernel.layout == Layout::float32;
    const void* x = plain ? static_cast<const void*>(rows.x) : rows.prepared;
    product.weight.product(x, rows.count, product.y, stream);
  }
}

// BlockMatMul or PreparedBlockMatMul.
template <class Signature>
class Products : public Signature {
 public:
  explicit Products(const KernelInfo& info) : Signature(info), arena_(info), counters_(kRowCounters) {
    for (int i = 0; i < this->count; ++i)
      kernel_[i] = &product_kernel(this->type[i], info.text("activations", "float32"));
  }

  void compute(const Context& context) const {
    constexpr bool kPrepared = std::is_same_v<Signature, PreparedBlockMatMulSignature>;
    const Tensor x = context.input(0);
    x.expect({-1, -1});
    ActivationRows rows{x.as<float>(), nullptr, x.dims[1], x.dims[0]};
    if (kPrepared) {
      const Tensor prepared = context.input(1);
      prepared.expect({rows.count, prepared_bytes(Layout::int8, rows.width)});
      rows.prepared = prepared.as<char>();
    }
    context.expect_outputs(this->count);
    std::vector<Product> products;
    for (int i = 0; i < this->count; ++i) {
      const Weight w(this->weight(context, i, kPrepared ? 2 : 1), *kernel_[i], rows.width);
      float* y = context.output(i, {rows.count, w.columns}).template as<float>();
      if (rows.count && w.columns) products.push_back({w, y});
    }
    multiply(std::move(products), rows, arena_, counters_.at(0), stream_of(context));
  }

 private:
  const ProductKernel* kernel_[Signature::kMost];
  Arena arena_;
  Counters counters_;
};

class GatedBlockMatMul : public GatedBlockMatMulSignature {
 public:
  explicit GatedBlockMatMul(const KernelInfo& info)
      : GatedBlockMatMulSignature(info),
        kernel_(product_kernel(info.text("type"), info.text("activations", "float32"))),
        arena_(info) {}

  void compute(const Context& context) const {
    const Tensor gate = context.input(0), up = context.input(1), weight = context.input(2);
    check(gate, up, weight);
    const int64_t rows = gate.dims[0], width = gate.dims[1];
    const Weight w(weight, kernel_, width);
    const Tensor y = context.output(0, {rows, w.columns});
    w.gated_product(gate.as<float>(), up.as<float>(), rows, y.as<float>(), arena_, stream_of(context), scale);
  }

 private:
  const ProductKernel& kernel_;
  Arena arena_;
};

}  // namespace

namespace {

bool some_plain(const std::vector<Product>& products) {
  return std::any_of(products.begin(), products.end(),
                     [](const Product& product) { return product.weight.kernel.layout == Layout::float32; });
}

// The forms of int8 rows that they meet.
unsigned forms_of(const std::vector<Product>& products) {
  unsigned forms = kNoForm;
  for (const Product& product : products) forms |= product.weight.kernel.form;
  return forms;
}

// Whether each block meets all rows.
bool meets_few(const std::vector<Product>& products, const ActivationRows& rows) {
  return FewTasks::fit(rows.width, rows.count) && (rows.count <= kFirstRows || !some_plain(products));
}

}  // namespace

void Weight::gated_product(const float* gate, const float* up, int64_t rows, float* y, const Arena& arena,
                           cudaStream_t stream, float scale) const {
  if (!rows || !columns) return;
  const Arena::Memory memory = arena.take<char>(rows * prepared_bytes(kernel.layout, width));
  if (up)
    prepare_gated(gate, up, rows, width, kernel.form, memory.as<char>(), stream);
  else
    prepare_gate(gate, scale, rows, width, kernel.form, memory.as<char>(), stream);
  std::vector<Product> products{{*this, y}};
  const ActivationRows made{memory.as<float>(), memory.as<char>(), width, rows};
  if (meets_few(products, made)) take_few(products, made, stream);
  multiply_prepared(std::move(products), made, stream);
}

std::optional<FewTasks> one_launch(const std::vector<Product>& products, const ActivationRows& rows) {
  if (products.empty() || !meets_few(products, rows)) return std::nullopt;
  FewTasks tasks(rows.x, rows.width, rows.count);
  for (const Product& product : products) {
    const Weight& w = product.weight;
    if (w.kernel.few != few_common) return std::nullopt;
    tasks.add(w.kernel, w.data, w.columns, w.row_bytes, product.y);
  }
  return tasks;
}

void multiply(std::vector<Product> products, ActivationRows rows, const Arena& arena, unsigned* counters,
              cudaStream_t stream) {
  const bool prepares = !rows.prepared && forms_of(products);
  const Arena::Memory memory = arena.take<char>(prepares ? rows.count * prepared_bytes(Layout::int8, rows.width) : 0);
  const auto prepare_once = [&] {
    const unsigned forms = forms_of(products);
    if (rows.prepared || !forms) return;
    prepare(rows.x, rows.count, rows.width, forms, memory.as<char>(), stream);
    rows.prepared = memory.as<char>();
  };
  if (meets_few(products, rows)) {
    if (rows.count > kOwnRows) {
      const auto tasks = one_launch(products, rows);
      if (prepares && tasks) return few_quantised(*tasks, memory.as<char>(), counters, stream);
      prepare_once();
    }
    take_few(products, rows, stream);
  }
  prepare_once();
  multiply_prepared(std::move(products), rows, stream);
}

const OrtCustomOp* block_matmul() {
  static const Op<Checked<Products<BlockMatMulSignature>>> op;
  return &op;
}

const OrtCustomOp* prepared_block_matmul() {
  static const Op<Checked<Products<PreparedBlockMatMulSignature>>> op;
  return &op;
}

const OrtCustomOp* gated_block_matmul() {
  static const Op<Checked<GatedBlockMatMul>> op;
  return &op;
}

}  // namespace trigraph::TRIGRAPH_ISA
