// JoinColumns: rows of several tensors side by side, which may be the same one. A Concat that needs no kernel of ONNX
// Runtime's, so that all of a step is ours.
#include <iterator>

#include "../cuda/kernel.h"

namespace trigraph::TRIGRAPH_ISA {
namespace {

constexpr int kThreads = 256;
constexpr int kMostParts = 8;

struct Parts {
  const float* x[kMostParts];
  int width[kMostParts];
  int count, all;  // all: columns of a row of the result
};

// grid: [parts of a row, rows].
__global__ void __launch_bounds__(kThreads) join_columns(const __grid_constant__ Parts parts, float* y) {
  const int64_t row = blockIdx.y;
  const int at = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (at >= parts.all) return;
  int part = 0, column = at;
  for (; column >= parts.width[part]; ++part) column -= parts.width[part];
  y[row * parts.all + at] = parts.x[part][row * parts.width[part] + column];
}

struct JoinColumns {
  static constexpr const char* kName = "JoinColumns";
  static constexpr Argument kInputs[] = {
      {"x", DType::f32},         {"x_1", DType::f32, true}, {"x_2", DType::f32, true}, {"x_3", DType::f32, true},
      {"x_4", DType::f32, true}, {"x_5", DType::f32, true}, {"x_6", DType::f32, true}, {"x_7", DType::f32, true}};
  static constexpr Argument kOutputs[] = {{"y", DType::f32}};
  static_assert(std::size(kInputs) == kMostParts);

  explicit JoinColumns(const KernelInfo&) {}

  void compute(const Context& context) const {
    Parts parts{};
    int64_t rows = -1;
    for (int i = 0; i < kMostParts; ++i) {
      const Tensor x = context.input(i);
      if (!x.rank) break;
      x.expect({rows, -1});
      rows = x.dims[0];
      parts.x[i] = x.as<float>(), parts.width[i] = static_cast<int>(x.dims[1]);
      parts.all += parts.width[i], ++parts.count;
    }
    const Tensor y = context.output(0, {rows, parts.all});
    constexpr int64_t kMostRows = 65535;  // of a grid
    for (int64_t first = 0; first < rows; first += kMostRows) {
      const dim3 grid(blocks_of(parts.all, kThreads), static_cast<unsigned>(std::min(kMostRows, rows - first)));
      launch(join_columns, grid, kThreads, 0, stream_of(context), parts, y.as<float>() + first * parts.all);
      for (int i = 0; i < parts.count; ++i) parts.x[i] += kMostRows * parts.width[i];
    }
  }
};

}  // namespace

const OrtCustomOp* join_columns() {
  static const Op<Checked<JoinColumns>> op;
  return &op;
}

}  // namespace trigraph::TRIGRAPH_ISA
