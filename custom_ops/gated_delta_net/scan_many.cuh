// The second launch where a sequence may have many tokens, of a step that commits them: as in scan.cuh, but a block has
// fewer columns, so that more multiprocessors scan, and a column's rows are in bands, a thread's each. A third launch
// makes output norm and gate.
#pragma once

#include "scan.cuh"

namespace trigraph::TRIGRAPH_ISA {

constexpr int kColumns = 32;                  // of the state in a block
constexpr int kBands = 4;                     // of rows of a column
constexpr int kScanners = kColumns * kBands;  // the first threads of a block; as many bring tokens
constexpr int kRing = 3 * kGroup;             // tokens in shared memory: those at work, those before, those that come

// Bands of queries and keys lie apart, in banks of their own.
template <int D>
struct Ring {
  static constexpr int kStride = D / kBands + 4;
  struct Row {
    float query[kBands * kStride], key[kBands * kStride], value[kColumns];
  };
  Row row[kRing];
  float decay[kRing], beta[kRing], look[kRing];

  static __device__ __forceinline__ int at(int i) { return i / (D / kBands) * kStride + i % (D / kBands); }
};

// One band of a column, and the column's products with a token's key and query. Sums go down the bands in order.
template <int D>
struct Band {
  static constexpr int kRows = D / kBands, kLanesOfBand = kWarp / kBands;
  float state[kRows], with_key = 0, with_query = 0;

  // S = decay S + k d^T
  __device__ __forceinline__ void update(float decay, const float* key, float delta) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) state[i] = fmaf(key[i], delta, decay * state[i]);
  }
  __device__ __forceinline__ void products(const float* key, const float* query) {
    float x = 0, y = 0;
#pragma unroll
    for (int band = 0; band < kBands; ++band) {
      if (band) x = __shfl_up_sync(kAllLanes, x, kLanesOfBand), y = __shfl_up_sync(kAllLanes, y, kLanesOfBand);
#pragma unroll
      for (int i = 0; i < kRows; ++i) x = fmaf(key[i], state[i], x), y = fmaf(query[i], state[i], y);
    }
    const int last = kWarp - kLanesOfBand + static_cast<int>(threadIdx.x) % kLanesOfBand;
    with_key = __shfl_sync(kAllLanes, x, last), with_query = __shfl_sync(kAllLanes, y, last);
  }
};

// A thread that scans: its band, from token to token.
template <int D>
class Scanner {
 public:
  __device__ __forceinline__ Scanner(const Work& work, const Sequence& sequence) {
    constexpr int kWarpColumns = kWarp / kBands;
    const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp, first = blockIdx.x * kColumns;
    column_ = thread / kWarp * kWarpColumns + lane % kWarpColumns, band_ = lane / kWarpColumns;
    active_ = thread < kScanners && first + column_ < D;
    if (!active_) column_ = 0;
    const int64_t head = blockIdx.y, heads = work.geometry.v_heads;
    const int64_t at = (head * D + band_ * kRows) * D + first + column_;
    from_ = work.past_state + sequence.slot_in * heads * D * D + at;
    to_ = work.state + sequence.slot_out * heads * D * D + at;
    stride_ = heads * D, pending_ = static_cast<int>(sequence.pending);
    y_ = work.y + (sequence.begin - pending_) * stride_ + head * D + first + column_;
#pragma unroll
    for (int i = 0; i < kRows; ++i) own_.state[i] = sequence.fresh ? 0.0f : from_[i * D];
  }

  // Tokens `first`, an even one, to `end`; y gets what the rule makes of own ones.
  __device__ __forceinline__ void run(const Ring<D>& ring, int first, int end) {
    if (first < end) load(ring, first, even_key_, even_query_);
    for (int t = first; t < end; t += 2) {
      if (t) own_.update(decay_, odd_key_, delta_);
      if (t + 1 < end) load(ring, t + 1, odd_key_, odd_query_);
      step(ring, t, even_key_, even_query_);
      if (t + 1 == end) break;
      own_.update(decay_, even_key_, delta_);
      if (t + 2 < end) load(ring, t + 2, even_key_, even_query_);
      step(ring, t + 1, odd_key_, odd_query_);
    }
  }

