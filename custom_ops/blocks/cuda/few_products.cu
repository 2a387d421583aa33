#include "few_products.cuh"

namespace trigraph::TRIGRAPH_ISA {
namespace {

// Bytes of a block, beside what kernels have there.
int64_t shared_room() {
  constexpr int64_t kAny = 86 << 10, kMore = 98 << 10, kOther = 14 << 10;  // kAny: what any device allows
  return most_shared_bytes() >= static_cast<size_t>(kMore + kOther) ? kMore : kAny;
}

// As the kernels of CommonTypes take them.
bool takes_tiles(const ProductKernel& kernel, int64_t width) {
  return kernel.few == few_common && kernel.layout == Layout::int8 && width % kSuper == 0;
}

}  // namespace

void few_common(const FewTasks& tasks, cudaStream_t stream) { launch_few(tasks, stream, CommonTypes()); }

FewTasks::FewTasks(const float* x, int64_t width, int64_t m)
    : task{}, x(x), width(width), m(static_cast<int>(m)), count(0), blocks(0), forms(kNoForm), ring_bytes(0) {}

bool FewTasks::fit(int64_t width, int64_t m) {
  return m <= kMostRows && static_cast<size_t>(m * Int8Row::apart(width)) <= kFewBytes;
}

bool FewTasks::fit_norm(int64_t width) {
  constexpr int64_t kMost = 2560;  // a launch of its own norms wider rows faster
  return width <= kMost;
}

void FewTasks::add(const ProductKernel& kernel, const uint8_t* data, int64_t rows, int64_t row_bytes, float* y) {
  const int lanes = kernel.lanes(width);
  const bool tiled = takes_tiles(kernel, width);
  const int chains = kernel.block == kSuper ? lanes / kShare<Q4_K> : lanes;
  const int at_once = tiled ? kTile * kFewWarps / chains : kFewThreads / lanes;
  task[count++] = {data, y, rows, row_bytes, kernel.few_type, kernel.form, lanes, tiled, false, at_once, 1, 0};
  forms |= kernel.form;
}

int64_t FewTasks::rows_bytes() const { return forms ? m * Int8Row::apart(width) : 0; }

size_t FewTasks::share(int64_t other_bytes) {
  int64_t bytes = 0;
  for (int i = 0; i < count; ++i) bytes += task[i].rows * task[i].row_bytes;
  // How often a task's blocks take rows where a multiprocessor gets so many blocks in all.
  const auto rounds = [&](const FewTask& t, int64_t blocks) {
    const int64_t most = blocks_of(t.rows, t.at_once), of_round = blocks * multiprocessors() * t.at_once * t.row_bytes;
    return std::max<int64_t>(1, std::min(most, (bytes + of_round - 1) / of_round));
  };
  const auto most_bytes = [&](int64_t blocks) {  // of a multiprocessor
    int64_t most = 0;
    for (int i = 0; i < count; ++i)
      most = std::max(most, rounds(task[i], blocks) * task[i].at_once * task[i].row_bytes);
    return blocks * most;
  };
  // One more than there is room for at once, where that shares the rows out better.
  const int64_t own = kFewBlocks + (most_bytes(kFewBlocks + 1) < most_bytes(kFewBlocks));
  blocks = 0;
  for (int i = 0; i < count; ++i) {
    FewTask& t = task[i];
    t.rounds = static_cast<int>(rounds(t, own));
    t.first_block = blocks;
    blocks += static_cast<int>(blocks_of(t.rows, int64_t{t.at_once} * t.rounds));
  }
  const int64_t room = std::min<int64_t>(kRing, (shared_room() - other_bytes) / kFewWarps / 16 * 16);
  bool used = false;
  for (int i = 0; i < count; ++i) {
    FewTask& t = task[i];
    t.staged =
        m <= kFirstRows && !t.tiled && !t.form && t.lanes == kWarp && t.row_bytes % 16 == 0 && t.row_bytes <= room;
    used = used || t.tiled || t.staged;
  }
  ring_bytes = used ? static_cast<int>(room) : 0;
  return static_cast<size_t>(int64_t{kFewWarps} * ring_bytes + other_bytes);
}

}  // namespace trigraph::TRIGRAPH_ISA
