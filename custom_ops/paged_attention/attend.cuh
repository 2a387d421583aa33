// The parts of a device's attention. A block has a tile: consecutive queries of one kv head in one sequence, which
// share its reads of a split's keys and values. What a block does to a query depends on that query's splits alone.
#pragma once

#include "lists.cuh"
#include "scores.cuh"

namespace trigraph::TRIGRAPH_ISA {

constexpr int kPiece = 32;                    // bytes that one prefetch asks for
constexpr float kNoScore = -3.402823466e38f;  // softmax.h's

struct AttentionShape {
  int width, kv_heads, group, stride;
  int parts;                         // of a head of q_gate: a query, and its gate if there is one
  int key_rotation, value_rotation;  // 0: the cache is not rotated
  __host__ __device__ int heads() const { return kv_heads * group; }
};

// Queries `first` to `first + count` of a sequence's: those of a row's group side by side, then the next row's; of one
// row only, where rows have lists.
struct AttendTile {
  int start, past;  // row and position where the sequence's rows begin
  int sequence, first, count;
  unsigned
      before;  // splits of the tiles before, each of which has as many as its sequence's last one, or lists at most
  int last;    // of the positions that its last query sees, the last one's number
  int offset;  // the position with number 0
  int most;    // the number of its sequence's last position

  // Tile `index` of a step, or one of no queries behind the last. Of a step that does not hold it may be any tile: no
  // number that a caller may give overflows.
  __device__ AttendTile(const Ragged& sequences, const Lists& lists, int group, int queries, unsigned index)
      : start(0), past(0), sequence(0), first(0), count(0), before(0), last(0), offset(0), most(0) {
    if (lists.groups) {
      of_row(sequences, lists, group, queries, index);
      return;
    }
    for (; sequence < sequences.sequences; ++sequence) {
      start = sequences.starts[sequence], past = sequences.past[sequence];
      const unsigned rows = unsigned(sequences.starts[sequence + 1]) - unsigned(start), all = rows * group;
      const unsigned tiles = (all + queries - 1) / queries, begin = index * queries;
      offset = lists.first_seen(past), most = static_cast<int>(unsigned(past) + rows - 1 - offset);
      before += min(index, tiles) * (unsigned(most) / kSplit + 1);
      if (begin < all) {
        first = static_cast<int>(begin), count = static_cast<int>(min(unsigned(queries), all - begin));
        last = last_of(lists, static_cast<int>((begin + count - 1) / group));
        return;
      }
      index -= tiles;
    }
  }
  __device__ int splits() const { return last / kSplit + 1; }
  // The number of the last position that a row of the sequence sees.
  __device__ int last_of(const Lists& lists, int row) const {
    if (!lists.causal) return most;
    return lists.groups ? lists.seen(past + row) - 1 : static_cast<int>(unsigned(past) + row - offset);
  }

 private:
  __device__ void of_row(const Ragged& sequences, const Lists& lists, int group, int queries, unsigned index) {
    const int each = (group + queries - 1) / queries, row = static_cast<int>(index) / each;
    const int own = static_cast<int>(index) % each * queries;
    if (row >= sequences.rows) return;
    sequence = sequences.sequence_of(row);
    start = sequences.starts[sequence], past = sequences.past[sequence];
    const int64_t position = int64_t{past} + row - start;
    if (position < 0 || position >= INT32_MAX) return;  // such a step does not hold
    first = static_cast<int>((unsigned(row) - unsigned(start)) * group + own), count = min(queries, group - own);
    before = index * ((lists.most_seen() - 1) / kSplit + 1);
    last = lists.seen(static_cast<int>(position)) - 1;
  }
};

template <int Q>
struct Shared {
  __align__(16) float weight[kSplit * Q];  // [position][query]: scores, then exp(score - largest)
  __align__(16) uint32_t entry[kSplit];    // heads of the split's positions in the cache; the last one goes on
  int64_t head[Q];                         // of the queries: row * heads + head
  int last[Q], at[Q];                      // the last position that they see, by number; what turns them, see Rotation
  int hidden[Q];                           // how many numbers a window hides from them
  float largest[Q], sum[Q];                // of the splits so far
  float keep[Q], take[Q];                  // what merging multiplies with: the splits before, and this one
  float* partials;                         // where the tile's splits wait to be merged; nullptr: the block merges them
  int sequence, count, splits;             // of the tile; in registers they would be in the way
  int row, place, offset;                  // its first one's, that one's position, and the position with number 0
  Lists lists;                             // of the step
  int bad, wrong;                          // a page that is none of the cache, an entry of a list; -1: there is no such

