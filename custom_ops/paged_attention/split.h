// A step of attention as its parts see it, and the softmax of a tile's rows over a split of the cache.
#pragma once

#include "ragged.h"
#include "rotary.h"

namespace trigraph::TRIGRAPH_ISA {

constexpr int64_t kSplit = 256;     // positions that share one softmax; a score row is this long
constexpr int64_t kKeysAhead = 32;  // positions between a head in use and the one to ask memory for

// The positions that rows see by number: of one row some groups of consecutive ones, and of all rows what lies behind.
struct Selection {
  const int32_t* groups = nullptr;  // [top], ascending
  int64_t top = 0, size = 0;        // size: positions of a group
  int64_t tail = 0;                 // the first position behind the last whole group, or the first one that is seen

  int64_t position(int64_t i) const {
    return i < top * size ? int64_t{groups[i / size]} * size + i % size : tail + i - top * size;
  }
};

// What rows see is by number, in `selection`.
struct HeadTile : Run {
  int64_t head;  // of the cache
  Selection selection;
  int64_t seen;               // numbers that its first row sees
  int64_t further;            // those that each row sees beyond the row's before
  int64_t hidden = -kHidden;  // numbers that a window hides from its first row, and one more from each later row
  static constexpr int64_t kHidden = int64_t{1} << 40;  // none

  int64_t seen_by(int64_t row) const { return seen + row * further; }
  int64_t hidden_from(int64_t row) const { return std::max<int64_t>(0, hidden + row); }
  int64_t all_seen() const { return seen_by(count - 1); }
  int64_t splits() const { return (all_seen() + kSplit - 1) / kSplit; }
};

// Softmax of a tile's rows over some positions. A row that has none of them has sum 0, and no largest score.
struct Softmax {
  float* values;   // [rows, width] sums of exp(score - largest) * value
  float* largest;  // [rows]
  float* sum;      // [rows] sums of exp(score - largest)

  // Floats, in whole cache lines.
  static int64_t size(int64_t rows, int64_t width) { return (rows * (width + 2) + 15) / 16 * 16; }
  static Softmax at(float* memory, int64_t rows, int64_t width) {
    return {memory, memory + rows * width, memory + rows * (width + 1)};
  }
};

struct AttentionStep {
  const CacheShape& cache;
  const Sequences& sequences;
  const Rotary& rotary;
  const SightAttributes& sight;
  const float *q_gate, *norm, *angles;
  const void *keys, *values;
  float* out;
  int64_t group;  // query heads of a kv head
  int64_t rows;   // most rows of a tile
  bool rotated;   // the heads of the cache are, in Q8_0 blocks

  int64_t width() const { return cache.width; }
};

// The softmax of a tile's normed and rotated queries over a split, for a cache of T: q [rows, width], or rounded, as
// int8_scores.h has them.
using WalkSplit = void(const AttentionStep& step, const HeadTile& tile, const float* q, int64_t split,
                       const Softmax& result);
template <class T>
void walk_split(const AttentionStep& step, const HeadTile& tile, const float* q, int64_t split, const Softmax& result);

}  // namespace trigraph::TRIGRAPH_ISA
