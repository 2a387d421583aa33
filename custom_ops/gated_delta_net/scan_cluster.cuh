// scan_one.cuh's launch by clusters of four blocks a value head, on sm_90: each has a quarter of the columns. It makes
// these columns of queries, keys and values, and reads those of the others; a warp has a band of the state's rows.
#pragma once

#include "../cuda/cluster.cuh"
#include "scan_one.cuh"

namespace trigraph::TRIGRAPH_ISA {

constexpr int kHeadRanks = 4;
constexpr int kClusterScanThreads = kBands * kWarp;

template <int D>
struct ClusterHead {
  static constexpr int kColumns = D / kHeadRanks;
  static_assert(kColumns % 4 == 0 && kColumns <= kWarp && kColumns >= kGroup);
  Tokens<D> tokens;                              // of values and z the block's columns alone
  float made[2][kGroup][kColumns];               // its columns of queries and keys
  float window[kHistory + kGroup][3][kColumns];  // after the step: a thread's channel
  float product[2][kBands][2][kColumns];         // of a token, even or odd, by bands: with its key and its query
  bool last;                                     // as OneHead's, of the blocks with these columns

  // The thread's channel of some tokens.
  __device__ __forceinline__ void make(const Work& work, const Sequence& sequence, int64_t head, int role, int lane,
                                       int j, int64_t channel, int64_t first, int count) {
    float* to = role == kValue ? tokens.value[0] + j : made[role][0] + lane;
    make_channel(work, sequence, head, role, j, channel, first, count, lane, to, role == kValue ? D : kColumns,
                 window[0][role] + lane, 3 * kColumns, tokens);
  }
  __device__ __forceinline__ void save_window(const Work& work, const Sequence& sequence, int role, int lane,
                                              int64_t channel) const {
    const Geometry& g = work.geometry;
    float* to = work.window + sequence.slot_out * g.window_rows() * g.channels() + channel;
#pragma unroll 1
    for (int row = 0; row < sequence.window_rows(g.commit); ++row) to[row * g.channels()] = window[row][role][lane];
  }
  // Queries and keys as all blocks have made them.
  __device__ __forceinline__ void gather_made(int count) {
    for (int i = 4 * threadIdx.x; i < 2 * count * D; i += 4 * kClusterScanThreads) {
      const int role = i / (count * D), n = i / D % count, column = i % D;
      const float* from = of_rank(made[role][n] + column % kColumns, column / kColumns);
      float (*to)[D] = role == kQuery ? tokens.query : tokens.key;  // named, as in make_units
      *reinterpret_cast<float4*>(to[n] + column) = *reinterpret_cast<const float4*>(from);
    }
  }
  // The others' columns of outputs.
  __device__ __forceinline__ void gather_outputs(int count, int rank) {
    for (int i = 4 * threadIdx.x; i < count * D; i += 4 * kClusterScanThreads) {
      float* own = tokens.out[i / D] + i % D;
      if (const int other = i % D / kColumns; other != rank)
        *reinterpret_cast<float4*>(own) = *reinterpret_cast<const float4*>(of_rank(own, other));
    }
  }
  // Token n: its output, and S = decay S + k d^T, of a thread's band of rows in column j; the whole block calls.
  __device__ __forceinline__ void scan(int n, int band, int lane, int j, float* state) {
    const float *key = tokens.key[n] + band * (D / kBands), *query = tokens.query[n] + band * (D / kBands);
    float (*made)[2][kColumns] = product[n % 2];
    if (lane < kColumns) {
      const Products sum = band_products<D>(state, key, query, 0, [](int) {});
      made[band][0][lane] = sum.key, made[band][1][lane] = sum.query;
    }
    __syncthreads();
    if (lane >= kColumns) return;
    const auto join = [&](int with) {
      return (made[0][with][lane] + made[1][with][lane]) + (made[2][with][lane] + made[3][with][lane]);
    };
    const float decay = tokens.decay[n], delta = tokens.beta[n] * (tokens.value[n][j] - decay * join(0));
    if (band == 0) tokens.out[n][j] = fmaf(tokens.look[n], delta, decay * join(1));
#pragma unroll
    for (int i = 0; i < D / kBands; ++i) state[i] = fmaf(key[i], delta, decay * state[i]);
  }
};

// grid: [value heads x blocks of a cluster]. `done` [key heads x blocks of a cluster] as scan_one's; all shared memory
// is dynamic.
template <int D>
__global__ void __launch_bounds__(kClusterScanThreads, 1) scan_cluster(Work work, unsigned* done) {
  allow_next();
  if constexpr (!kCanBeginEarly) return;  // before sm_90
  constexpr int kRows = D / kBands, kColumns = ClusterHead<D>::kColumns;
  auto& shared = *reinterpret_cast<ClusterHead<D>*>(shared_memory());
  Tokens<D>& tokens = shared.tokens;
  const Geometry& g = work.geometry;
  const int rank = static_cast<int>(blockIdx.x) % kHeadRanks, lane = threadIdx.x % kWarp, band = threadIdx.x / kWarp;
  const int64_t head = blockIdx.x / kHeadRanks, k_head = g.k_head(head), size = g.v_heads * D * D;
  const int j = rank * kColumns + min(lane, kColumns - 1);
  const Sequence sequence(work.step, 0);
  const bool active = lane < kColumns, kept_before = !sequence.fresh && sequence.reads_a_slot(work.step);
  const int64_t at = (head * D + band * kRows) * D + j;
  const float* from = work.past_state + sequence.slot_in * size + at;
  float *to = work.state + sequence.slot_out * size + at, state[kRows];
#pragma unroll
  for (int i = 0; i < kRows; ++i) state[i] = active && kept_before ? from[i * D] : 0.0f;
  const float norm = work.norm[j];
  await_previous();
  if (!step_holds(work, head)) return;
  const int role = band;  // of the channel that the thread makes; the last warp makes none
  const int64_t channel = (min(role, kValue) * g.k_heads + (role >= kValue ? head : k_head)) * D + j;
  const int64_t kept = sequence.left_behind(g.commit);  // tokens of the state after the step
  const bool moves = kept > 0 || sequence.fresh || from != to;
  unsigned before = 0;  // value heads that have read these columns of the window, known to the block's last warp
  for (int64_t first = 0; first < sequence.count(); first += kGroup) {
    const int count = static_cast<int>(min(int64_t{kGroup}, sequence.count() - first));
    if (active && role <= kValue) shared.make(work, sequence, head, role, lane, j, channel, first, count);
    cluster_arrive();
    cluster_wait();
    if (first + count == sequence.count() && threadIdx.x == kValue * kWarp + kWarp) {
      __threadfence();  // the block has read the window, as a barrier says, before it counts
      before = atomicInc(done + k_head * kHeadRanks + rank, static_cast<unsigned>(g.group()) - 1);
    }
    shared.gather_made(count);
    make_units(work, count, tokens);
    for (int n = first ? 0 : -1; n < count; ++n) {
      if (n >= 0) shared.scan(n, band, lane, j, state);
      if (first + n + 1 == kept && moves && active) {
#pragma unroll
        for (int i = 0; i < kRows; ++i) to[i * D] = state[i];
      }
    }
    if (threadIdx.x == kValue * kWarp + kWarp) {
      shared.last = before + 1 == g.group();
      __threadfence();  // and what the last one writes comes after the others' reads
    }
    cluster_arrive();
    cluster_wait();
    shared.gather_outputs(count, rank);
    cluster_arrive();  // the block reads nothing of the others any more
    __syncthreads();
    tokens.find_factors(work, count);
    tokens.finish(work, sequence, head, active && band == 0 ? count : 0, j, norm, first);
    cluster_wait();
  }
  if (rank == 0) save_gates(work, sequence, head, tokens);
  if (active && (role == kValue || (role < kValue && shared.last)))
    shared.save_window(work, sequence, role, lane, channel);
}

// That of heads of some widths, or nullptr, and its shared memory.
inline ScanOne scan_by_clusters(int64_t dim, size_t& bytes) {
  bytes = dim == 128 ? sizeof(ClusterHead<128>) : sizeof(ClusterHead<64>);
  const ScanOne found = dim == 128 ? scan_cluster<128> : dim == 64 ? scan_cluster<64> : nullptr;
  return found && takes_sm_90(reinterpret_cast<const void*>(found)) ? found : nullptr;
}

}  // namespace trigraph::TRIGRAPH_ISA
