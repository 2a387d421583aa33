// BlockMatMul: y = x W^T for weight matrices in ggml blocks, as the GGUF file holds them. GatedBlockMatMul: the same of
// silu(gate) * up.
#include <algorithm>

#include "../blocks/cpu/row_kernel.h"
#include "../simd.h"
#include "signature.h"

namespace trigraph::TRIGRAPH_ISA {
namespace {

struct Prepared;
struct Pointers;
struct Gated;

// One weight matrix of a node, and where its products go.
struct Product {
  static constexpr int64_t kGroup = 64;  // activation rows of a call

  const RowKernel* kernel = nullptr;
  const uint8_t* weight = nullptr;
  int64_t row_bytes = 0, columns = 0;
  float* y = nullptr;
  int64_t tile = 0, tiles = 0;    // weight rows in a task
  int64_t block = 0, blocks = 0;  // activation rows in a task
  void** x = nullptr;             // prepared rows

  Product() = default;
  Product(const Tensor& tensor, const RowKernel& row_kernel, int64_t width, float* out)
      : kernel(&row_kernel),
        weight(tensor.as<const uint8_t>()),
        row_bytes(check_weight(tensor, row_kernel, width)),
        columns(tensor.dims[0]),
        y(out) {}

  // Large tiles hide what memory takes for their first rows, small ones balance over many threads. Each is whole cache
  // lines of a row of y, so that threads never write into one line, and for many rows whole panels. Few rows leave the
  // second cache to the weights. A task of less than kWorth bytes and rows is done before another thread has taken it.
  // Many float32 rows, which are four times as long, meet all weights a block at a time, while they are in the third
  // cache.
  void divide(int64_t rows) {
    constexpr int64_t kBytes = 160 << 10, kWorth = 32 << 10, kFewRows = 16, kFewest = 16;
    constexpr int64_t kLine = 64 / sizeof(float), kPanel = 2 * kLine;
    const int64_t unit = rows <= kFewRows ? kLine : kPanel;
    const bool long_rows = kernel->unpack && rows > kGroup;
    block = long_rows ? 4 * kGroup : std::max(rows, int64_t{1});
    blocks = ceil_div(rows, block);
    const int64_t least = rows <= kFewRows || long_rows ? 4 * kLine : unit;
    const int64_t fitting = std::max(least, kBytes / std::max(row_bytes, int64_t{1}));
    const int64_t fewest = std::clamp(rows * columns * row_bytes / kWorth, int64_t{1}, kFewest);
    tile = std::max(unit, std::min(fitting, columns / fewest + unit - 1) / unit * unit);
    tiles = ceil_div(columns, tile);
  }
  int64_t tasks() const { return tiles * blocks; }

  bool same_rows(const Product& other) const { return kernel->prepare == other.kernel->prepare; }

