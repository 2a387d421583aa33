// Router: the experts of each row by their logits, and their weights by a softmax.
#include "../softmax.h"
#include "signature.h"

namespace trigraph::TRIGRAPH_ISA {
namespace {

// The k largest values in falling order, the lowest id first among equal ones. Ids are valid whatever the values are.
void largest(const float* x, int64_t n, int64_t k, int64_t* ids, float* values) {
  for (int64_t i = 0; i < n; ++i) {
    if (i >= k && !(x[i] > values[k - 1])) continue;
    int64_t rank = i < k ? i : k - 1;
    for (; rank > 0 && x[i] > values[rank - 1]; --rank) {
      values[rank] = values[rank - 1];
      ids[rank] = ids[rank - 1];
    }
    values[rank] = x[i];
    ids[rank] = i;
  }
}

struct Router : RouterSignature {
  using RouterSignature::RouterSignature;

  void compute(const Context& context) const {
    const Tensor logits = context.input(0);
    check(logits);
    const int64_t rows = logits.dims[0], experts = logits.dims[1];
    auto* ids = context.output(0, {rows, k}).as<int64_t>();
    auto* weights = context.output(1, {rows, k}).as<float>();
    context.parallel_for((rows + kRows - 1) / kRows, [&](int64_t task) {
      for (int64_t i = task * kRows; i < rows && i < (task + 1) * kRows; ++i)
        route(logits.as<float>() + i * experts, experts, ids + i * k, weights + i * k);
    });
  }

 private:
  static constexpr int64_t kRows = 16;  // fewer cost less than waking a thread

  // Softmax of the chosen logits, or of all of them: e^(x - largest) / sum.
  void route(const float* x, int64_t experts, int64_t* ids, float* weights) const {
    largest(x, experts, k, ids, weights);
    const float most = weights[0];
    const float all = normalize ? 0 : exp_sum(x, experts, most);
    for (int64_t j = 0; j < k; j += VL)
      store_first(weights + j, exp(sub(load_first(weights + j, k - j), splat(most))), k - j);
    float chosen = 0;
    for (int64_t j = 0; j < k; ++j) chosen += weights[j];
    for (int64_t j = 0; j < k; ++j) weights[j] /= normalize ? chosen : all;
  }
};

}  // namespace

const OrtCustomOp* router() {
  static const Op<Router> op;
  return &op;
}

}  // namespace trigraph::TRIGRAPH_ISA
