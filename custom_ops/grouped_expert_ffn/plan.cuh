// The (token, slot) pairs of a step, sorted by expert by one block: so the rows of a chosen expert are read once for
// all its tokens.
#pragma once

#include "../cuda/device_error.cuh"

namespace trigraph::TRIGRAPH_ISA {

constexpr int kThreads = 256;
constexpr int kMostExperts = 1024;
constexpr int kBucketThreads = kMostExperts;

// The pairs of a step whose experts the device has, sorted by expert; those of an expert in any order, in buckets of at
// most Buckets::kMost.
struct Plan {
  int* used;    // buckets; 0 for a step with a bad id
  int* expert;  // [used] of the stack
  int* first;   // [used + 1] sorted indices
  int* token;   // [pairs] by sorted index
  int* sorted;  // [pairs] sorted index of each pair
  static int64_t most(int64_t pairs, int64_t experts) { return std::min(pairs, experts + pairs / Buckets::kMost); }
  static int64_t size(int64_t pairs, int64_t experts) { return 2 + 2 * most(pairs, experts) + 2 * pairs; }
  Plan(int* memory, int64_t pairs, int64_t experts)
      : used(memory),
        expert(used + 1),
        first(expert + most(pairs, experts)),
        token(first + most(pairs, experts) + 1),
        sorted(token + pairs) {}
};

namespace {

// The sum of the values of all threads before this one.
__device__ __forceinline__ int sum_before(int value, int* sums) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  int sum = value;
  for (int offset = 1; offset < kWarp; offset *= 2) {
    const int other = __shfl_up_sync(kAllLanes, sum, offset);
    if (lane >= offset) sum += other;
  }
  __syncthreads();
  if (lane == kWarp - 1) sums[warp] = sum;
  __syncthreads();
  for (int i = 0; i < warp; ++i) sum += sums[i];
  return sum - value;
}

// One block. Threads take places of an expert in any order: rows of products do not depend on each other. `slots`:
// where in its stack the device has each expert, -1 for one that it has not got and whose pairs are left out; nullptr:
// it has all of them in order.
__global__ void __launch_bounds__(kBucketThreads)
    bucket(const int64_t* ids, int pairs, int k, int experts, const int* slots, int64_t token_offset, Plan plan,
           ErrorRecord* record) {
  const auto slot_of = [slots](int64_t id) { return slots ? slots[id] : static_cast<int>(id); };
  __shared__ int place[kMostExperts], sums[kBucketThreads / kWarp];
  const int e = static_cast<int>(threadIdx.x);
  place[e] = 0;
  __syncthreads();
  bool bad = false;
  for (int i = e; i < pairs; i += kBucketThreads) {
    const int64_t id = ids[i];
    if (id < 0 || id >= experts)
      bad = true;
    else if (const int slot = slot_of(id); slot >= 0)
      atomicAdd(&place[slot], 1);
  }
  if (__syncthreads_or(bad)) {
    if (e != 0) return;
    *plan.used = 0;
    for (int i = 0; i < pairs; ++i)
      if (ids[i] < 0 || ids[i] >= experts) {
        report(record, Operator::grouped_expert_ffn, Reason::expert_id, ids[i], token_offset + i / k, i % k, experts);
        return;
      }
  }
  // A thread has an expert: how many buckets and pairs there are before it.
  const int count = place[e], own = (count + Buckets::kMost - 1) / Buckets::kMost;
  const int used = sum_before(own, sums), first = sum_before(count, sums);
  place[e] = first;
  for (int i = 0; i < own; ++i) {
    plan.expert[used + i] = e;
    plan.first[used + i] = first + i * Buckets::kMost;
  }
  if (e == kBucketThreads - 1) *plan.used = used + own, plan.first[used + own] = first + count;
  __syncthreads();
  for (int i = e; i < pairs; i += kBucketThreads) {
    const int slot = slot_of(ids[i]);
    if (slot < 0) continue;
    const int index = atomicAdd(&place[slot], 1);
    plan.sorted[i] = index;
    plan.token[index] = i / k;
  }
}

}  // namespace
}  // namespace trigraph::TRIGRAPH_ISA
