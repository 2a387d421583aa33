// The walk through a block drafter's candidates where these are, to the bit that of runtime/execution/executor.py: a
// draft is chosen by its scores after the one before it. No operator: hosts enqueue it behind the block.
#include "race.cuh"

namespace trigraph::TRIGRAPH_ISA {
namespace {

static_assert(kThreads >= 256);  // candidates of a row, at most: models/drafter/config.py
constexpr int kMostWalks = 64;   // of one launch

struct Walk {
  int32_t row;    // of the sequence's first draft
  int32_t draw;   // the first of its draws
  int32_t count;  // of its drafts
};
struct Walks {
  Walk of[kMostWalks];
};

// The place of the largest score as NumPy finds it: the first one, and NaN before all others.
__device__ int best_of(const float* scores, int count) {
  int best = 0;
  float largest = scores[0];
  for (int i = 1; i < count && largest == largest; ++i) {
    const float score = scores[i];
    if (score > largest || score != score) best = i, largest = score;
  }
  return best;
}

// candidates [rows, count], edges [rows, predecessors, count]. grid: sequences.
__global__ void __launch_bounds__(kThreads)
    walk_blocks(const int64_t* candidates, const float* edges, int count, int predecessors,
                const __grid_constant__ Walks walks, const Draw* draws) {
  __shared__ float scores[kThreads];
  __shared__ int64_t ids[kThreads];
  __shared__ Key keys[kThreads], likeliest[kMostCandidates];
  __shared__ int before;
  __shared__ Draw draw;
  const Walk& walk = walks.of[blockIdx.x];
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) before = 0;
  for (int n = 0; n < walk.count; ++n) {
    const int64_t row = int64_t{walk.row} + n;
    __syncthreads();
    if (thread == 0) draw = draws[walk.draw + n];
    if (thread < kMostCandidates) likeliest[thread] = kNone;
    keys[thread] = kNone;
    if (thread < count) {
      scores[thread] = edges[(row * predecessors + before % predecessors) * count + thread];
      ids[thread] = candidates[row * count + thread];
      keys[thread] = key_of(scores[thread], static_cast<int>(ids[thread]));
    }
    const bool ordered = !__syncthreads_or(keys[thread] == kUnordered);
    int64_t token = -1;
    if (draw.temperature != 0) {
      if (const int rank = rank_of(keys[thread], keys, count); thread < count && rank < kMostCandidates)
        likeliest[rank] = keys[thread];
      __syncthreads();
      token = race(draw, likeliest, ordered);
    }
    if (thread != 0) continue;
    int place = 0;
    if (token < 0) place = best_of(scores, count);
    while (token >= 0 && ids[place] != token) ++place;
    *draw.token = ids[place];
    before = place;
  }
}

}  // namespace
}  // namespace trigraph::TRIGRAPH_ISA

// Enqueues the walks of `sequences` through candidates [rows, count] by edges [rows, predecessors, count], which lie on
// the device as `draws` do. Sequence i has counts[i] drafts, the first one of row rows[i], and as many draws, behind
// those of the sequences before. Returns CUDA's own words for a failure, "" for none.
extern "C" TRIGRAPH_EXPORT const char* trigraph_walk_blocks(const int64_t* candidates, const float* edges,
                                                            int64_t count, int64_t predecessors, int64_t sequences,
                                                            const int32_t* rows, const int32_t* counts,
                                                            const void* draws, void* stream) {
  using namespace trigraph::TRIGRAPH_ISA;
  try {
    int32_t draw = 0;
    for (int64_t first = 0; first < sequences; first += kMostWalks) {
      const int64_t together = std::min<int64_t>(kMostWalks, sequences - first);
      Walks walks{};
      for (int64_t i = 0; i < together; ++i) {
        walks.of[i] = {rows[first + i], draw, counts[first + i]};
        draw += counts[first + i];
      }
      launch(walk_blocks, static_cast<unsigned>(together), kThreads, 0, static_cast<cudaStream_t>(stream), candidates,
             edges, static_cast<int>(count), static_cast<int>(predecessors), walks, static_cast<const Draw*>(draws));
    }
  } catch (const std::exception& error) {
    thread_local char text[200];
    std::snprintf(text, sizeof text, "%s", error.what());
    return text;
  }
  return "";
}
