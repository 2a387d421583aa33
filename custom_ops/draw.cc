// The random choice of a token from a row of logits. runtime/sampling/draws.py is the same in NumPy, to the bit.
#include "draw.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "ort_api.h"

extern "C" int64_t trigraph_top_logits(const float* logits, int64_t count, int64_t k, int64_t* ids, float* values);

namespace {

using namespace trigraph::draws;

constexpr int64_t kFew = 256;   // candidates that top-p and min-p are tried on first, where top-k sets no limit
constexpr int64_t kBlock = 64;  // tokens that are passed over together when none of them can win

// A row of logits; `ids` names their tokens, which otherwise are 0, 1, ..
struct Row {
  const float* logits;
  const int64_t* ids;
  int64_t count;
  double temperature;
  double largest = 0;

  int64_t token(int64_t i) const { return ids ? ids[i] : i; }
  double weight(float logit) const { return weight_of(logit, largest, temperature); }
};

struct Filters {
  int64_t top_k;
  double top_p, min_p;
};

// The least of time / weight wins, where a token's time is an exponential random number; ties to the lowest id.
struct Race {
  uint64_t key;
  int64_t winner = -1;
  double best = std::numeric_limits<double>::infinity();

  void enter(int64_t token, double weight) {
    double time = time_of(key, token, weight);
    if (time < best || (time == best && token < winner)) {
      best = time;
      winner = token;
    }
  }

  // A time is at least 1 - its number, and a weight is at most 1. The margin is for rounding.
  bool open_to(int64_t token) const { return 1 - uniform(key, token) < best * (1 + 1e-9); }
};

// The race of the most likely `k`, as far as the filters let them in; false where they might let in more than k.
bool race_of_few(Row& row, int64_t k, double total, const Filters& filters, Race& race) {
  std::vector<int64_t> places(k);
  std::vector<float> values(k);
  std::vector<double> weights(k);
  int64_t found = trigraph_top_logits(row.logits, row.count, k, places.data(), values.data());
  if (found == 0 || !std::isfinite(values[0])) return true;
  row.largest = values[0];
  for (int64_t i = 0; i < found; ++i) weights[i] = row.weight(values[i]);
  if (filters.top_k > 0) {
    total = 0;
    for (int64_t i = 0; i < found; ++i) total += weights[i];
  }
  double sum = 0;
  int64_t kept = 0;
  bool ended = false;
  while (!ended && kept < found) {
    if (weights[kept] == 0 || weights[kept] < filters.min_p) break;
    sum += weights[kept++];
    ended = filters.top_p < 1 && sum >= filters.top_p * total;
  }
  if (!ended && kept == k && k < row.count && filters.top_k == 0) return false;
  for (int64_t i = 0; i < kept; ++i) race.enter(row.token(places[i]), weights[i]);
  return true;
}

void race_of_all(const Row& row, int64_t likely, Race& race) {
  race.enter(row.token(likely), 1);
  for (int64_t start = 0; start < row.count; start += kBlock) {
    int64_t stop = std::min(start + kBlock, row.count);
    int close = 0;  // counted, not sought: such a loop becomes vector instructions
    for (int64_t i = start; i < stop; ++i) close += race.open_to(row.token(i));
    for (int64_t i = start; close && i < stop; ++i) {
      if (i == likely || !race.open_to(row.token(i))) continue;
      double weight = row.weight(row.logits[i]);
      if (weight > 0) race.enter(row.token(i), weight);
    }
  }
}

double sum_of_weights(const Row& row) {
  std::vector<double> weights(row.count);
  for (int64_t i = 0; i < row.count; ++i) weights[i] = row.weight(row.logits[i]);
  double total = 0;
  for (double weight : weights) total += weight;
  return total;
}

}  // namespace

// The token that is drawn from `count` logits, of tokens `ids` (null: of the first tokens), at `position` with `seed`,
// after the filters top-k (0: off), top-p (1: off) and min-p (0: off). -1 where the largest logit is not finite.
extern "C" TRIGRAPH_EXPORT int64_t trigraph_draw(const float* logits, const int64_t* ids, int64_t count,
                                                 double temperature, int64_t top_k, double top_p, double min_p,
                                                 uint64_t seed, uint64_t position) {
  Row row{logits, ids, count, temperature};
  Filters filters{top_k, top_p, min_p};
  Race race{key_of(seed, position)};
  double total = 0;
  if (top_k == 0) {
    int64_t likely;
    float largest;
    if (trigraph_top_logits(logits, count, 1, &likely, &largest) == 0 || !std::isfinite(largest)) return -1;
    row.largest = largest;
    if (top_p == 1 && min_p == 0) {
      race_of_all(row, likely, race);
      return race.winner;
    }
    if (top_p < 1) total = sum_of_weights(row);
  }
  int64_t k = std::min(top_k > 0 ? top_k : kFew, count);
  while (!race_of_few(row, k, total, filters, race)) k = std::min(16 * k, count);
  return race.winner;
}
