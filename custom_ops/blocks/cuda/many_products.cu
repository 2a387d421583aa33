#include <cstdlib>
#include <string>

#include "many_products.cuh"
#include "plane_products.h"
#include "tall_products.cuh"

namespace trigraph::TRIGRAPH_ISA {
namespace {

// From which on blocks of more rows are faster (measured on an H100): rows of a bucket, rows without buckets, blocks of
// two multiprocessors.
constexpr int64_t kWideMean = 2, kWideAll = 2 * kTileRows + 1, kWideBlocks = 3;

// Whether tiles have 64 rows where they can: another way, to be compared on a GPU.
bool tall_chosen() {
  const char* chosen = std::getenv("TRIGRAPH_TALL_TILES");
  return chosen && chosen == std::string("1");
}

}  // namespace

template <class Takes>
ManyTasks ManyTasks::widened(const Takes& takes) const {
  ManyTasks wide = *this;
  wide.blocks = wide.count = 0;
  for (int i = 0; i < count; ++i) {
    if (!takes(task[i].type)) continue;
    ManyTask& own = wide.task[wide.count++] = task[i];
    own.columns = own.wide_columns;
    own.first_block = wide.blocks;
    wide.blocks += static_cast<int>(blocks_of(own.rows, own.columns));
  }
  return wide;
}

int bucket_rows(int64_t mean, std::initializer_list<const ProductKernel*> kernels) {
  const bool tall = tall_chosen() && mean >= kTallRows &&
                    std::all_of(kernels.begin(), kernels.end(), [](const ProductKernel* kernel) {
                      return kernel->many == many_common && can_be_tall(kernel->few_type, CommonTypes());
                    });
  return tall ? kTallRows : kWideRows;
}

void many_common(const ManyTasks& tasks, const Buckets& buckets, int64_t max_buckets, int64_t rows,
                 cudaStream_t stream) {
  ManyTasks wide = tasks.widened([](int) { return true; });
  const int64_t mean = rows / max_buckets, parts = (mean + kWideRows - 1) / kWideRows;
  if (tasks.width % kSuper != 0 || mean < (buckets.used ? kWideMean : kWideAll) ||
      2 * wide.blocks * max_buckets * parts < kWideBlocks * multiprocessors())
    return launch_many(tasks, buckets, max_buckets, rows, stream, CommonTypes());
  if (const ManyTasks planes = tasks.widened(has_planes); !buckets.used && takes_planes(planes, rows)) {
    many_planes(planes, rows, stream);
    wide = tasks.widened([](int type) { return !has_planes(type); });
  } else if (buckets.used ? buckets.most == kTallRows : tall_chosen()) {
    const auto is_tall = [](int type) { return can_be_tall(type, CommonTypes()); };
    const ManyTasks tall = tasks.widened(is_tall);
    if (buckets.used || tall.blocks * ((rows + kTallRows - 1) / kTallRows) >= multiprocessors()) {
      launch_tall(tall, buckets, max_buckets, rows, stream, CommonTypes());
      wide = tasks.widened([&](int type) { return !is_tall(type); });
    }
  }
  if (wide.count) launch_wide(wide, buckets, max_buckets, rows, stream, CommonTypes());
}

ManyTasks::ManyTasks(const float* x, const void* prepared, int64_t width)
    : task{}, x(x), prepared(static_cast<const char*>(prepared)), width(width), count(0), blocks(0) {}

void ManyTasks::add(const ProductKernel& kernel, const uint8_t* data, int64_t stride, int64_t rows, int64_t row_bytes,
                    float* y) {
  const bool int8 = kernel.layout == Layout::int8;
  const int chains = int8 ? kernel.lanes(width) / (kernel.block == kSuper ? 4 : 1) : 0;
  const int columns = int8 ? kTileWarps / chains * kTileColumns : kPlainColumns;
  int wide = columns;
  if (!int8)
    wide = kWidePlainColumns;
  else if (kernel.block == kSuper)
    wide = kWideColumns;
  else if (kernel.type == std::string(Q8_0::kName))
    wide = kWideQ8Columns;
  task[count++] = {data,      y,
                   stride,    rows,
                   row_bytes, kernel.few_type,
                   chains,    kernel.form == kByRuns ? Int8Row::bytes(width) : 0,
                   columns,   blocks,
                   wide};
  blocks += static_cast<int>(blocks_of(rows, columns));
}

}  // namespace trigraph::TRIGRAPH_ISA
