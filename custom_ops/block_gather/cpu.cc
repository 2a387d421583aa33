// BlockGather: rows of a table in ggml blocks as float32: the embedding lookup.
#include "../blocks/cpu/row_kernel.h"
#include "ahead.h"

namespace trigraph::TRIGRAPH_ISA {
namespace {

struct BlockGather {
  static constexpr const char* kName = "BlockGather";
  static constexpr Argument kInputs[] = {{"ids", DType::i64}, {"table", DType::any}};
  static constexpr Argument kOutputs[] = {{"y", DType::f32}};

  explicit BlockGather(const KernelInfo& info) : kernel(row_kernel(info.text("type"), "float32")) {}

  void compute(Context& context) {
    context.parallel_for(2, [](int64_t) {});  // a step begins here: the pool wakes while the first layer is prepared
    const Tensor ids = context.input(0), table = context.input(1);
    ids.expect({-1});
    const int64_t width = table_width(table, kernel);
    const int64_t row_bytes = check_weight(table, kernel, width);
    const int64_t* id = ids.as<int64_t>();
    for (int64_t i = 0; i < ids.dims[0]; ++i)
      if (id[i] < 0 || id[i] >= table.dims[0])
        fail("input ids[%lld] is %lld, outside the %lld rows of the table", static_cast<long long>(i),
             static_cast<long long>(id[i]), static_cast<long long>(table.dims[0]));
    const Tensor y = context.output(0, {ids.dims[0], width});
    auto gather = [&](int64_t i) {
      kernel.unpack(table.as<uint8_t>() + id[i] * row_bytes, width, y.as<float>() + i * width);
    };
    if (ids.dims[0] >= 16) {
      context.parallel_for(ids.dims[0],
                           [&](int64_t i) { ask_ahead(table.as<uint8_t>() + id[i] * row_bytes, row_bytes); });
      context.parallel_for(ids.dims[0], gather);
    } else {
      for (int64_t i = 0; i < ids.dims[0]; ++i) gather(i);
    }
  }

 private:
  const RowKernel& kernel;
};

}  // namespace

const OrtCustomOp* block_gather() {
  static const Op<BlockGather> op;
  return &op;
}

}  // namespace trigraph::TRIGRAPH_ISA
