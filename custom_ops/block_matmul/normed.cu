// NormedBlockMatMul: RMSNorm or JoinedRMSNorm, the BlockMatMul that takes its rows, and the Router that takes the
// logits among its products, if there is one; the same bits.
#include "../blocks/normed_products.h"
#include "../cuda/last_block.cuh"
#include "../rms_norm/signature.h"
#include "../router/signature.h"
#include "device.h"
#include "signature.h"

namespace trigraph::TRIGRAPH_ISA {
namespace {

class NormedBlockMatMul {
 public:
  static constexpr const char* kName = "NormedBlockMatMul";
  static constexpr Argument kInputs[] = {{"x", DType::f32},
                                         {"norm", DType::f32},
                                         {"residual", DType::f32, true},
                                         {"other", DType::f32, true},
                                         {"other_norm", DType::f32, true},
                                         {"weight", DType::any},
                                         {"weight_1", DType::any, true},
                                         {"weight_2", DType::any, true},
                                         {"weight_3", DType::any, true}};
  static constexpr Argument kOutputs[] = {
      {"normed", DType::f32},    {"sum", DType::f32, true}, {"y", DType::f32},         {"y_1", DType::f32, true},
      {"y_2", DType::f32, true}, {"y_3", DType::f32, true}, {"ids", DType::i64, true}, {"weights", DType::f32, true}};

  // `router`: the number of the product that is the logits, or -1.
  explicit NormedBlockMatMul(const KernelInfo& info)
      : products_(info),
        eps_(info.real("eps")),
        router_(static_cast<int>(info.integer("router"))),
        k_(info.integer("k")),
        normalize_(info.integer("normalize") != 0),
        arena_(info),
        counter_(1) {
    for (int i = 0; i < products_.count; ++i)
      kernel_[i] = &product_kernel(products_.type[i], info.text("activations", "float32"));
  }

  void compute(const Context& context) const {
    const Norm norm = norm_of(context);
    const int64_t rows = context.input(0).dims[0];
    std::vector<Product> products;
    bool few = normed_fit(norm.width, norm.other_width, rows, true);
    for (int i = 0; i < products_.count; ++i) {
      const Tensor tensor = context.input(kWeight + i);
      if (tensor.rank != 2) fail("input %s has %d dimensions, expected 2", tensor.name, tensor.rank);
      const Weight w(tensor, *kernel_[i], norm.both());
      products.push_back({w, context.output(kProduct + i, {rows, w.columns}).as<float>()});
      few = few && w.columns && w.kernel.few == few_common;
    }
    Routing routing{};
    if (router_ >= 0)
      routing = {products.at(router_).y,
                 static_cast<int>(products[router_].weight.columns),
                 static_cast<int>(k_),
                 normalize_,
                 context.output(kProduct + BlockMatMulSignature::kMost, {rows, k_}).as<int64_t>(),
                 context.output(kProduct + BlockMatMulSignature::kMost + 1, {rows, k_}).as<float>()};
    const cudaStream_t stream = stream_of(context);
    if (few) return together(products, norm, rows, routing, stream);
    normalize(norm, rows, stream);
    if (rows) multiply(products, norm.y, norm.both(), rows, arena_, stream);
    if (router_ >= 0) route(routing, rows, stream);
  }

 private:
  static constexpr int kWeight = 5, kProduct = 2;  // the first of them

  Norm norm_of(const Context& context) const {
    const Tensor x = context.input(0), weight = context.input(1), residual = context.input(2);
    const Tensor other = context.input(3), other_weight = context.input(4);
    RMSNormSignature::check(x, weight, residual);
    if (other.rank) JoinedRMSNormSignature::check(x, weight, other, other_weight);
    const int64_t more = other.rank ? other.dims[1] : 0;
    const Tensor y = context.output(0, {x.dims[0], x.dims[1] + more});
    float* sum = residual.rank ? context.output_like(1, x).as<float>() : nullptr;
    return {x.as<float>(),
            weight.as<float>(),
            residual.as<float>(),
            x.dims[1],
            other.as<float>(),
            other_weight.as<float>(),
            more,
            eps_,
            y.as<float>(),
            sum};
  }

  void together(const std::vector<Product>& products, const Norm& norm, int64_t rows, const Routing& routing,
                cudaStream_t stream) const {
    FewTasks tasks(nullptr, nullptr, norm.both(), rows);
    for (const Product& product : products) {
      const Weight& w = product.weight;
      tasks.add(w.kernel, w.data, w.columns, w.row_bytes, product.y);
    }
    normed_products(tasks, norm, router_, routing, counter_.at(0), stream);
  }

  BlockMatMulSignature products_;
  const ProductKernel* kernel_[BlockMatMulSignature::kMost];
  float eps_;
  int router_;
  int64_t k_;
  bool normalize_;
  Arena arena_;
  Counters counter_;
};

}  // namespace

const OrtCustomOp* normed_block_matmul() {
  static const Op<Checked<NormedBlockMatMul>> op;
  return &op;
}

}  // namespace trigraph::TRIGRAPH_ISA
