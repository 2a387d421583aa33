// The largest logits of a row, for samplers: one pass over what a step has just written, and another one over the few
// places where the largest can be. Conditions are counted, not sought: such loops become vector instructions, and what
// logits are is nothing that a processor could foresee.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "ort_api.h"

namespace {

constexpr int64_t kLanes = 16;  // groups side by side: logit i belongs to group i mod 16 of its part
constexpr int64_t kLeastDepth = 16, kMostGroups = 2048;
constexpr int kHalvings = 12;

constexpr float kLeast = -std::numeric_limits<float>::infinity();
using Four = float __attribute__((vector_size(16)));
using Flags = int __attribute__((vector_size(16)));

// The largest logits of as many groups, and whether there was NaN.
struct Largest {
  Four most[kLanes / 4];
  Flags unordered{};

  void take(const float* logits) {
    for (Four& m : most) {
      Four x;
      std::memcpy(&x, logits, sizeof x);
      m = x > m ? x : m;
      unordered |= x != x;
      logits += 4;
    }
  }
};

// The largest logit of each group of `depth` logits, those of a part together; -inf for those of none. `nan`: whether
// there is NaN anywhere.
std::vector<float> largest_of_groups(const float* logits, int64_t count, int64_t depth, bool* nan) {
  const int64_t part = depth * kLanes;
  std::vector<float> found((count + part - 1) / part * kLanes);
  Largest largest;
  for (int64_t start = 0, group = 0; start < count; start += part, group += kLanes) {
    const int64_t stop = std::min(start + part, count);
    for (Four& m : largest.most) m = Four{} + kLeast;
    int64_t i = start;
    for (; i + kLanes <= stop; i += kLanes) largest.take(logits + i);
    if (i < stop) {
      float rest[kLanes];
      std::fill(std::copy(logits + i, logits + stop, rest), rest + kLanes, kLeast);
      largest.take(rest);
    }
    std::memcpy(&found[group], largest.most, sizeof largest.most);
  }
  *nan = largest.unordered[0] | largest.unordered[1] | largest.unordered[2] | largest.unordered[3];
  return found;
}

// A number that at least k of the largest reach, and few more.
float reached_by(const std::vector<float>& largest, int64_t k) {
  if (static_cast<int64_t>(largest.size()) < k) return kLeast;
  float low = largest[0], high = largest[0];
  for (float x : largest) low = x < low ? x : low, high = x > high ? x : high;
  for (int i = 0; i < kHalvings; ++i) {
    const float middle = low / 2 + high / 2;
    int reached = 0;
    for (float x : largest) reached += x >= middle;
    (reached >= k ? low : high) = middle;
    if (reached >= k && reached <= k + k / 4) break;
  }
  return low;
}

}  // namespace

// Writes the k largest of `count` logits and their ids, largest first, ties to the lowest id, and returns how many that
// are. Where there is NaN, that alone: nobody can say what is larger.
extern "C" TRIGRAPH_EXPORT int64_t trigraph_top_logits(const float* logits, int64_t count, int64_t k, int64_t* ids,
                                                       float* values) {
  const int64_t depth = std::max(count / kMostGroups, kLeastDepth);
  bool nan;
  const std::vector<float> largest = largest_of_groups(logits, count, depth, &nan);
  if (nan) {
    ids[0] = 0;
    while (logits[ids[0]] == logits[ids[0]]) ++ids[0];
    values[0] = logits[ids[0]];
    return 1;
  }
  const float bound = reached_by(largest, k);
  std::vector<int64_t> found;
  found.reserve(2 * k);
  for (int64_t group = 0; group < static_cast<int64_t>(largest.size()); ++group) {
    if (largest[group] < bound) continue;
    const int64_t start = group / kLanes * depth * kLanes;
    for (int64_t i = start + group % kLanes; i < std::min(start + depth * kLanes, count); i += kLanes)
      if (logits[i] >= bound) found.push_back(i);
  }
  auto better = [logits](int64_t a, int64_t b) { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; };
  k = std::min(k, static_cast<int64_t>(found.size()));
  std::partial_sort(found.begin(), found.begin() + k, found.end(), better);
  std::copy_n(found.begin(), k, ids);
  for (int64_t i = 0; i < k; ++i) values[i] = logits[ids[i]];
  return k;
}
