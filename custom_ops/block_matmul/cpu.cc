// BlockMatMul: y = x @ W^T for a weight matrix in ggml blocks, as the GGUF file holds it.
#include "../blocks/row_kernel.h"

namespace trigraph::TRIGRAPH_ISA {
namespace {

struct Prepared;
struct Rows;

struct BlockMatMul {
  static constexpr const char* kName = "BlockMatMul";
  static constexpr Argument kInputs[] = {{"x", DType::f32}, {"weight", DType::any}};
  static constexpr Argument kOutputs[] = {{"y", DType::f32}};

  explicit BlockMatMul(const KernelInfo& info)
      : kernel(row_kernel(info.text("type"), info.text("activations", "float32"))) {}

  void compute(Context& context) {
    const Tensor x = context.input(0), weight = context.input(1);
    x.expect({-1, -1});
    const int64_t rows = x.dims[0], width = x.dims[1];
    const int64_t row_bytes = check_weight(weight, kernel, width);
    if (weight.rank != 2) fail("input weight has %d dimensions, expected 2", weight.rank);
    const int64_t columns = weight.dims[0];
    const Tensor y = context.output(0, {rows, columns});
    if (!rows || !columns) return;

    const int64_t prepared_bytes = kernel.prepared_bytes(width);
    char* prepared = static_cast<char*>(scratch<Prepared>(static_cast<size_t>(rows * prepared_bytes)));
    auto** pointers = static_cast<void**>(scratch<Rows>(static_cast<size_t>(rows) * sizeof(void*)));
    for (int64_t i = 0; i < rows; ++i) pointers[i] = prepared + i * prepared_bytes;
    auto prepare = [&](int64_t i) { kernel.prepare(x.as<float>() + i * width, width, pointers[i]); };
    if (rows > 1 && rows * width >= kPrepareAlone)
      context.parallel_for(rows, prepare);
    else
      for (int64_t i = 0; i < rows; ++i) prepare(i);

    // Tiles large enough to hide the cost of claiming one, small enough to balance over many threads; whole cache lines
    // of a row of y each, so that threads never write into one line.
    const int64_t line = 64 / sizeof(float), fit = kTileBytes / (row_bytes ? row_bytes : 1) / line * line;
    const int64_t tile = fit < line ? line : fit, tiles = ceil_div(columns, tile);
    context.parallel_for(tiles, [&](int64_t t) {
      const int64_t first = t * tile, count = columns - first < tile ? columns - first : tile;
      float* out[kGroup];
      for (int64_t i = 0; i < rows; i += kGroup) {
        const int64_t group = rows - i < kGroup ? rows - i : kGroup;
        for (int64_t k = 0; k < group; ++k) out[k] = y.as<float>() + (i + k) * columns + first;
        kernel.product(weight.as<uint8_t>() + first * row_bytes, count, row_bytes, width, pointers + i, group, out);
      }
    });
  }

 private:
  static constexpr int64_t kTileBytes = 64 * 1024;
  static constexpr int64_t kPrepareAlone = 8192;  // elements; fewer cost less than waking a thread
  static constexpr int64_t kGroup = 64;
  const RowKernel& kernel;
};

}  // namespace

const OrtCustomOp* block_matmul() {
  static const Op<BlockMatMul> op;
  return &op;
}

}  // namespace trigraph::TRIGRAPH_ISA
