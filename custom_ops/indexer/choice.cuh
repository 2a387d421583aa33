// The numbers of the largest scores on a device, ascending: of equal ones the first, NaN last.
#pragma once

#include "../cuda/platform.cuh"

namespace trigraph::TRIGRAPH_ISA {

constexpr int kChoiceThreads = 1024;

// The choice of one block, in shared memory. The least score that is chosen is found by its digits, from the highest
// on: each time the scores that begin with those found so far are counted by their next one.
struct Choice {
  static constexpr int kWarps = kChoiceThreads / kWarp, kDigits = 2 * kChoiceThreads;

  int count[kDigits];  // of scores with a digit
  int of_warp[kWarps], equal[kWarps];
  int digit, left;

  // Scores are not negative. As whole numbers of 31 bits in the same order, 0 for NaN.
  static __device__ uint32_t key(float score) { return score != score ? 0 : __float_as_uint(score) + 1; }

  // The numbers of `top` of `size` scores, which are more; the whole block calls.
  __device__ void run(const float* scores, int size, int top, int32_t* out) {
    uint32_t least = 0;
    if (threadIdx.x == 0) left = top;
    for (int end = 31; end;) {
      const int bits = end == 31 ? 11 : 10;
      find_digit(scores, size, end, bits, least);
      least = least << bits | static_cast<uint32_t>(digit);
      end -= bits;
    }
    write(scores, size, least, out);
  }

 private:
  // The digit of `bits` bits below bit `end` of the least score that is chosen, and how many of those with it are.
  __device__ void find_digit(const float* scores, int size, int end, int bits, uint32_t found) {
    const int thread = static_cast<int>(threadIdx.x);
    count[2 * thread] = count[2 * thread + 1] = 0;
    __syncthreads();
    for (int i = thread; i < size; i += kChoiceThreads) {
      const uint32_t whole = key(scores[i]);
      if (whole >> end == found) atomicAdd(count + (whole >> (end - bits) & ((1u << bits) - 1)), 1);
    }
    __syncthreads();
    // The highest digits are those of the first threads.
    const int high = kDigits - 1 - 2 * thread, own = count[high] + count[high - 1], wanted = left;
    const int before = sum_before(own);
    if (before < wanted && wanted <= before + own) {
      const bool first = wanted <= before + count[high];
      digit = first ? high : high - 1;
      left = wanted - before - (first ? 0 : count[high]);
    }
    __syncthreads();
  }

  // The sum of what the threads before give.
  __device__ int sum_before(int own) {
    const int lane = threadIdx.x % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
    int sum = own;
    for (int offset = 1; offset < kWarp; offset *= 2) {
      const int other = __shfl_up_sync(kAllLanes, sum, offset);
      if (lane >= offset) sum += other;
    }
    if (lane == kWarp - 1) of_warp[warp] = sum;
    __syncthreads();
    return sum - own + of_warps_before(of_warp);
  }
  static __device__ int of_warps_before(const int* value) {
    const int lane = threadIdx.x % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
    return lane_sum(lane < warp ? value[lane] : 0);
  }

  // All above the least score, and the first `left` of those that equal it. A warp has neighbours.
  __device__ void write(const float* scores, int size, uint32_t least, int32_t* out) {
    const int lane = threadIdx.x % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
    const int share = (size + kChoiceThreads - 1) / kChoiceThreads * kWarp;
    const int begin = warp * share, end = min(size, begin + share);
    int above = 0, same = 0;
    for (int at = begin; at < end; at += kWarp) {
      const uint32_t own = at + lane < end ? key(scores[at + lane]) : 0;
      above += __popc(__ballot_sync(kAllLanes, own > least));
      same += __popc(__ballot_sync(kAllLanes, at + lane < end && own == least));
    }
    if (lane == 0) equal[warp] = same;
    __syncthreads();
    int same_before = of_warps_before(equal);
    if (lane == 0) of_warp[warp] = above + max(0, min(same, left - same_before));
    __syncthreads();
    int written = of_warps_before(of_warp);
    const uint32_t before = (1u << lane) - 1;  // lanes
    for (int at = begin; at < end; at += kWarp) {
      const int i = at + lane;
      const uint32_t own = i < end ? key(scores[i]) : 0;
      const uint32_t equals = __ballot_sync(kAllLanes, i < end && own == least);
      const bool taken = own > least || ((equals >> lane & 1) && same_before + __popc(equals & before) < left);
      const uint32_t all = __ballot_sync(kAllLanes, taken);
      if (taken) out[written + __popc(all & before)] = i;
      written += __popc(all);
      same_before += __popc(equals);
    }
  }
};

}  // namespace trigraph::TRIGRAPH_ISA
