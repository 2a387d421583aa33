// The second launch where a sequence may have many tokens, of a step that commits them: as in scan.cuh, but a block has
// fewer columns, so that more multiprocessors scan. A thread has a column. One warp makes the columns' products with
// keys, and so what each token changes; another, a group of tokens behind, makes those with queries, with a state of
// its own: each is a chain of D products a token. The others bring tokens. A third launch makes output norm and gate.
#pragma once

#include "scan.cuh"

namespace trigraph::TRIGRAPH_ISA {

constexpr int kColumns = kWarp;  // of the state in a block
constexpr int kBringers = 2;     // warps
constexpr int kRing =
    4 * kGroup;  // tokens in shared memory: those with queries, with keys, the next ones, and coming ones
constexpr int kScanThreads = (2 + kBringers) * kWarp;

template <int D>
struct Ring {
  struct Row {
    float query[D], key[D], value[kColumns], delta[kColumns];
  };
  Row row[kRing];
  float decay[kRing], beta[kRing], look[kRing];
};

// A column of the state, and its product with the vector that comes next.
template <int D>
struct Chain {
  float state[D], product = 0;

  __device__ __forceinline__ void meet(const float* next) {
    product = 0;
#pragma unroll
    for (int i = 0; i < D; ++i) product = fmaf(next[i], state[i], product);
  }
  // S = decay S + k d^T, and the product of that.
  __device__ __forceinline__ void update(float decay, const float* key, float delta, const float* next) {
    product = 0;
    const auto *keys = reinterpret_cast<const float4*>(key), *vectors = reinterpret_cast<const float4*>(next);
#pragma unroll
    for (int i = 0; i < D / 4; ++i) {
      const float4 k = keys[i], v = vectors[i];
      float* s = state + 4 * i;
      s[0] = fmaf(k.x, delta, decay * s[0]), product = fmaf(v.x, s[0], product);
      s[1] = fmaf(k.y, delta, decay * s[1]), product = fmaf(v.y, s[1], product);
      s[2] = fmaf(k.z, delta, decay * s[2]), product = fmaf(v.z, s[2], product);
      s[3] = fmaf(k.w, delta, decay * s[3]), product = fmaf(v.w, s[3], product);
    }
  }
};

// A thread of the warp that has keys, or of the one that has queries.
template <int D>
class Scanner {
 public:
  __device__ __forceinline__ Scanner(const Work& work, const Sequence& sequence, bool keys) : keys_(keys) {
    const int first = blockIdx.x * kColumns;
    column_ = threadIdx.x % kWarp, active_ = first + column_ < D;
    if (!active_) column_ = 0;
    const int64_t head = blockIdx.y, heads = work.geometry.v_heads, at = head * D * D + first + column_;
    const float* from = work.past_state + sequence.slot_in * heads * D * D + at;
    to_ = work.state + sequence.slot_out * heads * D * D + at;
    stride_ = heads * D, pending_ = static_cast<int>(sequence.pending);
    y_ = work.y + (sequence.begin - pending_) * stride_ + head * D + first + column_;
#pragma unroll
    for (int i = 0; i < D; ++i) own_.state[i] = sequence.fresh ? 0.0f : from[i * D];
  }

  // Tokens `first` to `end` of all `count`; y gets what the rule makes of own ones.
  __device__ __forceinline__ void run(Ring<D>& ring, int first, int end, int count) {
    if (first >= end) return;
    if (first == 0) own_.meet(next_of(ring, 0));
    Scalars now(ring, first, column_, keys_);
#pragma unroll 1
    for (int t = first; t < end; ++t) {
      const int slot = t % kRing, after = min(t + 1, count - 1);  // behind the last token, any vector
      float delta = now.delta;
      if (keys_) {
        delta = now.beta * (now.value - now.decay * own_.product);
        ring.row[slot].delta[threadIdx.x % kWarp] = delta;
      } else if (t >= pending_ && active_) {
        y_[t * stride_] = fmaf(now.look, delta, now.decay * own_.product);
      }
      const float decay = now.decay;
      if (t + 1 < end) now = Scalars(ring, t + 1, column_, keys_);
      own_.update(decay, ring.row[slot].key, delta, next_of(ring, after));
    }
  }

