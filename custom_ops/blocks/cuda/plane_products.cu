#include <cstdlib>
#include <string>

#include "plane_products.h"
#include "plane_tiles.cuh"
#include "wide_products.cuh"

namespace trigraph::TRIGRAPH_ISA {
namespace {

constexpr size_t kAlign = kAtomRows * kAtomBytes;

template <class F>
constexpr bool kHasPlanes = !kPlain<F> && kWhole<F>;

template <class F>
constexpr size_t plane_bytes() {
  if constexpr (kHasPlanes<F>) return kAlign + sizeof(PlaneMemory<F>);
  return 0;
}

static_assert(plane_bytes<Q5_K>() <= 224 << 10 && plane_bytes<Q6_K>() <= 224 << 10, "an H100 gives a block 227 KB");

template <class... F>
__global__ void __launch_bounds__(kTileThreads, 1)
    plane_tiles(const __grid_constant__ ManyTasks tasks, const __grid_constant__ Buckets buckets, int count,
                int64_t x_bytes) {
  if constexpr (kHasWgmma)
    take_tiles<kWgmmaRows>(tasks, buckets, count, x_bytes, [&](const PlaneTile& tile, const PlaneTile& behind) {
      char* memory = shared_memory();
      memory += -reinterpret_cast<uintptr_t>(memory) % kAlign;
      with_type(tile.task.type, Types<F...>(), [&](auto type) {
        if constexpr (kHasPlanes<decltype(type)>) meet_planes<decltype(type)>(tile, behind, tasks.width, memory);
      });
    });
}

int64_t tiles_of(const ManyTasks& tasks, int64_t rows) { return tasks.blocks * int64_t{blocks_of(rows, kWgmmaRows)}; }

template <class... F>
void launch_planes(const ManyTasks& tasks, int64_t rows, cudaStream_t stream, Types<F...>) {
  launch(plane_tiles<F...>, static_cast<unsigned>(std::min(tiles_of(tasks, rows), multiprocessors())), kTileThreads,
         std::max({plane_bytes<F>()...}), stream, tasks, Buckets{}, rows, prepared_bytes(Layout::int8, tasks.width));
}

template <class... F>
bool has_planes(int type, Types<F...>) {
  int at = 0;
  bool found = false;
  ((found |= at++ == type && kHasPlanes<F>), ...);
  return found;
}

bool is_sm_90() {
  int device = 0, major = 0;
  check(cudaGetDevice(&device), "asking for the device");
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "asking for its architecture");
  return major == 9;
}

}  // namespace

bool takes_planes(const ManyTasks& tasks, int64_t rows) {
  const char* chosen = std::getenv("TRIGRAPH_PLANES");
  return kHasWgmma && chosen && chosen == std::string("1") && rows > kWideRows &&
         tiles_of(tasks, rows) >= multiprocessors() && is_sm_90();
}

bool has_planes(int type) { return has_planes(type, CommonTypes()); }

void many_planes(const ManyTasks& tasks, int64_t rows, cudaStream_t stream) {
  launch_planes(tasks, rows, stream, CommonTypes());
}

}  // namespace trigraph::TRIGRAPH_ISA