  // Positions of a split that a query attends to.
  __device__ int seen(int m, int split) const { return max(0, min(last[m] + 1 - split * kSplit, kSplit)); }
};

// What a block knows of its queries; a barrier follows.
template <int Q>
__device__ __forceinline__ void know_queries(const AttendTile& tile, const AttentionShape& shape,
                                             const Rotation& rotation, Shared<Q>& shared) {
  const int thread = threadIdx.x;
  if (thread < tile.count) {
    const int n = tile.first + thread, row = n / shape.group;
    const int64_t place = int64_t{tile.past} + row;
    shared.head[thread] = (int64_t{tile.start} + row) * shape.heads() + static_cast<int>(blockIdx.y) * shape.group + n -
                          row * shape.group;
    shared.last[thread] = static_cast<int>(place);
    shared.at[thread] = rotation.at(int64_t{tile.start} + row, place);
  }
  if (thread == 0) shared.bad = -1;
}

// Asks for the keys and values of a split, all at once.
template <class T>
__device__ __forceinline__ void prefetch_entries(const T* keys, const T* values, const uint32_t* entry, int seen,
                                                 int stride) {
  const int pieces = (stride * static_cast<int>(sizeof(T)) + kPiece - 1) / kPiece;
  for (int i = threadIdx.x; i < seen * pieces; i += kThreads) {
    const int64_t at = int64_t{entry[i / pieces]} * stride + i % pieces * (kPiece / static_cast<int>(sizeof(T)));
    prefetch(keys + at);
    prefetch(values + at);
  }
}

// Queries normed, rotated and scaled, a warp for each at a time, and rounded for a cache of Q8_0 blocks; `own` [width]
// is the warp's.
template <class T, int Q, bool kPlain>
__device__ __forceinline__ void prepare_query(const Rotation& rotation, const AttentionShape& shape,
                                              const Shared<Q>& shared, int count, const float* q_gate,
                                              const float* norm, float* own, float* query) {
  const int lane = threadIdx.x % kWarp, width = shape.width;
  const float scale = 1.0f / sqrtf(static_cast<float>(width));
#pragma unroll 1
  for (int m = threadIdx.x / kWarp; m < Q; m += kThreads / kWarp) {
    if (m < count) {
      const auto turn = [&](int i) { return rotation.turn(i, shared.at[m]); };
      norm_rotate(q_gate + shared.head[m] * (kPlain ? 2 : shape.parts) * width, norm, rotation, turn, width, scale,
                  own);
      if (shape.key_rotation) rotate(own, width, shape.key_rotation);
    }
    if constexpr (std::is_same_v<T, Q8>) {
      for (int i = lane; m >= count && i < width; i += kWarp) own[i] = 0.0f;
      __syncwarp();
      round_query<Q>(own, m, width, query);
    } else {
      for (int i = lane; i < width; i += kWarp) query[query_at<Q>(m, i)] = m < count ? own[i] : 0.0f;
    }
    __syncwarp();
  }
}

// Scores to exp(score - largest), and what merging the split takes: kLanes threads for each query.
template <int Q, bool kPlain>
__device__ __forceinline__ void exponentiate(int count, int split, bool first, Shared<Q>& shared) {
  constexpr int kEach = kSplit / kLanes;
  const int m = threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
  if (m >= Q) return;
  const int seen = m < count ? shared.seen(m, split) : 0;
  const int hidden = kPlain || m >= count ? 0 : shared.hidden[m] - split * kSplit;
  const auto hides = [&](int n) { return !kPlain && n * kLanes + lane < hidden; };
  float* weight = shared.weight + lane * Q + m;
  float score[kEach], largest = -INFINITY, sum = 0;
#pragma unroll
  for (int n = 0; n < kEach; ++n) score[n] = hides(n) ? kNoScore : weight[n * kLanes * Q];
#pragma unroll
  for (int n = 0; n < kEach; ++n)
    if (n * kLanes + lane < seen) largest = fmaxf(largest, score[n]);
  largest = lane_max(largest, kLanes);
#pragma unroll
  for (int n = 0; n < kEach; ++n) {
    score[n] = hides(n) ? 0.0f : exp(score[n] - largest);
    weight[n * kLanes * Q] = score[n];
    sum = n * kLanes + lane < seen ? sum + score[n] : sum;
  }
  sum = lane_sum(sum, kLanes);
  if (lane || !seen) return;
  if (first) {
    shared.largest[m] = largest, shared.sum[m] = sum;
  } else {
    const Merge merge(shared.largest[m], largest);
    shared.largest[m] = merge.largest, shared.sum[m] = merge(shared.sum[m], sum);
    shared.keep[m] = merge.keep, shared.take[m] = merge.take;
  }
}

// y of query m from its softmax, by a warp.
template <int Q, bool kPlain>
__device__ __forceinline__ void finish(const AttentionShape& shape, int m, const float* q_gate, const Shared<Q>& shared,
                                       float* total, float* y) {
  const int lane = threadIdx.x % kWarp, width = shape.width;
  const float inverse = 1.0f / shared.sum[m];
  const int64_t head = shared.head[m];
  const float* gate = q_gate + (head * (kPlain ? 2 : shape.parts) + 1) * width;
  float* own = total + m * width;
  float* out = y + head * width;
  constexpr int kTogether = 8;  // gates that are read before the first is used
#pragma unroll 8
  for (int i = lane; i < width; i += kWarp) own[i] *= inverse;
  __syncwarp();
  if (shape.value_rotation) rotate(own, width, shape.value_rotation);
  const bool gated = kPlain || shape.parts > 1;
  for (int i = lane; !gated && i < width; i += kWarp) out[i] = own[i];
  for (int first = lane; gated && first < width; first += kTogether * kWarp) {
    float gates[kTogether];
#pragma unroll
    for (int n = 0; n < kTogether; ++n) gates[n] = first + n * kWarp < width ? gate[first + n * kWarp] : 0.0f;
#pragma unroll
    for (int n = 0; n < kTogether; ++n)
      if (const int i = first + n * kWarp; i < width) out[i] = own[i] * sigmoid(gates[n]);
  }
}

}  // namespace trigraph::TRIGRAPH_ISA
