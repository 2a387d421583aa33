// RMSNorm and JoinedRMSNorm on a device, and PreparedRMSNorm, which is either and makes int8 rows too: a block for each
// row.
#include "../cuda/kernel.h"
#include "norm_row.cuh"
#include "signature.h"

namespace trigraph::TRIGRAPH_ISA {
namespace {

constexpr int kNormThreads = 640;  // eight of 5,120 elements each: no warp goes through its code twice

// grid: [rows]. A row too wide for shared memory is staged where its norm goes.
__global__ void __launch_bounds__(kNormThreads) normalize_rows(const __grid_constant__ Norm norm) {
  __shared__ __align__(16) float shared[kStaged];
  __shared__ float factor[2];
  allow_next();
  const int64_t row = blockIdx.x;
  const int width = static_cast<int>(norm.width), both = static_cast<int>(norm.both());
  for (int i = threadIdx.x * kSector; i < both; i += kNormThreads * kSector)
    prefetch(i < width ? norm.weight + i : norm.other_weight + i - width);
  await_previous();
  norm_row<kNormThreads>(norm, row, both <= kStaged ? shared : norm.y + row * both, factor);
}

struct RMSNorm : RMSNormSignature {
  using RMSNormSignature::RMSNormSignature;

  void compute(const Context& context) const {
    const Tensor x = context.input(0), weight = context.input(1), residual = context.input(2);
    check(x, weight, residual);
    context.expect_outputs(residual.rank ? 2 : 1);
    const Tensor y = context.output_like(0, x);
    float* sum = residual.rank ? context.optional_output(1, {x.dims[0], x.dims[1]}).as<float>() : nullptr;
    normalize({x.as<float>(), weight.as<float>(), residual.as<float>(), x.dims[1], nullptr, nullptr, 0, eps,
               y.as<float>(), sum},
              x.dims[0], stream_of(context));
  }
};

struct JoinedRMSNorm : JoinedRMSNormSignature {
  using JoinedRMSNormSignature::JoinedRMSNormSignature;

  void compute(const Context& context) const {
    const Tensor x = context.input(0), weight = context.input(1), other = context.input(2);
    const Tensor other_weight = context.input(3);
    check(x, weight, other, other_weight);
    const Tensor y = context.output(0, {x.dims[0], x.dims[1] + other.dims[1]});
    normalize({x.as<float>(), weight.as<float>(), nullptr, x.dims[1], other.as<float>(), other_weight.as<float>(),
               other.dims[1], eps, y.as<float>(), nullptr},
              x.dims[0], stream_of(context));
  }
};

struct PreparedRMSNorm {
  static constexpr const char* kName = "PreparedRMSNorm";
  static constexpr Argument kInputs[] = {{"x", DType::f32},
                                         {"weight", DType::f32},
                                         {"residual", DType::f32, true},
                                         {"other", DType::f32, true},
                                         {"other_weight", DType::f32, true}};
  static constexpr Argument kOutputs[] = {{"y", DType::f32}, {"sum", DType::f32, true}, {"prepared", DType::u8, true}};
  float eps;

  explicit PreparedRMSNorm(const KernelInfo& info) : eps(info.real("eps")) {}

  void compute(const Context& context) const {
    normalize(prepared_norm(context, eps), context.input(0).dims[0], stream_of(context));
  }
};

}  // namespace

Norm prepared_norm(const Context& context, float eps) {
  const Tensor x = context.input(0), weight = context.input(1), residual = context.input(2);
  const Tensor other = context.input(3), other_weight = context.input(4);
  RMSNormSignature::check(x, weight, residual);
  if (other.rank) JoinedRMSNormSignature::check(x, weight, other, other_weight);
  const int64_t rows = x.dims[0], more = other.rank ? other.dims[1] : 0, both = x.dims[1] + more;
  const Tensor y = context.optional_output(0, {rows, both});
  float* sum = residual.rank ? context.optional_output(1, {rows, x.dims[1]}).as<float>() : nullptr;
  const int64_t bytes = prepared_bytes(Layout::int8, both);
  return {x.as<float>(),
          weight.as<float>(),
          residual.as<float>(),
          x.dims[1],
          other.as<float>(),
          other_weight.as<float>(),
          more,
          eps,
          y.as<float>(),
          sum,
          context.optional_output(2, {rows, bytes}).as<char>(),
          bytes};
}

void normalize(const Norm& norm, int64_t rows, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(rows);
  if (!norm.y && norm.both() > kStaged) fail("output y has no name");
  launch_step(rows, normalize_rows, blocks, kNormThreads, 0, stream, norm);
}

const OrtCustomOp* rms_norm() {
  static const Op<Checked<RMSNorm>> op;
  return &op;
}

const OrtCustomOp* joined_rms_norm() {
  static const Op<Checked<JoinedRMSNorm>> op;
  return &op;
}

const OrtCustomOp* prepared_rms_norm() {
  static const Op<Checked<PreparedRMSNorm>> op;
  return &op;
}

}  // namespace trigraph::TRIGRAPH_ISA
