// Tokens drawn from rows of logits where these are: what trigraph_draw (draw.cc) draws, to the bit, after top-k. No
// operator: hosts enqueue it behind a step, and read a number where they would read a row.
#include "../draw.h"
#include "last_block.cuh"
#include "ranked.cuh"

namespace trigraph::TRIGRAPH_ISA {
namespace {

constexpr int kThreads = 256;
constexpr int kEach = 16;  // logits of a thread
constexpr int kPart = kThreads * kEach;
constexpr int kMostParts = kThreads;
constexpr int kMostCandidates = 128;  // top-k
constexpr int kMostRows = 64;         // of one launch

// How a row's token is drawn, and where it goes. runtime/device/cuda_draws.py fills it in.
struct Draw {
  double temperature;  // 0: the most likely token, which the step has found
  double top_p, min_p;
  uint64_t seed, position;
  int64_t* token;
  int32_t top_k;
  int32_t only_drawn;  // where no logit is finite: -1, and not the step's token
};

// The first one of a block's, in every thread. `turn` alternates from call to call.
__device__ Ranked best_of_block(Ranked own, int turn) {
  __shared__ Ranked best[2][kThreads / kWarp];
  own = best_of_warp(own);
  if (threadIdx.x % kWarp == 0) best[turn][threadIdx.x / kWarp] = own;
  __syncthreads();
  own = best[turn][0];
  for (int i = 1; i < kThreads / kWarp; ++i)
    if (best[turn][i].before(own)) own = best[turn][i];
  return own;
}

// The `k` first ones of a block's part of a row, in order; a NaN anywhere makes the first one NaN.
__device__ void rank_part(const float* logits, int width, int k, Ranked* out) {
  const int start = static_cast<int>(blockIdx.x) * kPart + static_cast<int>(threadIdx.x);
  const Ranked none{-INFINITY, INT32_MAX};
  float x[kEach];
  bool unordered = false;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int id = start + i * kThreads;
    x[i] = id < width ? logits[id] : -INFINITY;
    unordered |= x[i] != x[i];
  }
  unsigned taken = 0;
  const auto best_left = [&] {
    Ranked own = none;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const Ranked other{x[i], start + i * kThreads};
      if (!(taken >> i & 1) && other.id < width && other.before(own)) own = other;
    }
    return own;
  };
  Ranked own = best_left();
  unordered = __syncthreads_or(unordered);
  for (int n = 0; n < k; ++n) {
    const Ranked best = best_of_block(own, n % 2);
    if (best.id == own.id && best.id < width) {
      taken |= 1u << ((best.id - start) / kThreads);
      own = best_left();
    }
    if (threadIdx.x == 0) out[n] = n == 0 && unordered ? Ranked{NAN, 0} : best;
  }
}