  // The state after all tokens.
  __device__ __forceinline__ void finish() {
    if (!active_ || !keys_) return;
#pragma unroll
    for (int i = 0; i < D; ++i) to_[i * D] = own_.state[i];
  }

 private:
  // What a thread needs of a token beside its vectors.
  struct Scalars {
    float decay, beta, value, look, delta;
    __device__ __forceinline__ Scalars(const Ring<D>& ring, int t, int column, bool keys)
        : decay(ring.decay[t % kRing]),
          beta(ring.beta[t % kRing]),
          value(ring.row[t % kRing].value[column]),
          look(ring.look[t % kRing]),
          delta(keys ? 0.0f : ring.row[t % kRing].delta[threadIdx.x % kWarp]) {}
  };
  __device__ __forceinline__ const float* next_of(const Ring<D>& ring, int t) const {
    const auto& row = ring.row[t % kRing];
    return keys_ ? row.key : row.query;
  }

  bool keys_, active_;
  int column_, pending_;
  int64_t stride_;
  float *to_, *y_;
  Chain<D> own_;
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
      copy_ahead(row.query + at, from + k_head * D + at);
    else if (at < 2 * D)
      copy_ahead(row.key + at - D, from + (k_heads + k_head - 1) * D + at);
    else if (column + at - 2 * D < D)
      copy_ahead(row.value + at - 2 * D, from + (2 * k_heads + head - 2) * D + column + at);
  }
  end_copies();
  if (lane < count) {
    Gates gates;
    gates.read(work, sequence, head, first + lane), gates.finish();
    ring.decay[slot + lane] = gates.decay(), ring.beta[slot + lane] = gates.beta;
  }
  await_copies(0);
  __syncwarp();
  for (int two = 0; two < count; two += kWarp / kLanes) {
    const int n = two + lane / kLanes;
    const auto& row = ring.row[slot + min(n, count - 1)];
    const float look = dot(row.query, row.key, D);
    if (n < count && lane % kLanes == 0) ring.look[slot + n] = look;
  }
}

// grid: [parts of a head's columns, value heads, sequences]. In a phase, keys are a group of tokens ahead of queries,
// and two groups behind those that come.
template <int D>
__global__ void __launch_bounds__(kScanThreads, 2) scan_many(Work work) {
  constexpr int kOwn = kGroup / kBringers;
  __shared__ __align__(16) Ring<D> ring;
  const Sequence sequence(work.step, blockIdx.z);
  if (!*work.verdict) return;
  // Warps take turns on the schedulers of a multiprocessor: of two blocks there, scanners have one each.
  const int64_t block = (int64_t{blockIdx.z} * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  const int warp = (static_cast<int>(threadIdx.x) / kWarp + (block < work.alone ? 0 : kBringers)) % (2 + kBringers);
  const int count = static_cast<int>(sequence.count()), groups = (count + kGroup - 1) / kGroup;
  const auto from = [count](int group) { return min(max(group, 0) * kGroup, count); };
  if (warp < 2) {
    Scanner<D> scanner(work, sequence, warp == 0);
    for (int phase = -2; phase <= groups; ++phase) {
      const int group = phase - warp;
      if (group >= 0) scanner.run(ring, from(group), from(group + 1), count);
      __syncthreads();
    }
    scanner.finish();
  } else {
    const float* mixed = work.mixed_of(sequence, blockIdx.z);
    for (int phase = -2; phase <= groups; ++phase) {
      const int first = (phase + 2) * kGroup + (warp - 2) * kOwn;
      if (first < count) bring(work, sequence, mixed, first, min(kOwn, count - first), ring);
      __syncthreads();
    }
  }
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
    if (row < rows)
      work.y[at + i * kLanes] = out[i] * factor * work.norm[lane + i * kLanes] * output_gate(work.geometry, gate[i]);
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
