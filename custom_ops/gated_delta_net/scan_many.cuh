// The second launch where a sequence may have many tokens, of a step that commits them: as in scan.cuh, but a block has
// fewer columns, so that more multiprocessors scan, and a thread has one band of a column's rows: a chain of D / 4
// products a token. Other warps bring tokens. A third launch makes output norm and gate.
#pragma once

#include <climits>

#include "scan.cuh"

namespace trigraph::TRIGRAPH_ISA {

constexpr int kColumns = 32;                                       // of the state in a block
constexpr int kWarpColumns = kWarp / kBands;                       // lanes b kWarpColumns + c have band b of column c
constexpr int kScanners = kColumns / kWarpColumns, kBringers = 4;  // warps
constexpr int kRing = 4 * kGroup;  // tokens in shared memory: those at work, the next ones, and coming ones
constexpr int kScanThreads = (kScanners + kBringers) * kWarp;

template <int D, int kTokens = kRing>
struct Ring {
  static constexpr int kRows = D / kBands, kBand = kRows + 4;  // bands begin at different banks
  struct Row {
    float query[kBands * kBand], key[kBands * kBand], value[kColumns];
  };
  struct __align__(16) Gate {
    float decay, beta, look;  // look: q . k
  };
  Row row[kTokens];
  Gate gate[kTokens];

  __device__ static __forceinline__ int place(int i) { return i + i / kRows * (kBand - kRows); }  // of row i
};

// A thread of the warps that scan.
template <int D>
class Scanner {
 public:
  __device__ __forceinline__ Scanner(const Work& work, const Sequence& sequence) {
    const int first = blockIdx.x * kColumns, lane = threadIdx.x % kWarp;
    band_ = lane / kWarpColumns, column_ = static_cast<int>(threadIdx.x) / kWarp * kWarpColumns + lane % kWarpColumns;
    active_ = first + column_ < D;
    if (!active_) column_ = 0;
    stride_ = static_cast<unsigned>(work.geometry.v_heads) * D;
    writes_from_ = active_ && band_ == 0 ? static_cast<int>(sequence.pending) : INT_MAX;
    y_ = work.y;
    at_ = static_cast<unsigned>(sequence.begin - sequence.pending) * stride_ + blockIdx.y * D + first + column_;
    const float* from = work.past_state + state_at(work, sequence.slot_in);
#pragma unroll
    for (int i = 0; i < kRows; ++i) state_[i] = sequence.fresh ? 0.0f : from[i * D];
  }

  // Tokens `first` to `end`, from an even one on; y gets what the rule makes of own ones.
  __device__ __forceinline__ void run(const Ring<D>& ring, int first, int end) {
    if (first == 0 && end > 0) meet(ring, 0, -0.0f, odd_, even_);  // which changes no state
    unsigned at = at_ + static_cast<unsigned>(first) * stride_;
#pragma unroll 1
    for (int t = first; t < end; t += 2, at += 2 * stride_) {
      one(ring, t, at, even_, odd_);
      if (t + 1 < end) one(ring, t + 1, at + stride_, odd_, even_);
    }
  }

  // The state after all tokens.
  __device__ __forceinline__ void finish(const Work& work) const {
    if (!active_) return;
    float* to = work.state + state_at(work, work.step.slots_out[blockIdx.z]);
#pragma unroll
    for (int i = 0; i < kRows; ++i) to[i * D] = state_[i];
  }

 private:
  static constexpr int kRows = Ring<D>::kRows;

  // Where the thread's rows of a slot's state begin.
  __device__ __forceinline__ int64_t state_at(const Work& work, int64_t slot) const {
    return ((slot * work.geometry.v_heads + blockIdx.y) * D + band_ * kRows) * D + blockIdx.x * kColumns + column_;
  }
  // Token t, whose key is there.
  __device__ __forceinline__ void one(const Ring<D>& ring, int t, unsigned at, const float* key, float* next) {
    const typename Ring<D>::Gate now = next_;
#pragma unroll
    for (int i = 0; i < kRows; ++i) state_[i] *= now.decay;  // while lanes meet
    const float delta = now.beta * (value_ - now.decay * joined(with_key_));
    const float out = fmaf(now.look, delta, now.decay * joined(with_query_));
    meet(ring, static_cast<unsigned>(t + 1), delta, key, next);  // behind the last token, whatever is there
    if (t >= writes_from_) y_[at] = out;
  }
  // A column's sum; all lanes call.
  __device__ static __forceinline__ float joined(float band) {
    band += __shfl_xor_sync(kAllLanes, band, kWarpColumns);
    return band + __shfl_xor_sync(kAllLanes, band, 2 * kWarpColumns);
  }
  // S = S + k d^T with a key, and the band's products with those of token t, which is the next.
  __device__ __forceinline__ void meet(const Ring<D>& ring, unsigned t, float delta, const float* key, float* next) {
    const unsigned slot = t % kRing;
    const auto& row = ring.row[slot];
    const auto* keys = reinterpret_cast<const float4*>(row.key + band_ * Ring<D>::kBand);
    const auto* queries = reinterpret_cast<const float4*>(row.query + band_ * Ring<D>::kBand);
    next_ = ring.gate[slot], value_ = row.value[column_];
    const auto one = [&](int i, float k, float q) {
      state_[i] = fmaf(key[i], delta, state_[i]), next[i] = k;
      with_key_ = fmaf(k, state_[i], with_key_), with_query_ = fmaf(q, state_[i], with_query_);
    };
    with_key_ = with_query_ = 0;
#pragma unroll
    for (int i = 0; i < kRows; i += 4) {
      const float4 k = keys[i / 4], q = queries[i / 4];
      one(i, k.x, q.x), one(i + 1, k.y, q.y), one(i + 2, k.z, q.z), one(i + 3, k.w, q.w);
    }
  }

