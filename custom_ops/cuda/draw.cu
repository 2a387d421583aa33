// Tokens drawn from rows of logits where these are: what trigraph_draw (draw.cc) draws, to the bit, after top-k. No
// operator: hosts enqueue it behind a step, and read a number where they would read a row.
#include "race.cuh"

namespace trigraph::TRIGRAPH_ISA {
namespace {

constexpr int kMostWidth = 1 << 20;
constexpr int kMostRows = 64;  // of one launch

// grid: [kBlocks, rows]. `largest`: [rows, kShares]. The last block of a row draws. kWhole: rows are whole quads;
// others take more registers, and would spill if more blocks shared a multiprocessor.
template <bool kWhole>
__global__ void __launch_bounds__(kThreads, kWhole ? 5 : 4)
    draw_tokens(const float* logits, int width, const int64_t* tokens, const Draw* draws, Key* largest,
                unsigned* done) {
  __shared__ Key candidates[kMostCandidates];
  const Draw draw = draws[blockIdx.y];
  if (draw.temperature == 0) {
    if (blockIdx.x == 0 && threadIdx.x == 0) *draw.token = tokens[blockIdx.y];
    return;
  }
  const float* row = logits + int64_t{blockIdx.y} * width;
  largest += int64_t{blockIdx.y} * kShares;
  find_largest<kWhole>(row, width, largest);
  if (!is_last(done + blockIdx.y, gridDim.x)) return;
  const bool ordered = find_candidates<kWhole>(row, width, draw.top_k, largest, candidates);
  const int64_t winner = race(draw, candidates, ordered);
  if (threadIdx.x == 0) *draw.token = winner >= 0 || draw.only_drawn ? winner : tokens[blockIdx.y];
}

// What a host gives in one piece: counters, which are zero between launches, then keys.
constexpr int64_t kCounterBytes = kMostRows * 16;

}  // namespace
}  // namespace trigraph::TRIGRAPH_ISA

extern "C" {

// Bytes of zeroed device memory that trigraph_draw_rows needs for rows of this width; 0 where it cannot draw from them.
TRIGRAPH_EXPORT int64_t trigraph_draw_scratch(int64_t width) {
  using namespace trigraph::TRIGRAPH_ISA;
  if (width < 1 || width > kMostWidth) return 0;
  return kCounterBytes + kMostRows * kShares * static_cast<int64_t>(sizeof(Key));
}

// The most candidates of a row: the largest top-k.
TRIGRAPH_EXPORT int trigraph_draw_candidates() { return trigraph::TRIGRAPH_ISA::kMostCandidates; }

// Enqueues the draw of a token for each row of logits [rows, width] as its entry of `draws` says; all of it lies on the
// device. `tokens` [rows]: the most likely ones. Returns CUDA's own words for a failure, "" for none.
TRIGRAPH_EXPORT const char* trigraph_draw_rows(const float* logits, int64_t rows, int64_t width, const int64_t* tokens,
                                               const void* draws, void* scratch, void* stream) {
  using namespace trigraph::TRIGRAPH_ISA;
  auto* largest = reinterpret_cast<Key*>(static_cast<char*>(scratch) + kCounterBytes);
  try {
    for (int64_t first = 0; first < rows; first += kMostRows)
      launch(width % kQuad ? draw_tokens<false> : draw_tokens<true>,
             dim3(kBlocks, static_cast<unsigned>(std::min<int64_t>(kMostRows, rows - first))), kThreads, 0,
             static_cast<cudaStream_t>(stream), logits + first * width, static_cast<int>(width), tokens + first,
             static_cast<const Draw*>(draws) + first, largest, static_cast<unsigned*>(scratch));
  } catch (const std::exception& error) {
    thread_local char text[200];
    std::snprintf(text, sizeof text, "%s", error.what());
    return text;
  }
  return "";
}

}  // extern "C"
