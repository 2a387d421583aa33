// The (token, slot) pairs of a step, sorted by expert by one block: so the rows of a chosen expert are read once for
// all its tokens.
#pragma once

#include "../cuda/device_error.cuh"

namespace trigraph::TRIGRAPH_ISA {

constexpr int kThreads = 256;
constexpr int kMostExperts = 1024;
constexpr int kBucketThreads = kMostExperts;

// The pairs of a step, sorted by expert; those of an expert in any order, in buckets of at most `rows`. Groups of
// experts follow each other: those that the device holds, then batches of others, whose weights come one after the
// other.
struct Plan {
  int64_t groups, room;  // room: buckets of a group, at most
  int rows;
  int* good;        // 0 for a step with a bad id
  int* used;        // [groups] buckets; none for a step with a bad id
  int* expert;      // [groups, room] of the group's stacks
  int* first;       // [groups, room + 1] sorted indices
  int* token;       // [pairs] by sorted index
  int* sorted;      // [pairs] sorted index of each pair
  unsigned* taken;  // [groups] of Buckets
  static int64_t most(int64_t pairs, int64_t experts, int rows = Buckets::kMost) {
    return std::min(pairs, experts + pairs / rows);
  }
  // `experts`: of the largest group.
  static int64_t size(int64_t pairs, int64_t experts, int64_t groups = 1) {
    return 1 + groups * (3 + 2 * most(pairs, experts)) + 2 * pairs;
  }
  Plan(int* memory, int64_t pairs, int64_t experts, int rows, int64_t groups = 1)
      : groups(groups),
        room(most(pairs, experts, rows)),
        rows(rows),
        good(memory),
        used(good + 1),
        expert(used + groups),
        first(expert + groups * room),
        token(first + groups * (room + 1)),
        sorted(token + pairs),
        taken(reinterpret_cast<unsigned*>(sorted + pairs)) {}
  Buckets buckets(int64_t group, const int* source) const {
    return {used + group, expert + group * room, first + group * (room + 1), source, taken + group, rows};
  }
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

// An expert's place in the order of a plan, and where its weights are.
struct Rank {
  int group, first;  // the group's first rank
  int matrix;        // in the group's stacks
};

// One block. Threads take places of an expert in any order: rows of products do not depend on each other. `slots`:
// where in its stack the device has each expert, -1 for one that it has not got; nullptr: it has all of them in order.
// Those that it has not got come in batches of `batch`, in order; 0: their pairs are left out.
__global__ void __launch_bounds__(kBucketThreads)
    bucket(const int64_t* ids, int pairs, int k, int experts, const int* slots, int batch, int64_t token_offset,
           Plan plan, ErrorRecord* record) {
  __shared__ Rank ranks[kMostExperts];
  __shared__ int rank_of[kMostExperts], place[kMostExperts], before[kMostExperts], sums[kBucketThreads / kWarp];
  __shared__ int held;
  const int e = static_cast<int>(threadIdx.x);
  const int slot = e >= experts ? -1 : slots ? slots[e] : e;
  const bool missing = e < experts && slot < 0;
  const int number = slots ? sum_before(missing, sums) : 0;  // among those that the device has not got
  if (e == experts - 1) held = experts - number - missing;
  place[e] = 0;
  __syncthreads();
  const int rank = e >= experts ? -1 : !missing ? e - number : batch ? held + number : -1;
  if (e < experts) rank_of[e] = rank;
  if (rank >= 0 && !missing) ranks[rank] = {0, 0, slot};
  if (rank >= 0 && missing) ranks[rank] = {1 + number / batch, rank - number % batch, number % batch};
  if (e < plan.groups) plan.used[e] = 0, plan.taken[e] = 0;
  __syncthreads();
  bool bad = false;
  for (int i = e; i < pairs; i += kBucketThreads) {
    const int64_t id = ids[i];
    if (id < 0 || id >= experts)
      bad = true;
    else if (rank_of[id] >= 0)
      atomicAdd(&place[rank_of[id]], 1);
  }
  bad = __syncthreads_or(bad);
  if (e == 0) *plan.good = !bad;
  if (bad) {
    if (e != 0) return;
    for (int i = 0; i < pairs; ++i)
      if (ids[i] < 0 || ids[i] >= experts) {
        report(record, Operator::grouped_expert_ffn, Reason::expert_id, ids[i], token_offset + i / k, i % k, experts);
        return;
      }
  }
  // From here on a thread has a rank: how many buckets and pairs there are before it.
  const int count = place[e], own = (count + plan.rows - 1) / plan.rows;
  const int used = sum_before(own, sums), first = sum_before(count, sums);
  place[e] = first, before[e] = used;
  __syncthreads();
  const int end = batch ? experts : held;  // of ranks
  if (e < end && ranks[e].group < plan.groups) {
    const Rank& own_rank = ranks[e];
    const int64_t group = own_rank.group, in_group = used - before[own_rank.first];
    int *expert = plan.expert + group * plan.room + in_group, *start = plan.first + group * (plan.room + 1) + in_group;
    for (int i = 0; i < own; ++i) expert[i] = own_rank.matrix, start[i] = first + i * plan.rows;
    if (e + 1 == end || ranks[e + 1].group != group)
      plan.used[group] = static_cast<int>(in_group) + own, start[own] = first + count;
  }
  for (int i = e; i < pairs; i += kBucketThreads) {
    const int rank_of_pair = rank_of[ids[i]];
    if (rank_of_pair < 0) continue;
    const int index = atomicAdd(&place[rank_of_pair], 1);
    plan.sorted[i] = index;
    plan.token[index] = i / k;
  }
}

}  // namespace
}  // namespace trigraph::TRIGRAPH_ISA
