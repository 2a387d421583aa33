#include "many_products.cuh"

namespace trigraph::TRIGRAPH_ISA {

void many_common(const ManyTasks& tasks, const Buckets& buckets, int64_t max_buckets, int64_t rows,
                 cudaStream_t stream) {
  launch_many(tasks, buckets, max_buckets, rows, stream, CommonTypes());
}

ManyTasks::ManyTasks(const float* x, const void* prepared, int64_t width)
    : task{}, x(x), prepared(static_cast<const char*>(prepared)), width(width), count(0), blocks(0) {}

void ManyTasks::add(const ProductKernel& kernel, const uint8_t* data, int64_t stride, int64_t rows, int64_t row_bytes,
                    float* y) {
  const bool int8 = kernel.layout == Layout::int8;
  const int chains = int8 ? kernel.lanes(width) / (kernel.block == kSuper ? 4 : 1) : 0;
  const int columns = int8 ? kTileWarps / chains * kTileColumns : kPlainColumns;
  task[count++] = {data, y, stride, rows, row_bytes, kernel.few_type, chains, columns, blocks};
  blocks += static_cast<int>(blocks_of(rows, columns));
}

}  // namespace trigraph::TRIGRAPH_ISA
