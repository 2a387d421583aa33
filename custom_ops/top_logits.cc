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
constexpr int64_t kRoom =
    kMostGroups / kLeastDepth * (kLeastDepth + 1) + kLanes;  // groups when depths are rounded down
constexpr int kHalvings = 12;
constexpr int64_t kFew = 64;  // candidates that are ordered by counting

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

// The largest logit of each group, those of a part together; -inf for those of none.
struct Groups {
  float largest[kRoom];
  int64_t count = 0;
  bool nan = false;  // whether there is NaN anywhere

  const float* begin() const { return largest; }
  const float* end() const { return largest + count; }
};

// `found` has the groups of `depth` logits.
void find_largest(const float* logits, int64_t count, int64_t depth, Groups& found) {
  const int64_t part = depth * kLanes;
  found.count = (count + part - 1) / part * kLanes;
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
    std::memcpy(&found.largest[group], largest.most, sizeof largest.most);
  }
  found.nan = largest.unordered[0] | largest.unordered[1] | largest.unordered[2] | largest.unordered[3];
}

// A number that at least k of the largest reach, and few more.
float reached_by(const Groups& groups, int64_t k) {
  if (groups.count < k) return kLeast;
  float low = groups.largest[0], high = groups.largest[0];
  for (float x : groups) low = x < low ? x : low, high = x > high ? x : high;
  for (int i = 0; i < kHalvings; ++i) {
    const float middle = low / 2 + high / 2;
    int reached = 0;
    for (float x : groups) reached += x >= middle;
    (reached >= k ? low : high) = middle;
    if (reached >= k && reached <= k + k / 4) break;
  }
  return low;
}

// The places of logits that reach a bound: the first few of them, and all of them where there are more.
struct Candidates {
  int64_t few[kFew];
  int64_t count = 0;
  std::vector<int64_t> all;

  void add(int64_t place) {
    if (count == kFew) all.assign(few, few + kFew);
    if (count < kFew)
      few[count] = place;
    else
      all.push_back(place);
    ++count;
  }
};

bool before(const float* logits, int64_t a, int64_t b) {
  return (logits[a] > logits[b]) | ((logits[a] == logits[b]) & (a < b));
}

// Writes the first k of the candidates in order. Each one's place is the number of those before it.
void order_few(const float* logits, const Candidates& found, int64_t k, int64_t* ids) {
  float values[kFew];
  int numbers[kFew];  // in the order of the ids
  for (int64_t i = 0; i < found.count; ++i) {
    values[i] = logits[found.few[i]];
    numbers[i] = static_cast<int>(found.few[i] - found.few[0]);
  }
  for (int64_t i = 0; i < found.count; ++i) {
    const float value = values[i];
    const int number = numbers[i];
    int place = 0;
    for (int64_t j = 0; j < found.count; ++j)
      place += (values[j] > value) | ((values[j] == value) & (numbers[j] < number));
    if (place < k) ids[place] = found.few[i];
  }
}

}  // namespace

// Writes the k largest of `count` logits and their ids, largest first, ties to the lowest id, and returns how many that
// are. Where there is NaN, that alone: nobody can say what is larger.
extern "C" TRIGRAPH_EXPORT int64_t trigraph_top_logits(const float* logits, int64_t count, int64_t k, int64_t* ids,
                                                       float* values) {
  const int64_t depth = std::max(count / kMostGroups, kLeastDepth);
  Groups groups;
  find_largest(logits, count, depth, groups);
  if (groups.nan) {
    ids[0] = 0;
    while (logits[ids[0]] == logits[ids[0]]) ++ids[0];
    values[0] = logits[ids[0]];
    return 1;
  }
  const float bound = reached_by(groups, k);
  Candidates found;
  for (int64_t group = 0; group < groups.count; ++group) {
    if (groups.largest[group] < bound) continue;
    const int64_t start = group / kLanes * depth * kLanes;
    for (int64_t i = start + group % kLanes; i < std::min(start + depth * kLanes, count); i += kLanes)
      if (logits[i] >= bound) found.add(i);
  }
  k = std::min(k, found.count);
  if (found.count <= kFew) {
    order_few(logits, found, k, ids);
  } else {
    std::partial_sort(found.all.begin(), found.all.begin() + k, found.all.end(),
                      [logits](int64_t a, int64_t b) { return before(logits, a, b); });
    std::copy_n(found.all.begin(), k, ids);
  }
  for (int64_t i = 0; i < k; ++i) values[i] = logits[ids[i]];
  return k;
}
