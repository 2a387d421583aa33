// NormedBlockMatMul: PreparedRMSNorm and PreparedBlockMatMul of its rows, in one launch where rows are few.
#include "../cuda/last_block.cuh"
#include "../rms_norm/norm_rows.h"
#include "signature.h"
#include "weights.h"

namespace trigraph::TRIGRAPH_ISA {
namespace {

class NormedBlockMatMul : public NormedBlockMatMulSignature {
 public:
  explicit NormedBlockMatMul(const KernelInfo& info)
      : NormedBlockMatMulSignature(info), eps_(info.real("eps")), arena_(info), counters_(kRowCounters) {
    for (int i = 0; i < count; ++i) {
      kernel_[i] = &product_kernel(type[i], info.text("activations", "float32"));
      some_plain_ = some_plain_ || kernel_[i]->layout == Layout::float32;
    }
  }

  void compute(const Context& context) const {
    Norm norm = prepared_norm(context, eps_);
    const int64_t count_of_rows = context.input(0).dims[0];
    // What no other node reads is scratch memory: ONNX Runtime would keep an output until the step ends.
    const bool meets_y = some_plain_ || norm.both() > kStaged;
    const Arena::Memory float_rows = arena_.take<float>(!norm.y && meets_y ? count_of_rows * norm.both() : 0);
    const Arena::Memory int8_rows = arena_.take<char>(norm.prepared ? 0 : count_of_rows * norm.prepared_bytes);
    if (!norm.y) norm.y = float_rows.as<float>();
    if (!norm.prepared) norm.prepared = int8_rows.as<char>();
    const ActivationRows rows{norm.y, norm.prepared, norm.both(), count_of_rows};
    std::vector<Product> products;
    for (int i = 0; i < count; ++i) {
      const Weight w(weight(context, i, kFirstWeight), *kernel_[i], rows.width);
      float* y = context.output(kFirstProduct + i, {rows.count, w.columns}).as<float>();
      if (rows.count && w.columns) products.push_back({w, y});
    }
    const cudaStream_t stream = stream_of(context);
    const auto tasks = one_launch(products, rows);
    if (tasks && FewTasks::fit_norm(rows.width)) return few_normed(*tasks, norm, counters_.at(0), stream);
    normalize(norm, rows.count, stream);
    multiply(std::move(products), rows, arena_, counters_.at(0), stream);
  }

 private:
  const ProductKernel* kernel_[kMost];
  bool some_plain_ = false;
  float eps_;
  Arena arena_;
  Counters counters_;
};

}  // namespace

const OrtCustomOp* normed_block_matmul() {
  static const Op<Checked<NormedBlockMatMul>> op;
  return &op;
}

}  // namespace trigraph::TRIGRAPH_ISA
