// PositionRows on a device: a block for each row.
#include "../cuda/kernel.h"
#include "signature.h"

namespace trigraph::TRIGRAPH_ISA {
namespace {

constexpr int kThreads = 256, kRows = PositionRowsSignature::kRows;

struct Table {
  const float* values;  // [count, width]
  int64_t count, width;
};

// grid: [rows].
__global__ void __launch_bounds__(kThreads)
    add_rows(const float* x, const float* bias, Table table, const int32_t* rows, const float* weights,
             ErrorRecord* record, float* y) {
  const int64_t row = blockIdx.x, count = gridDim.x;
  const float* added[kRows];
  float weight[kRows];
#pragma unroll
  for (int k = 0; k < kRows; ++k) {
    const int32_t id = rows[k * count + row];
    if (id < 0 || id >= table.count) {
      if (threadIdx.x == 0) report(record, Operator::position_rows, Reason::table_row, k, row, id, table.count);
      return;
    }
    added[k] = table.values + id * table.width;
    weight[k] = weights[k * count + row];
  }
  for (int64_t i = threadIdx.x; i < table.width; i += kThreads) {
    float sum = x[row * table.width + i] + bias[i];
#pragma unroll
    for (int k = 0; k < kRows; ++k) sum = fmaf(weight[k], added[k][i], sum);
    y[row * table.width + i] = sum;
  }
}

struct PositionRows : PositionRowsSignature {
  explicit PositionRows(const KernelInfo&) {}

  void compute(const Context& context) const {
    const Tensor x = context.input(0), bias = context.input(1), table = context.input(2), rows = context.input(3),
                 weights = context.input(4);
    check(x, bias, table, rows, weights);
    const Tensor y = context.output_like(0, x);
    launch(add_rows, static_cast<unsigned>(x.dims[0]), kThreads, 0, stream_of(context), x.as<float>(), bias.as<float>(),
           Table{table.as<float>(), table.dims[0], table.dims[1]}, rows.as<int32_t>(), weights.as<float>(),
           error_record(), y.as<float>());
  }
};

}  // namespace

const OrtCustomOp* position_rows() {
  static const Op<Checked<PositionRows>> op;
  return &op;
}

}  // namespace trigraph::TRIGRAPH_ISA
