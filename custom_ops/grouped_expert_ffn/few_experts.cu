#include "expert_rows.cuh"

namespace trigraph::TRIGRAPH_ISA {
namespace {

constexpr int kMostSlots = 16;                // of a token
constexpr int64_t kMostRowsBytes = 16 << 10;  // of activations in shared memory
constexpr int kMostSums = 128;                // chains of tiles that are met between two barriers
constexpr int64_t kMostColumns = 128;         // tiles of a block's sums
constexpr int kOtherBytes = 6 << 10;          // of shared memory, beside what a launch asks for

// A warp's walk through a share, of whose stages it asks for those from `first` to `end`. kGroups: each is a group of
// copies.
template <bool kGroups, class... F>
__device__ __forceinline__ ExpertWalk ask_stages(const FewExperts& all, const ExpertStep& step, Phase phase, int first,
                                                 int end, Types<F...> types) {
  const int ahead = phase == Phase::sum ? 0 : all.ahead_bytes;
  ExpertWalk walk(all, step, phase, shared_memory() + threadIdx.x / kWarp * all.ring_bytes + ahead);
  with_type(walk.task(all).type, types, [&](auto type) {
    using T = decltype(type);
    if constexpr (kTiled<T>) {
      const TileLane<T> lane;
      walk.begin_walk<T>(all.ring_bytes - ahead);
#pragma unroll 1
      for (int s = 0; s < min(end, walk.stages); ++s) {
        walk.ask<T>(step, lane, walk.ring + s * kSlot<T>, s, s >= first);
        if (kGroups) end_copies();
      }
    }
  });
  return walk;
}

// The walk of a phase, which asks for its first stages: of a sum, behind that which comes ahead, with hidden rows'.
template <class... F>
__device__ __forceinline__ ExpertWalk ask_first(const FewExperts& all, const ExpertStep& step, Phase phase,
                                                Types<F...> types) {
  const int ahead = all.ahead_bytes > 0;
  const ExpertWalk walk = ask_stages<true>(all, step, phase, phase == Phase::sum ? ahead : 0, kMostStages, types);
  if (ahead && phase == Phase::hidden) ask_stages<false>(all, step, Phase::sum, 0, 1, types);
  return walk;
}

// Weights come in groups of copies, of which as many may be on their way as there are stages but one. What is asked for
// ahead of its phase belongs to the group that ends next: so no earlier phase waits for it, but that of a later one.
template <class... F>
__global__ void __launch_bounds__(kExpertThreads, 1) few_experts(const __grid_constant__ FewExperts all) {
  allow_next();
  await_previous();
  __shared__ ExpertStep step;
  clear_zeros();
  if (!begin_step(all, step)) return;
  char* rows = shared_memory() + kExpertWarps * all.ring_bytes;
  auto *sums = reinterpret_cast<float*>(rows + all.rows_bytes), *shared = sums + all.sums * kTile;
  const Types<F...> types;
  const Phase second = all.shared.data ? Phase::shared : Phase::sum;
  ExpertWalk walk(all, step, Phase::hidden, nullptr);
  for (;;) {
    const Phase phase = walk.phase;
    const Share& share = step.shares[static_cast<int>(phase)];
    if (!walk.stages) {  // it has asked for nothing
      if (phase == Phase::hidden && all.prepared) ask_prepared(all, share.token, rows);
      walk = ask_first(all, step, phase, types);
    }
    bring_rows(all, share, step, walk.stages, rows);
    for (int first = 0, end;; first = end) {
      end = min(first + all.at_once[static_cast<int>(phase)], share.count);
      with_type(share.task(all).type, types, [&](auto type) {
        if constexpr (kTiled<decltype(type)>)
          meet<decltype(type)>(step, walk, first, end, rows, share.x_bytes(all), sums);
      });
      if (end == share.count && phase != Phase::sum) {
        end_copies();
        walk = ask_first(all, step, phase == Phase::hidden ? second : Phase::sum, types);
      }
      __syncthreads();
      finish(all, share, step, first, end, sums, shared);
      if (end == share.count) break;
      __syncthreads();
    }
    if (phase == Phase::sum) return;
    leave(all, share, step);
    if (phase == Phase::hidden && step.seat >= 0) {  // its gate and up come where others do, which are asked for again
      end_copies();
      await_copies(0);
      if (threadIdx.x == 0) step.shares[0] = Share(all, Phase::hidden, step.seat);
      __syncthreads();
      walk = ExpertWalk(all, step, Phase::hidden, nullptr);
    }
  }
}

// Blocks of a token, so that the busiest multiprocessor has the fewest units of hidden rows; each block costs it as
// much time as some of them.
int parts_of(int64_t tokens, int64_t hidden, int64_t columns) {
  constexpr int64_t kBlock = 4;
  const int64_t places = multiprocessors();
  int64_t found = 0, least = 0;
  for (int64_t parts = blocks_of(columns, kMostColumns); parts <= std::min(hidden, columns); ++parts) {
    const int64_t cost = blocks_of(tokens * parts, places) * (blocks_of(hidden, parts) + kBlock);
    if (!found || cost <= least) found = parts, least = cost;
  }
  return static_cast<int>(found);
}

template <class... F>
void launch_experts(FewExperts all, cudaStream_t stream, Types<F...>) {
  constexpr int kStage[] = {kSlot<F>...};
  const int64_t hidden = int64_t{all.k} * all.ffn / kTile, columns = all.width / kTile;
  all.parts = parts_of(all.tokens, hidden, columns);
  const auto most_of = [&](int64_t units) { return static_cast<int>((units + all.parts - 1) / all.parts); };
  const auto chains = [](const ExpertTask& task) { return 1 << task.chain_bits; };
  const int made = 2 * chains(all.gate), summed = all.k * chains(all.down), taken = most_of(columns);
  all.sums = std::max(summed, std::min(kMostSums, std::max({made * most_of(hidden), summed * taken, kChains * taken})));
  all.at_once[0] = all.sums / made, all.at_once[1] = all.sums / chains(all.shared);
  all.at_once[2] = all.sums / summed * all.k;
  all.rows_bytes = static_cast<int>(std::max(Int8Row::apart(all.width), all.k * Int8Row::apart(all.ffn)));
  const int rest = all.rows_bytes + (all.sums + taken) * kTile * static_cast<int>(sizeof(float));
  const int room = (static_cast<int>(most_shared_bytes()) - kOtherBytes - rest) / kExpertWarps / 16 * 16;
  all.ring_bytes = std::min(kMostStages * kMostSlot, room);
  const int down = kStage[all.down.type];
  all.ahead_bytes = all.ring_bytes >= down + 2 * kStage[all.gate.type] ? down : 0;
  launch_step(all.tokens, few_experts<F...>, static_cast<unsigned>(all.tokens * all.parts), kExpertThreads,
              static_cast<size_t>(kExpertWarps * all.ring_bytes + rest), stream, all);
}

}  // namespace

ExpertTask::ExpertTask(const ProductKernel& kernel, const uint8_t* data, const uint8_t* end, int64_t width,
                       int64_t row_bytes, int64_t stride)
    : data(data),
      end(end),
      row_bytes(row_bytes),
      stride(stride),
      type(kernel.few_type),
      by_runs(kernel.form == kByRuns) {
  const int chains = kernel.lanes(width) / (kernel.block == kSuper ? kShare<Q4_K> : 1);
  while (1 << chain_bits < chains) ++chain_bits;
}

bool FewExperts::fit(int64_t tokens, int64_t k, int64_t width, int64_t ffn) {
  return k <= kMostSlots && tokens * k <= kMost && width % kSuper == 0 && ffn % kSuper == 0 &&
         std::max(Int8Row::apart(width), k * Int8Row::apart(ffn)) <= kMostRowsBytes;
}

void FewExperts::launch(cudaStream_t stream) { launch_experts(*this, stream, CommonTypes()); }

}  // namespace trigraph::TRIGRAPH_ISA