// The token of the row whose `k` likeliest are these.
__device__ void race(const Draw& draw, const Ranked* likeliest, bool unordered, int64_t step_token) {
  __shared__ double weight[kMostCandidates], time[kMostCandidates];
  if (unordered || !(fabsf(likeliest[0].value) < INFINITY)) {
    if (threadIdx.x == 0) *draw.token = draw.only_drawn ? -1 : step_token;
    return;
  }
  const uint64_t key = draws::key_of(draw.seed, draw.position);
  if (static_cast<int>(threadIdx.x) < draw.top_k) {
    const Ranked own = likeliest[threadIdx.x];
    weight[threadIdx.x] = draws::weight_of(own.value, likeliest[0].value, draw.temperature);
    time[threadIdx.x] = draws::time_of(key, own.id, weight[threadIdx.x]);
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  double total = 0, sum = 0, best = INFINITY;
  for (int i = 0; i < draw.top_k; ++i) total += weight[i];
  int64_t winner = -1;
  for (int i = 0; i < draw.top_k; ++i) {
    if (weight[i] == 0 || weight[i] < draw.min_p) break;
    if (time[i] < best || (time[i] == best && likeliest[i].id < winner)) best = time[i], winner = likeliest[i].id;
    sum += weight[i];
    if (draw.top_p < 1 && sum >= draw.top_p * total) break;
  }
  *draw.token = winner;
}

// grid: [parts, rows]. `best`: [rows, parts, kMostCandidates]. The last block of a row ranks what the others found.
__global__ void __launch_bounds__(kThreads) draw_tokens(const float* logits, int width, const int64_t* tokens,
                                                        const Draw* draws, Ranked* best, unsigned* done) {
  __shared__ Ranked likeliest[kMostCandidates];
  const Draw draw = draws[blockIdx.y];
  if (draw.temperature == 0) {
    if (blockIdx.x == 0 && threadIdx.x == 0) *draw.token = tokens[blockIdx.y];
    return;
  }
  const int parts = static_cast<int>(gridDim.x);
  best += int64_t{blockIdx.y} * parts * kMostCandidates;
  rank_part(logits + int64_t{blockIdx.y} * width, width, draw.top_k, best + int64_t{blockIdx.x} * kMostCandidates);
  if (!is_last(done + blockIdx.y, gridDim.x)) return;
  // Each thread walks one part's list, the best of whose heads is the next one.
  const Ranked none{-INFINITY, INT32_MAX}, *list = best + int64_t{threadIdx.x} * kMostCandidates;
  int head = 0;
  const bool walks = static_cast<int>(threadIdx.x) < parts;
  Ranked own = walks ? list[0] : none;
  const bool unordered = __syncthreads_or(own.value != own.value);
  for (int n = 0; n < draw.top_k && !unordered; ++n) {
    const Ranked next = best_of_block(own, n % 2);
    if (threadIdx.x == 0) likeliest[n] = next;
    if (walks && next.id == own.id) own = ++head < draw.top_k ? list[head] : none;
  }
  __syncthreads();
  race(draw, likeliest, unordered, tokens[blockIdx.y]);
}

// What a host gives in one piece: counters, which are zero between launches, then candidates.
constexpr int64_t kCounterBytes = kMostRows * 16;

int64_t parts_of(int64_t width) { return blocks_of(width, kPart); }

}  // namespace
}  // namespace trigraph::TRIGRAPH_ISA

extern "C" {

// Bytes of zeroed device memory that trigraph_draw_rows needs for rows of this width; 0 where it cannot draw from them.
TRIGRAPH_EXPORT int64_t trigraph_draw_scratch(int64_t width) {
  using namespace trigraph::TRIGRAPH_ISA;
  if (width < 1 || parts_of(width) > kMostParts) return 0;
  return kCounterBytes + kMostRows * parts_of(width) * kMostCandidates * static_cast<int64_t>(sizeof(Ranked));
}

// The most candidates of a row: the largest top-k.
TRIGRAPH_EXPORT int trigraph_draw_candidates() { return trigraph::TRIGRAPH_ISA::kMostCandidates; }

// Enqueues the draw of a token for each row of logits [rows, width] as its entry of `draws` says; all of it lies on the
// device. `tokens` [rows]: the most likely ones. Returns CUDA's own words for a failure, "" for none.
TRIGRAPH_EXPORT const char* trigraph_draw_rows(const float* logits, int64_t rows, int64_t width, const int64_t* tokens,
                                               const void* draws, void* scratch, void* stream) {
  using namespace trigraph::TRIGRAPH_ISA;
  auto* best = reinterpret_cast<Ranked*>(static_cast<char*>(scratch) + kCounterBytes);
  try {
    for (int64_t first = 0; first < rows; first += kMostRows)
      launch(draw_tokens,
             dim3(static_cast<unsigned>(parts_of(width)),
                  static_cast<unsigned>(std::min<int64_t>(kMostRows, rows - first))),
             kThreads, 0, static_cast<cudaStream_t>(stream), logits + first * width, static_cast<int>(width),
             tokens + first, static_cast<const Draw*>(draws) + first, best, static_cast<unsigned*>(scratch));
  } catch (const std::exception& error) {
    thread_local char text[200];
    std::snprintf(text, sizeof text, "%s", error.what());
    return text;
  }
  return "";
}

}  // extern "C"
