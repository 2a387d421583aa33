// RMSNorm and JoinedRMSNorm on a device, and PreparedRMSNorm, which is either and makes int8 rows too: a block for each
// row.
#include "../blocks/activations.cuh"
#include "../cuda/kernel.h"
#include "device.h"
#include "signature.h"

namespace trigraph::TRIGRAPH_ISA {
namespace {

constexpr int kNormThreads = 512;
constexpr int kSector = 8;     // floats that one prefetch asks for
constexpr int kStaged = 8192;  // elements of a row in shared memory

// dot(x, x, n), which waits for several elements together.
__device__ __forceinline__ float squares(const float* x, int n) {
  constexpr int kTogether = 16;
  float sum = 0;
  int i = threadIdx.x % kLanes;
  for (; i + (kTogether - 1) * kLanes < n; i += kTogether * kLanes) {
    float value[kTogether];
#pragma unroll
    for (int k = 0; k < kTogether; ++k) value[k] = x[i + k * kLanes];
#pragma unroll
    for (int k = 0; k < kTogether; ++k) sum = fmaf(value[k], value[k], sum);
  }
  for (; i < n; i += kLanes) sum = fmaf(x[i], x[i], sum);
  return lane_sum(sum, kLanes);
}

// The elements of one of both rows to `staged`, with the residual if there is one.
__device__ __forceinline__ void stage(const float* x, const float* residual, float* sum, int width, float* staged) {
  constexpr int kTogether = 4;  // that a thread waits for together
  for (int first = threadIdx.x; first < width; first += kTogether * kNormThreads) {
    float value[kTogether], more[kTogether];
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const int at = first + i * kNormThreads;
      if (at < width) value[i] = x[at];
      if (at < width && residual) more[i] = residual[at];
    }
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const int at = first + i * kNormThreads;
      if (at >= width) continue;
      if (residual) sum[at] = value[i] += more[i];
      staged[at] = value[i];
    }
  }
}

// The row's super-blocks, by warps: as they are, and as int8. `factor`: of both rows.
__device__ __forceinline__ void finish(const Norm& norm, const float* staged, const float* factor) {
  const int width = static_cast<int>(norm.width), both = static_cast<int>(norm.both());
  float* y = norm.y + blockIdx.x * norm.both();
  char* prepared = norm.prepared + blockIdx.x * norm.prepared_bytes;
  const int supers = (both + kSuper - 1) / kSuper, lane = threadIdx.x % kWarp;
  const bool whole = !norm.other && both % 8 == 0 && reinterpret_cast<uintptr_t>(norm.y) % 16 == 0;
  for (int super = threadIdx.x / kWarp; super < supers; super += kNormThreads / kWarp) {
    const int column = super * kSuper + lane * 8;
    float value[8];
    if (whole && column < both) {
      float weight[8];
      Plain{norm.weight}.eight(column, weight);
      Plain{staged}.eight(column, value);
#pragma unroll
      for (int k = 0; k < 8; ++k) value[k] = value[k] * factor[0] * weight[k];
      reinterpret_cast<float4*>(y + column)[0] = {value[0], value[1], value[2], value[3]};
      reinterpret_cast<float4*>(y + column)[1] = {value[4], value[5], value[6], value[7]};
    } else {
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const int at = column + k, second = at >= width;
        value[k] = 0;
        if (at >= both) continue;
        y[at] = value[k] = staged[at] * factor[second] * (second ? norm.other_weight[at - width] : norm.weight[at]);
      }
    }
    if (norm.prepared) quantise(value, both, super, prepared);
  }
  if (norm.prepared) fill_row(prepared, both, norm.prepared_bytes);
}

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
  float* staged = both <= kStaged ? shared : norm.y + row * both;
  stage(norm.x + row * width, norm.residual ? norm.residual + row * width : nullptr, norm.sum + row * width, width,
        staged);
  if (norm.other) stage(norm.other + row * (both - width), nullptr, nullptr, both - width, staged + width);
  __syncthreads();
  if (threadIdx.x < kWarp) {  // half of it for each row
    const bool second = threadIdx.x >= kLanes && norm.other;
    const int elements = second ? both - width : width;
    const float sum = squares(second ? staged + width : staged, elements);
    if (threadIdx.x % kLanes == 0) factor[threadIdx.x / kLanes] = norm.factor(sum, elements);
  }
  __syncthreads();
  finish(norm, staged, factor);
}

struct RMSNorm : RMSNormSignature {
  using RMSNormSignature::RMSNormSignature;

  void compute(const Context& context) const {
    const Tensor x = context.input(0), weight = context.input(1), residual = context.input(2);
    check(x, weight, residual);
    context.expect_outputs(residual.rank ? 2 : 1);
    const Tensor y = context.output_like(0, x);
    float* sum = residual.rank ? context.output_like(1, x).as<float>() : nullptr;
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
    const Tensor x = context.input(0), weight = context.input(1), residual = context.input(2);
    const Tensor other = context.input(3), other_weight = context.input(4);
    RMSNormSignature::check(x, weight, residual);
    if (other.rank) JoinedRMSNormSignature::check(x, weight, other, other_weight);
    const int64_t rows = x.dims[0], more = other.rank ? other.dims[1] : 0, both = x.dims[1] + more;
    const Tensor y = context.output(0, {rows, both});
    float* sum = residual.rank ? context.output_like(1, x).as<float>() : nullptr;
    const int64_t bytes = prepared_bytes(Layout::int8, both);
    normalize(
        {x.as<float>(), weight.as<float>(), residual.as<float>(), x.dims[1], other.as<float>(),
         other_weight.as<float>(), more, eps, y.as<float>(), sum, context.output(2, {rows, bytes}).as<char>(), bytes},
        rows, stream_of(context));
  }
};

}  // namespace

void normalize(const Norm& norm, int64_t rows, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(rows);
  if (rows <= kEarlyRows) return launch<true>(normalize_rows, blocks, kNormThreads, 0, stream, norm);
  launch(normalize_rows, blocks, kNormThreads, 0, stream, norm);
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