  // The state after `count` tokens.
  __device__ __forceinline__ void finish(int count) {
    if (!active_) return;
    if (count % 2)
      own_.update(decay_, even_key_, delta_);
    else
      own_.update(decay_, odd_key_, delta_);
#pragma unroll
    for (int i = 0; i < kRows; ++i) to_[i * D] = own_.state[i];
  }

 private:
  static constexpr int kRows = Band<D>::kRows;

  __device__ __forceinline__ void load(const Ring<D>& ring, int t, float* key, float* query) const {
    const auto& row = ring.row[t % kRing];
    const auto* keys = reinterpret_cast<const float4*>(row.key + band_ * Ring<D>::kStride);
    const auto* queries = reinterpret_cast<const float4*>(row.query + band_ * Ring<D>::kStride);
#pragma unroll
    for (int i = 0; i < kRows / 4; ++i) {
      const float4 k = keys[i], q = queries[i];
      key[4 * i] = k.x, key[4 * i + 1] = k.y, key[4 * i + 2] = k.z, key[4 * i + 3] = k.w;
      query[4 * i] = q.x, query[4 * i + 1] = q.y, query[4 * i + 2] = q.z, query[4 * i + 3] = q.w;
    }
  }
  __device__ __forceinline__ void step(const Ring<D>& ring, int t, const float* key, const float* query) {
    const int slot = t % kRing;
    const float decay = ring.decay[slot], beta = ring.beta[slot], look = ring.look[slot];
    const float value = ring.row[slot].value[column_];
    own_.products(key, query);
    delta_ = beta * (value - decay * own_.with_key), decay_ = decay;
    if (t >= pending_ && active_ && band_ == 0) y_[t * stride_] = fmaf(look, delta_, decay * own_.with_query);
  }

  bool active_;
  int column_, band_, pending_;
  int64_t stride_;
  const float* from_;
  float *to_, *y_;
  Band<D> own_;
  float even_key_[kRows], even_query_[kRows], odd_key_[kRows], odd_query_[kRows];
  float decay_ = 0, delta_ = 0;
};

// Brings `count` tokens from `first` on to shared memory, by the threads behind the scanners.
template <int D>
__device__ __forceinline__ void bring(const Work& work, const Sequence& sequence, const float* mixed, int first,
                                      int count, Ring<D>& ring) {
  constexpr int kQuads = D / 4, kAll = 2 * kQuads + kColumns / 4;
  const Geometry& g = work.geometry;
  const int helper = static_cast<int>(threadIdx.x) - kScanners, head = blockIdx.y, slot = first % kRing;
  const int column = blockIdx.x * kColumns, k_head = static_cast<int>(g.k_head(head));
  for (int i = helper; i < count * kAll; i += kScanners) {
    const int n = i / kAll, at = i % kAll * 4, k_heads = static_cast<int>(g.k_heads);
    auto& row = ring.row[slot + n];
    const float* from = mixed + (first + n) * g.channels();
    if (at < D)
      copy_ahead(row.query + Ring<D>::at(at), from + k_head * D + at);
    else if (at < 2 * D)
      copy_ahead(row.key + Ring<D>::at(at - D), from + (k_heads + k_head - 1) * D + at);
    else if (column + at - 2 * D < D)
      copy_ahead(row.value + at - 2 * D, from + (2 * k_heads + head - 2) * D + column + at);
  }
  end_copies();
  if (helper < count) {
    Gates gates;
    gates.read(work, sequence, head, first + helper), gates.finish();
    ring.decay[slot + helper] = gates.decay(), ring.beta[slot + helper] = gates.beta;
  }
  await_copies(0);
}

