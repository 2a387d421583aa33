// What a block of few_experts.cu has beside its tiles: its place in the step, rows of activations, and what becomes of
// the products.
#pragma once

#include "../cuda/last_block.cuh"
#include "expert_tiles.cuh"

namespace trigraph::TRIGRAPH_ISA {
namespace {

// A seat is the work of one block in as many as there are: hidden rows first, and then, when all of the token are made,
// sums. The block that begins as the n-th has seat n, whose sums are nobody else's. After its hidden rows it makes
// those of the last seats, one after the other, whose blocks have not begun: only when all seats are taken does it
// wait. So a block waits for rows alone that blocks make which have begun and wait for nobody: no matter how few fit a
// device at once, or who holds the places of the others. A block that begins when its rows are taken goes on to its
// sums.
//
// The counter has the blocks that have begun, and in units of kTaken the claims of seats after that. All claims of a
// launch are twice as many as its blocks: one takes each seat, and each block has one in vain.
constexpr unsigned kBegins = 1, kTaken = 1 << 16;
constexpr int kClaims = kExpertThreads - 1;  // the thread that does

__device__ __forceinline__ void take_seat(const FewExperts& all, ExpertStep& step, unsigned before, bool begins) {
  const int blocks = static_cast<int>(gridDim.x), begun = static_cast<int>(before % kTaken),
            taken = static_cast<int>(before / kTaken);
  if (begun + taken == 2 * blocks - 1) *all.counters = 0;
  step.seat = begun + taken >= blocks ? -1 : begins ? begun : blocks - 1 - taken;
  if (!begins) return;
  step.shares[0] = Share(all, Phase::hidden, begun);
  if (step.seat < 0) step.shares[0].count = 0;
  step.shares[1] = Share(all, Phase::shared, begun), step.shares[2] = Share(all, Phase::sum, begun);
}

__device__ __forceinline__ void find_matrices(const FewExperts& all, ExpertStep& step, int pair, int64_t id) {
  const ExpertTask* tasks[] = {&all.gate, &all.up, &all.down};
#pragma unroll
  for (int i = 0; i < 3; ++i) step.matrices[i][pair] = tasks[i]->data + id * tasks[i]->stride;
}

// What the block knows; false when an id is bad. The whole block calls.
__device__ __forceinline__ bool begin_step(const FewExperts& all, ExpertStep& step) {
  const int i = threadIdx.x, pairs = all.tokens * all.k;
  const auto is_bad = [&](int pair) { return all.ids[pair] < 0 || all.ids[pair] >= all.experts; };
  if (all.ids) {
    if (__syncthreads_or(i < pairs && is_bad(i))) {
      int first = 0;
      if (i || blockIdx.x) return false;
      while (!is_bad(first)) ++first;
      report(all.record, Operator::grouped_expert_ffn, Reason::expert_id, all.ids[first],
             all.first_token + first / all.k, first % all.k, all.experts);
      return false;
    }
    if (i < pairs) step.weights[i] = all.sum.weights[i], find_matrices(all, step, i, all.ids[i]);
  }
  unsigned before = 0;
  if (i == kClaims) {
    before = atomicAdd(all.counters, kBegins);
    const ExpertTask* tasks[] = {&all.gate, &all.up, &all.down, &all.shared};
#pragma unroll
    for (int t = 0; t < 4; ++t) step.ends[t] = tasks[t]->end;
    step.shared = all.shared.data;
  }
  if (!all.ids)
    for (int token = i / kWarp; token < all.tokens; token += kExpertWarps) {
      const int lane = i % kWarp, pair = token * all.k + lane;
      all.routing.choose(token, step.ids + token * all.k, step.weights + token * all.k);
      if (lane < all.k) find_matrices(all, step, pair, step.ids[pair]);
    }
  if (i == kClaims) take_seat(all, step, before, true);
  __syncthreads();
  return true;
}

// Begins to copy the token's row of activations, where it is prepared.
__device__ __forceinline__ void ask_prepared(const FewExperts& all, int token, char* rows) {
  const auto bytes = static_cast<int>(Int8Row::bytes(all.width));
  const char* form = all.prepared + (2 * int64_t{token} + all.gate.by_runs) * bytes;
  for (int i = 16 * threadIdx.x; i < bytes; i += 16 * kExpertThreads) copy_ahead(rows + i, form + i);
  end_copies();
}

// Waits until the token's hidden rows are made. The whole block calls.
__device__ __forceinline__ void await_hidden(const FewExperts& all, int token, ExpertStep& step) {
  if (threadIdx.x == 0) {
    unsigned* made = all.counters + 1 + token;
    if (all.sum.shared_gate) step.shared_logit = all.sum.shared_gate[token];
    while (read_acquired(made) < static_cast<unsigned>(all.parts)) continue;
    arrives_last(made, 2 * static_cast<unsigned>(all.parts));
  }
  __syncthreads();
}

// Brings the rows of activations that a share meets, as int8, after the warp has asked for `stages` of weights. The
// whole block calls.
__device__ __forceinline__ void bring_rows(const FewExperts& all, const Share& share, ExpertStep& step, int stages,
                                           char* rows) {
  const bool by_runs = share.task(all).by_runs, hidden = share.phase == Phase::hidden;
  const int64_t ffn = all.ffn, token = share.token, width = hidden ? all.width : ffn;
  if (share.phase == Phase::sum) await_hidden(all, share.token, step);
  if (share.phase == Phase::shared) {
    const Gated x{all.shared_hidden + token * ffn, all.shared_up + token * ffn};
    quantise_rows<1, kExpertWarps>([&](int) { return x; }, 1, ffn, by_runs, 0, rows);
  } else if (hidden && all.prepared) {
    await_copies(stages);
  } else {
    const float* x = hidden ? all.x + token * width : all.hidden + token * all.k * width;
    quantise_rows<1, kExpertWarps>([&](int i) { return Plain{x + i * width}; }, hidden ? 1 : all.k, width, by_runs,
                                   share.x_bytes(all), rows);
  }
  __syncthreads();
}

// A share is done; if it was of hidden rows, the block tells that they are made, and has a seat for more or not. The
// whole block calls.
__device__ __forceinline__ void leave(const FewExperts& all, const Share& share, ExpertStep& step) {
  const bool made = share.phase == Phase::hidden && share.count;
  unsigned before = 0;
  if (made && threadIdx.x == kClaims) before = atomicAdd(all.counters, kTaken);
  __syncthreads();
  if (!made) return;
  if (threadIdx.x == kClaims) take_seat(all, step, before, false);
  if (threadIdx.x == 0) {
    __threadfence();
    arrives_last(all.counters + 1 + share.token, 2 * static_cast<unsigned>(all.parts));
  }
  __syncthreads();
}

// What becomes of units `first` to `end` of a share. The whole block calls.
__device__ __forceinline__ void finish(const FewExperts& all, const Share& share, const ExpertStep& step, int first,
                                       int end, float* sums, float* shared) {
  const int chains = 1 << share.task(all).chain_bits, i = threadIdx.x, count = (end - first) * kTile;
  for (int at = i; at < count; at += kExpertThreads) {
    const int unit = at / kTile, row = at % kTile;
    if (share.phase == Phase::hidden) {
      const int units = share.slot + first + unit, rows = share.rows_of(units);
      const int64_t pair = share.token * share.slots + units - rows * share.slots;
      all.hidden[pair * all.ffn + (share.row + rows) * kTile + row] =
          silu(join(sums, chains, 2 * unit, row)) * join(sums, chains, 2 * unit + 1, row);
    } else {
      const float sum = join(sums, chains, unit, row);
      if (share.phase == Phase::shared)
        shared[first * kTile + at] = sum;
      else  // a thread has the chains of its sum alone, and so may write there
        sums[unit * chains * kTile + row] = sum;
    }
  }
  if (share.phase != Phase::sum) return;
  __syncthreads();
  const float* weights = step.weights + share.token * share.slots;
  for (int at = i; at < share.rows_of(end - first) * kTile; at += kExpertThreads) {
    const int row = share.rows_of(first) * kTile + at;  // of the block
    const int64_t y = share.token * all.sum.width + share.row * kTile + row;
    const float* product = sums + at / kTile * share.slots * chains * kTile + at % kTile;
    float sum = 0;
    for (int slot = 0; slot < share.slots; ++slot) sum = fmaf(weights[slot], product[slot * chains * kTile], sum);
    if (all.sum.shared_gate)
      sum = fmaf(sigmoid(step.shared_logit), all.shared.data ? shared[row] : all.sum.shared[y], sum);
    all.sum.y[y] = sum;
  }
}

}  // namespace
}  // namespace trigraph::TRIGRAPH_ISA
