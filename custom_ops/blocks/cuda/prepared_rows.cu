#include "activations.cuh"
#include "products.h"

namespace trigraph::TRIGRAPH_ISA {
namespace {

// A warp for each super-block, a block of the second dimension for each row.
template <class Source>
__global__ void prepare_int8(Source x, int64_t width, char* prepared, int64_t form_bytes, unsigned forms) {
  allow_next();
  await_previous();
  const int64_t row = blockIdx.y, super = int64_t{blockIdx.x} * (kThreads / kWarp) + threadIdx.x / kWarp;
  if (super * kSuper >= width) return;
  float value[8];
  load_eight(x.row(row * width), width, super, value);
  char* first = prepared + 2 * row * form_bytes;
  if (forms & kBySupers) quantise(value, super, false, first);
  if (forms & kByRuns) quantise(value, super, true, first + form_bytes);
}

template <class Source>
__global__ void prepare_float(Source x, int64_t width, float* prepared) {
  const int64_t column = int64_t{blockIdx.x} * kThreads + threadIdx.x, at = blockIdx.y * width + column;
  if (column < width) prepared[at] = x(at);
}

template <class Source>
void prepare_rows(Source x, int64_t rows, int64_t width, unsigned forms, void* prepared, cudaStream_t stream) {
  constexpr int64_t kMost = 65535;  // rows of one launch: the second dimension of a grid
  const int64_t bytes = prepared_bytes(forms ? Layout::int8 : Layout::float32, width);
  for (int64_t first = 0; first < rows; first += kMost) {
    const auto count = static_cast<unsigned>(std::min(kMost, rows - first));
    char* out = static_cast<char*>(prepared) + first * bytes;
    const Source from = x.row(first * width);
    if (forms)
      launch_step(rows, prepare_int8<Source>, dim3(blocks_of((width + kSuper - 1) / kSuper, kThreads / kWarp), count),
                  kThreads, 0, stream, from, width, out, Int8Row::bytes(width), forms);
    else
      launch(prepare_float<Source>, dim3(blocks_of(width, kThreads), count), kThreads, 0, stream, from, width,
             reinterpret_cast<float*>(out));
  }
}

}  // namespace

int64_t prepared_bytes(Layout layout, int64_t width) {
  if (layout == Layout::float32) return width * 4;
  return 2 * Int8Row::bytes(width);
}

void prepare(const float* x, int64_t rows, int64_t width, unsigned forms, void* prepared, cudaStream_t stream) {
  prepare_rows(Plain{x}, rows, width, forms, prepared, stream);
}

void prepare_gated(const float* gate, const float* up, int64_t rows, int64_t width, unsigned forms, void* prepared,
                   cudaStream_t stream) {
  prepare_rows(Gated{gate, up}, rows, width, forms, prepared, stream);
}

void prepare_gate(const float* gate, float scale, int64_t rows, int64_t width, unsigned forms, void* prepared,
                  cudaStream_t stream) {
  prepare_rows(ScaledGate{gate, scale}, rows, width, forms, prepared, stream);
}

}  // namespace trigraph::TRIGRAPH_ISA
