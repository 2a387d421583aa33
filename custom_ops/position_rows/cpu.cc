// PositionRows: rows plus a bias, plus four weighted rows of a table each.
#include <algorithm>

#include "../simd.h"
#include "signature.h"

namespace trigraph::TRIGRAPH_ISA {
namespace {

constexpr int64_t kElements = 16384;  // fewer cost less than waking a thread

struct PositionRows : PositionRowsSignature {
  explicit PositionRows(const KernelInfo&) {}

  void compute(const Context& context) const {
    const Tensor x = context.input(0), bias = context.input(1), table = context.input(2), rows = context.input(3),
                 weights = context.input(4);
    check(x, bias, table, rows, weights);
    const int64_t count = x.dims[0], width = x.dims[1];
    const auto* row = rows.as<int32_t>();
    for (int64_t i = 0; i < kRows * count; ++i)
      if (row[i] < 0 || row[i] >= table.dims[0])
        fail("input rows[%lld][%lld] is %d, outside the %lld rows of the table", static_cast<long long>(i / count),
             static_cast<long long>(i % count), row[i], static_cast<long long>(table.dims[0]));
    const Tensor y = context.output_like(0, x);
    const int64_t together = kElements / std::max<int64_t>(width, 1) + 1;
    context.parallel_for((count + together - 1) / together, [&](int64_t task) {
      for (int64_t i = task * together; i < count && i < (task + 1) * together; ++i) {
        const float *added[kRows], *weight = weights.as<float>() + i;
        for (int k = 0; k < kRows; ++k) added[k] = table.as<float>() + row[k * count + i] * width;
        for (int64_t j = 0; j < width; j += VL) {
          const int64_t left = width - j;
          vf sum = add(load_first(x.as<float>() + i * width + j, left), load_first(bias.as<float>() + j, left));
          for (int k = 0; k < kRows; ++k) sum = fmadd(splat(weight[k * count]), load_first(added[k] + j, left), sum);
          store_first(y.as<float>() + i * width + j, sum, left);
        }
      }
    });
  }
};

}  // namespace

const OrtCustomOp* position_rows() {
  static const Op<PositionRows> op;
  return &op;
}

}  // namespace trigraph::TRIGRAPH_ISA
