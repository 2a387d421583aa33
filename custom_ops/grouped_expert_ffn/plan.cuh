// The (token, slot) pairs of a step, sorted by expert by one block, in the order of the pairs: so the rows of a chosen
// expert are read once for all its tokens.
#pragma once

#include "../cuda/device_error.cuh"

namespace trigraph::TRIGRAPH_ISA {

constexpr int kThreads = 256;
constexpr int kStaged = 1024;  // ids in shared memory
constexpr int kMostExperts = 1024;

// The pairs of a step, sorted by expert; pairs of an expert keep their order.
struct Plan {
  int* used;    // how many experts some token chose; 0 for a step with a bad id
  int* expert;  // [used]
  int* first;   // [used + 1] sorted indices
  int* token;   // [pairs] by sorted index
  int* sorted;  // [pairs] sorted index of each pair
  static int64_t size(int64_t pairs, int64_t experts) { return 1 + experts + (experts + 1) + 2 * pairs; }
  Plan(int* memory, int64_t pairs, int64_t experts)
      : used(memory), expert(used + 1), first(expert + experts), token(first + experts + 1), sorted(token + pairs) {}
};

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

// One block. A thread owns an expert, and meets all ids in their order: nothing depends on which thread is first.
__global__ void __launch_bounds__(kThreads)
    bucket(const int64_t* ids, int pairs, int k, int experts, int64_t token_offset, Plan plan, ErrorRecord* record) {
  __shared__ int16_t staged[kStaged];
  __shared__ int count[kMostExperts], rank[kMostExperts], sums[kThreads / kWarp];
  bool bad = false;
  for (int i = threadIdx.x; i < pairs; i += kThreads) bad = bad || ids[i] < 0 || ids[i] >= experts;
  if (__syncthreads_or(bad)) {
    if (threadIdx.x != 0) return;
    *plan.used = 0;
    for (int i = 0; i < pairs; ++i)
      if (ids[i] < 0 || ids[i] >= experts) {
        report(record, Operator::grouped_expert_ffn, Reason::expert_id, ids[i], token_offset + i / k, i % k, experts);
        return;
      }
  }
  const auto each_id = [&](auto&& meet) {
    for (int start = 0; start < pairs; start += kStaged) {
      const int here = min(kStaged, pairs - start);
      __syncthreads();
      for (int i = threadIdx.x; i < here; i += kThreads) staged[i] = static_cast<int16_t>(ids[start + i]);
      __syncthreads();
      for (int e = threadIdx.x; e < experts; e += kThreads)
        for (int i = 0; i < here; ++i)
          if (staged[i] == e) meet(e, start + i);
    }
  };
  for (int e = threadIdx.x; e < experts; e += kThreads) count[e] = 0;
  each_id([&](int e, int) { ++count[e]; });
  __syncthreads();
  // Each thread has neighbouring experts; how many are used, and how many pairs they have, is summed up over threads.
  const int each = (experts + kThreads - 1) / kThreads, begin = threadIdx.x * each, end = min(begin + each, experts);
  int used = 0, index = 0;
  for (int e = begin; e < end; ++e) {
    used += count[e] != 0;
    index += count[e];
  }
  const int used_before = sum_before(used, sums), pairs_before = sum_before(index, sums);
  if (threadIdx.x == kThreads - 1) {
    *plan.used = used_before + used;
    plan.first[used_before + used] = pairs_before + index;
  }
  used = used_before, index = pairs_before;
  for (int e = begin; e < end; ++e) {
    rank[e] = index;
    if (!count[e]) continue;
    plan.expert[used] = e;
    plan.first[used++] = index;
    index += count[e];
  }
  __syncthreads();
  each_id([&](int e, int pair) {
    const int index = rank[e]++;
    plan.sorted[pair] = index;
    plan.token[index] = pair / k;
  });
}

}  // namespace trigraph::TRIGRAPH_ISA