  bool active_;
  int band_, column_;
  int writes_from_;       // the first token whose element of y the thread writes
  unsigned at_, stride_;  // that element of the first token, and from a token's to the next one's
  float* y_;
  typename Ring<D>::Gate next_{};                       // of the token that comes next, as value_
  float state_[kRows], even_[kRows], odd_[kRows] = {};  // keys of such tokens
  float value_ = 0, with_key_ = 0, with_query_ = 0;
};

// Brings `count` tokens from `first` on to shared memory, with the product of each query with its key, by a warp.
template <int D>
__device__ __forceinline__ void bring(const Work& work, const Sequence& sequence, const float* mixed, int first,
                                      int count, Ring<D>& ring) {
  constexpr int kQuads = D / 4, kAll = 2 * kQuads + kColumns / 4;
  const Geometry& g = work.geometry;
  const int lane = threadIdx.x % kWarp, head = blockIdx.y, slot = first % kRing;
  const int column = blockIdx.x * kColumns, k_head = static_cast<int>(g.k_head(head));
  const int k_heads = static_cast<int>(g.k_heads);
  for (int i = lane; i < count * kAll; i += kWarp) {
    const int n = i / kAll, at = i % kAll * 4;
    auto& row = ring.row[slot + n];
    const float* from = mixed + (first + n) * g.channels();
    if (at < D)
      copy_ahead(row.query + ring.place(at), from + k_head * D + at);
    else if (at < 2 * D)
      copy_ahead(row.key + ring.place(at - D), from + (k_heads + k_head - 1) * D + at);
    else if (column + at - 2 * D < D)
      copy_ahead(row.value + at - 2 * D, from + (2 * k_heads + head - 2) * D + column + at);
  }
  end_copies();
  if (lane < count) {
    Gates gates;
    gates.read(work, sequence, head, first + lane), gates.finish();
    ring.gate[slot + lane].decay = gates.decay(), ring.gate[slot + lane].beta = gates.beta;
  }
  await_copies(0);
  __syncwarp();
  for (int two = 0; two < count; two += kWarp / kLanes) {
    const int n = two + lane / kLanes;
    const auto& row = ring.row[slot + min(n, count - 1)];
    float look = 0;
#pragma unroll
    for (int i = lane % kLanes; i < D; i += kLanes) look = fmaf(row.query[ring.place(i)], row.key[ring.place(i)], look);
    look = lane_sum(look, kLanes);
    if (n < count && lane % kLanes == 0) ring.gate[slot + n].look = look;
  }
}

// grid: [parts of a head's columns, value heads, sequences]. Tokens come two groups ahead of those at work.
template <int D>
__global__ void __launch_bounds__(kScanThreads, 2) scan_many(Work work) {
  constexpr int kOwn = kGroup / kBringers;
  __shared__ __align__(16) Ring<D> ring;
  const Sequence sequence(work.step, blockIdx.z);
  if (!*work.verdict) return;
  const int warp = static_cast<int>(threadIdx.x) / kWarp, count = static_cast<int>(sequence.count());
  if (warp < kScanners) {
    Scanner<D> scanner(work, sequence);
    for (int first = -2 * kGroup; first < count; first += kGroup) {
      scanner.run(ring, max(first, 0), min(first + kGroup, count));
      __syncthreads();
    }
    scanner.finish(work);
  } else {
    const float* mixed = work.mixed_of(sequence, blockIdx.z);
    for (int group = -2 * kGroup; group < count; group += kGroup) {
      const int first = group + 2 * kGroup + (warp - kScanners) * kOwn;
      if (first < count) bring(work, sequence, mixed, first, min(kOwn, count - first), ring);
      __syncthreads();
    }
  }
}

// Output norm and gate of a head in a row by kLanes threads; all lanes of a warp call.
template <int D>
__device__ __forceinline__ void finish_row(const Work& work, int64_t row, int64_t head, bool writes) {
  constexpr int kEach = D / kLanes;
  const int lane = threadIdx.x % kLanes;
  const int64_t at = (row * work.geometry.v_heads + head) * D + lane;
  float out[kEach], gate[kEach], squares = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) out[i] = work.y[at + i * kLanes], gate[i] = work.z[at + i * kLanes];
#pragma unroll
  for (int i = 0; i < kEach; ++i) squares = fmaf(out[i], out[i], squares);
  const float factor = 1.0f / sqrtf(lane_sum(squares, kLanes) / static_cast<float>(D) + work.geometry.eps);
#pragma unroll
  for (int i = 0; i < kEach; ++i)
    if (writes)
      work.y[at + i * kLanes] = out[i] * factor * work.norm[lane + i * kLanes] * output_gate(work.geometry, gate[i]);
}

// kGroup rows of a head, no token of which is pending. grid: [groups of rows, value heads].
template <int D>
__global__ void __launch_bounds__(kGroup* kLanes) finish_rows(Work work) {
  if (!*work.verdict) return;
  const int64_t row = int64_t{blockIdx.x} * kGroup + threadIdx.x / kLanes, rows = work.step.rows;
  finish_row<D>(work, min(row, rows - 1), blockIdx.y, row < rows);
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
