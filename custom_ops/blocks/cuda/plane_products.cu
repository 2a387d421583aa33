#include <cstdlib>
#include <string>

#include "plane_products.h"
#include "plane_tiles.cuh"
#include "wide_products.cuh"

namespace trigraph::TRIGRAPH_ISA {
namespace {

template <class F>
constexpr bool kHasPlanes = !kPlain<F> && kWhole<F>;

constexpr size_t kAlign = kAtomRows * kAtomBytes;
constexpr size_t kBytes =
    kAlign + std::max({sizeof(PlaneMemory<Q4_K>), sizeof(PlaneMemory<Q5_K>), sizeof(PlaneMemory<Q6_K>)});
static_assert(kBytes <= 224 << 10, "of the 227 KB that sm_90 gives a block, variables beside it");

__global__ void __launch_bounds__(kTileThreads, 1)
    plane_tiles(const __grid_constant__ ManyTasks tasks, const __grid_constant__ Buckets buckets, int count,
                int64_t x_bytes) {
  if constexpr (kHasWgmma)
    take_tiles<kWgmmaRows>(tasks, buckets, count, x_bytes, [&](const PlaneTile& tile, const PlaneTile& behind) {
      char* memory = shared_memory();
      memory += -reinterpret_cast<uintptr_t>(memory) % kAlign;
      with_type(tile.task.type, CommonTypes(), [&](auto type) {
        if constexpr (kHasPlanes<decltype(type)>) meet_planes<decltype(type)>(tile, behind, tasks.width, memory);
      });
    });
}

int64_t tiles_of(const ManyTasks& tasks, int64_t rows) { return tasks.blocks * int64_t{blocks_of(rows, kWgmmaRows)}; }

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
  launch(plane_tiles, static_cast<unsigned>(std::min(tiles_of(tasks, rows), multiprocessors())), kTileThreads, kBytes,
         stream, tasks, Buckets{}, rows, prepared_bytes(Layout::int8, tasks.width));
}

}  // namespace trigraph::TRIGRAPH_ISA
