// The largest logits of a row, for samplers: one pass over what a step has just written.
#include <algorithm>
#include <cstdint>

#include "ort_api.h"

namespace {

constexpr int64_t kBlock = 64;  // logits that are passed over together when none of them counts

bool any_counts(const float* logits, int64_t count, float bound) {
  int above = 0;  // counted, not sought: such a loop becomes vector instructions
  for (int64_t i = 0; i < count; ++i) above += !(logits[i] <= bound);
  return above > 0;
}

}  // namespace

// Writes the k largest of `count` logits and their ids, largest first, ties to the lowest id, and returns how many that
// are. Where there is NaN, that alone: nobody can say what is larger.
extern "C" TRIGRAPH_EXPORT int64_t trigraph_top_logits(const float* logits, int64_t count, int64_t k, int64_t* ids,
                                                       float* values) {
  auto better = [logits](int64_t a, int64_t b) { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; };
  int64_t found = 0;  // a heap with the worst one in front; ids ascend, so an equal logit is no better
  for (int64_t start = 0; start < count; start += kBlock) {
    int64_t stop = std::min(start + kBlock, count);
    if (found == k && !any_counts(logits + start, stop - start, logits[ids[0]])) continue;
    for (int64_t i = start; i < stop; ++i) {
      if (found == k && logits[i] <= logits[ids[0]]) continue;
      if (logits[i] != logits[i]) {
        ids[0] = i;
        values[0] = logits[i];
        return 1;
      }
      if (found == k) std::pop_heap(ids, ids + found--, better);
      ids[found++] = i;
      std::push_heap(ids, ids + found, better);
    }
  }
  std::sort_heap(ids, ids + found, better);
  for (int64_t i = 0; i < found; ++i) values[i] = logits[ids[i]];
  return found;
}