// Products of each query with its key: kLanes helpers for a token.
template <int D>
__device__ __forceinline__ void look_at_keys(int first, int count, Ring<D>& ring) {
  const int helper = static_cast<int>(threadIdx.x) - kScanners, n = helper / kLanes, lane = helper % kLanes;
  const auto& row = ring.row[first % kRing + min(n, count - 1)];
  float sum = 0;
#pragma unroll
  for (int i = lane; i < D; i += kLanes) sum = fmaf(row.query[Ring<D>::at(i)], row.key[Ring<D>::at(i)], sum);
  sum = lane_sum(sum, kLanes);
  if (n < count && lane == 0) ring.look[first % kRing + n] = sum;
}

// grid: [parts of a head's columns, value heads, sequences]. A phase scans half a group of tokens, while the other
// threads do half the work for the next group.
template <int D>
__global__ void __launch_bounds__(2 * kScanners, 1) scan_many(Work work) {
  constexpr int kPhase = kGroup / 2;
  __shared__ __align__(16) Ring<D> ring;
  const Sequence sequence(work.step, blockIdx.z);
  if (!*work.verdict) return;
  const bool scans = threadIdx.x < kScanners;
  const int count = static_cast<int>(sequence.count());
  const float* mixed = work.mixed_of(sequence, blockIdx.z);
  Scanner<D> scanner(work, sequence);
  for (int phase = -2; phase * kPhase < count; ++phase) {
    const int first = (phase + 2) / 2 * kGroup, group = min(kGroup, count - first);
    if (scans)
      scanner.run(ring, max(phase * kPhase, 0), min((phase + 1) * kPhase, count));
    else if (group > 0 && phase % 2 == 0)
      bring(work, sequence, mixed, first, group, ring);
    else if (group > 0)
      look_at_keys(first, group, ring);
    __syncthreads();
  }
  if (scans) scanner.finish(count);
}

// Output norm and gate of kGroup rows, kLanes threads for each, and no token is pending. grid: [groups of rows, value
// heads].
template <int D>
__global__ void __launch_bounds__(kGroup* kLanes) finish_rows(Work work) {
  constexpr int kEach = D / kLanes;
  if (!*work.verdict) return;
  const int lane = threadIdx.x % kLanes;
  const int64_t row = int64_t{blockIdx.x} * kGroup + threadIdx.x / kLanes, rows = work.step.rows;
  const int64_t at = (min(row, rows - 1) * work.geometry.v_heads + blockIdx.y) * D + lane;
  float out[kEach], gate[kEach], squares = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) out[i] = work.y[at + i * kLanes], gate[i] = work.z[at + i * kLanes];
#pragma unroll
  for (int i = 0; i < kEach; ++i) squares = fmaf(out[i], out[i], squares);
  const float factor = 1.0f / sqrtf(lane_sum(squares, kLanes) / static_cast<float>(D) + work.geometry.eps);
#pragma unroll
  for (int i = 0; i < kEach; ++i)
    if (row < rows) work.y[at + i * kLanes] = out[i] * factor * work.norm[lane + i * kLanes] * silu(gate[i]);
  if (blockIdx.x) return;
  for (int64_t i = threadIdx.x; i < work.step.sequences * work.geometry.pending_max; i += blockDim.x) {
    const int64_t slot = work.step.slots_out[i / work.geometry.pending_max], t = i % work.geometry.pending_max;
    work.gates[work.log_decay_at(slot, t, blockIdx.y)] = 0.0f;
    work.gates[work.beta_at(slot, t, blockIdx.y)] = kNoToken;
  }
}

constexpr Scan kManyScans[] = {scan_many<16>, scan_many<32>, scan_many<48>,  scan_many<64>,
                               scan_many<80>, scan_many<96>, scan_many<112>, scan_many<128>};
constexpr Scan kFinishes[] = {finish_rows<16>, finish_rows<32>, finish_rows<48>,  finish_rows<64>,
                              finish_rows<80>, finish_rows<96>, finish_rows<112>, finish_rows<128>};

}  // namespace trigraph::TRIGRAPH_ISA