  void run(int64_t task, int64_t rows, int64_t width) const {
    const int64_t first = task % tiles * tile, count = std::min(tile, columns - first);
    const int64_t start = task / tiles * block, end = std::min(rows, start + block);
    float* out[kGroup];
    for (int64_t i = start; i < end; i += kGroup) {
      const int64_t group = std::min(kGroup, end - i);
      for (int64_t k = 0; k < group; ++k) out[k] = y + (i + k) * columns + first;
      kernel->product(weight + first * row_bytes, count, row_bytes, width, x + i, group, out);
    }
  }
};

// All products of `rows` rows; row(i) is the i-th one. A row is prepared once for all weights that read it alike.
template <class Row>
void multiply(const Context& context, Product* product, int count, int64_t rows, int64_t width, Row&& row) {
  constexpr int64_t kPrepareAlone = 8192;  // elements; fewer cost less than waking a thread
  Product* kinds[BlockMatMulSignature::kMost];
  int kind_count = 0;
  int64_t tasks = 0, bytes = 0;
  for (int i = 0; i < count; ++i) {
    product[i].divide(rows);
    tasks += product[i].tasks();
    if (std::any_of(kinds, kinds + kind_count, [&](Product* kind) { return kind->same_rows(product[i]); })) continue;
    kinds[kind_count++] = product + i;
    bytes += product[i].kernel->prepared_bytes(width);
  }
  if (!tasks) return;

  char* prepared = static_cast<char*>(scratch<Prepared>(static_cast<size_t>(rows * bytes)));
  auto** pointers = static_cast<void**>(scratch<Pointers>(static_cast<size_t>(rows * kind_count) * sizeof(void*)));
  for (int k = 0; k < kind_count; ++k, pointers += rows) {
    const int64_t each = kinds[k]->kernel->prepared_bytes(width);
    for (int64_t i = 0; i < rows; ++i, prepared += each) pointers[i] = prepared;
    for (int i = 0; i < count; ++i)
      if (product[i].same_rows(*kinds[k])) product[i].x = pointers;
  }
  auto prepare = [&](int64_t i) {
    const float* values = row(i);
    for (int k = 0; k < kind_count; ++k) kinds[k]->kernel->prepare(values, width, kinds[k]->x[i]);
  };
  if (rows > 1 && rows * width >= kPrepareAlone)
    context.parallel_for(rows, prepare);
  else
    for (int64_t i = 0; i < rows; ++i) prepare(i);

  context.parallel_for(tasks, [&](int64_t task) {
    const Product* p = product;
    for (; task >= p->tasks(); ++p) task -= p->tasks();
    p->run(task, rows, width);
  });
}

struct BlockMatMul : BlockMatMulSignature {
  explicit BlockMatMul(const KernelInfo& info) : BlockMatMulSignature(info) {
    for (int i = 0; i < count; ++i) kernel[i] = &row_kernel(type[i], info.text("activations", "float32"));
  }

  void compute(const Context& context) const {
    const Tensor x = context.input(0);
    x.expect({-1, -1});
    const int64_t rows = x.dims[0], width = x.dims[1];
    context.expect_outputs(count);
    Product product[kMost];
    for (int i = 0; i < count; ++i) {
      const Tensor w = weight(context, i);
      product[i] = Product(w, *kernel[i], width, context.output(i, {rows, w.dims[0]}).as<float>());
    }
    multiply(context, product, count, rows, width, [&](int64_t i) { return x.as<const float>() + i * width; });
  }

 private:
  const RowKernel* kernel[kMost];
};

struct GatedBlockMatMul : GatedBlockMatMulSignature {
  explicit GatedBlockMatMul(const KernelInfo& info)
      : GatedBlockMatMulSignature(info), kernel(row_kernel(info.text("type"), info.text("activations", "float32"))) {}

  void compute(const Context& context) const {
    const Tensor gate = context.input(0), up = context.input(1), weight = context.input(2);
    check(gate, up, weight);
    const int64_t rows = gate.dims[0], width = gate.dims[1];
    Product product(weight, kernel, width, context.output(0, {rows, weight.dims[0]}).as<float>());
    multiply(context, &product, 1, rows, width, [&](int64_t i) {
      const float *g = gate.as<float>() + i * width, *u = up.rank ? up.as<float>() + i * width : nullptr;
      auto* inner = static_cast<float*>(scratch<Gated>(static_cast<size_t>(width) * sizeof(float)));
      for (int64_t j = 0; j < width; j += VL) {
        const vf x = load_first(g + j, width - j);
        store_first(inner + j, u ? mul(silu(x), load_first(u + j, width - j)) : silu(mul(splat(scale), x)), width - j);
      }
      return inner;
    });
  }

 private:
  const RowKernel& kernel;
};

}  // namespace

const OrtCustomOp* block_matmul() {
  static const Op<BlockMatMul> op;
  return &op;
}

const OrtCustomOp* gated_block_matmul() {
  static const Op<GatedBlockMatMul> op;
  return &op;
}

}  // namespace trigraph::TRIGRAPH_ISA
