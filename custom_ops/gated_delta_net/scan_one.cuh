// The whole step of one sequence with few tokens in one launch. A block has some columns of a value head's state, as in
// scan_many.cuh, and makes the queries, keys and values that it needs: those of a key head are made by each of its
// blocks. The last of these to be done makes output norms and gates, and moves what they have read.
#pragma once

#include "../cuda/last_block.cuh"
#include "mix.cuh"
#include "scan_many.cuh"

namespace trigraph::TRIGRAPH_ISA {

constexpr int kFewTokens = 16;  // pending ones included

// Warps for queries and keys, of which the first ones scan; another one is for values.
template <int D>
constexpr int kUnitThreads = std::max(2 * D, kScanners* kWarp);
template <int D>
constexpr int kOneThreads = kUnitThreads<D> + kColumns;
static_assert(kColumns == kWarp && kFewTokens <= kWarp);

template <int D>
using FewRing = Ring<D, kFewTokens>;
template <int D>
struct FewTokens {
  FewRing<D> ring;
  // Before the convolution, history first: the query's channels, the key's, and the block's of the value.
  __align__(16) float column[kHistory + kFewTokens][2 * D + kColumns];
};

// A block's part of a value head. Numbers of heads have 32 bits, which divide faster.
template <int D>
struct HeadPart {
  int k_heads, group, head, k_head;  // group: value heads of a key head
  int first, count;                  // columns of the state
  bool tiled;

  __device__ explicit HeadPart(const Geometry& g)
      : k_heads(static_cast<int>(g.k_heads)),
        group(static_cast<int>(g.v_heads) / k_heads),
        head(static_cast<int>(blockIdx.y)),
        k_head(g.tiled ? head % k_heads : head / group),
        first(static_cast<int>(blockIdx.x) * kColumns),
        count(min(kColumns, D - first)),
        tiled(g.tiled) {}
  // The channel in column `c` of those that the block has.
  __device__ int channel(int c) const {
    if (c < D) return k_head * D + c;
    return c < 2 * D ? (k_heads + k_head - 1) * D + c : (2 * k_heads + head - 2) * D + first + c;
  }
  // The value heads of the key head.
  __device__ int value_head(int i) const { return tiled ? k_head + i * k_heads : k_head * group + i; }
};

// Asks for rows `begin` to `end` of the block's columns, of which row 0 would be at `from`; zeros where `bytes` is 0.
template <int D>
__device__ __forceinline__ void ask_for_columns(const Geometry& g, const HeadPart<D>& part, const float* from,
                                                int begin, int end, int bytes, FewTokens<D>& tokens) {
  constexpr int kQuads = (2 * D + kColumns) / 4;
#pragma unroll 1
  for (int i = begin * kQuads + static_cast<int>(threadIdx.x); i < end * kQuads; i += kOneThreads<D>) {
    const int row = i / kQuads, c = i % kQuads * 4;
    if (c < 2 * D + part.count) copy_ahead(tokens.column[row] + c, from + row * g.channels() + part.channel(c), bytes);
  }
  end_copies();
}

// Column `c` of `count` tokens, convolved, to where it is scanned.
template <int D>
__device__ __forceinline__ void make_column(int c, int count, const float4& tap, FewTokens<D>& tokens) {
  auto& row = tokens.ring.row[0];
  float x[kHistory + 1];
#pragma unroll
  for (int n = 0; n < kHistory; ++n) x[n] = tokens.column[n][c];
  float* out = c < D       ? row.query + FewRing<D>::place(c)
               : c < 2 * D ? row.key + FewRing<D>::place(c - D)
                           : row.value + c - 2 * D;
#pragma unroll 1
  for (int n = 0; n < count; ++n, out += sizeof(row) / sizeof(float)) {
    x[kHistory] = tokens.column[kHistory + n][c];
    *out = silu(convolved(x, tap));
#pragma unroll
    for (int i = 0; i < kHistory; ++i) x[i] = x[i + 1];
  }
}

// `dot` of two vectors that a half-warp has, elements kLanes apart in a thread.
template <int N>
__device__ __forceinline__ float half_dot(const float* a, const float* b) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < N; ++i) sum = fmaf(a[i], b[i], sum);
  return lane_sum(sum, kLanes);
}

// Queries and keys of `count` tokens to unit length, and their products, by a half-warp each.
template <int D>
__device__ __forceinline__ void make_units(float eps, int count, FewTokens<D>& tokens) {
  constexpr int kEach = D / kLanes, kHalfWarps = kOneThreads<D> / kLanes;
  const int lane = threadIdx.x % kLanes;
  for (int n = threadIdx.x / kLanes; n < (count + 1) / 2 * 2; n += kHalfWarps) {  // all lanes of a warp or none
    auto& row = tokens.ring.row[min(n, count - 1)];
    float query[kEach], key[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int at = FewRing<D>::place(lane + i * kLanes);
      query[i] = row.query[at], key[i] = row.key[at];
    }
    const float of_query = 1.0f / sqrtf(static_cast<float>(D)) / sqrtf(half_dot<kEach>(query, query) + eps);
    const float of_key = 1.0f / sqrtf(half_dot<kEach>(key, key) + eps);
    __syncwarp();  // both halves have read the last row
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int at = FewRing<D>::place(lane + i * kLanes);
      query[i] *= of_query, key[i] *= of_key;
      if (n < count) row.query[at] = query[i], row.key[at] = key[i];
    }
    const float look = half_dot<kEach>(query, key);
    if (n < count && lane == 0) tokens.ring.gate[n].look = look;
  }
}

// A band of a column's rows, by a thread of the warps that scan.
template <int D>
class Band {
 public:
  // Asks for the slot's state; begins with zeros where there is none, or nothing to scan.
  __device__ __forceinline__ Band(const Work& work, const Sequence& sequence, const HeadPart<D>& part) {
    const int lane = threadIdx.x % kWarp,
              own = static_cast<int>(threadIdx.x) / kWarp * kWarpColumns + lane % kWarpColumns;
    active_ = own < part.count, column_ = active_ ? own : 0, band_ = lane / kWarpColumns;
    const int64_t size = work.geometry.v_heads * D * D;
    const int64_t at = (int64_t{part.head} * D + band_ * kRows) * D + part.first + column_;
    const float* from = work.past_state + sequence.slot_in * size + at;
    const bool kept_before = active_ && !sequence.fresh && sequence.reads_a_slot(work.step);
    to_ = work.state + sequence.slot_out * size + at;
    moves_ = sequence.fresh || from != to_;
#pragma unroll
    for (int i = 0; i < kRows; ++i) state_[i] = kept_before ? from[i * D] : 0.0f;
  }

  // All tokens: y gets what the rule makes of own ones, and the slot the state after `kept` of them.
  __device__ __forceinline__ void scan(const Work& work, const Sequence& sequence, const HeadPart<D>& part, int kept,
                                       const FewRing<D>& ring) {
    const int count = static_cast<int>(sequence.count()), pending = static_cast<int>(sequence.pending);
    const int64_t stride = work.geometry.v_heads * D;
    float* y = work.y + (sequence.begin - pending) * stride + part.head * D + part.first + column_;
#pragma unroll 1
    for (int t = 0;; ++t, y += stride) {
      if (t == kept && (kept || moves_)) write();
      if (t == count) break;
      const auto& row = ring.row[t];
      const auto gate = ring.gate[t];
      const auto* keys = reinterpret_cast<const float4*>(row.key + band_ * kBand);
      const float delta = gate.beta * (row.value[column_] - gate.decay * products(row, keys));
      const float out = fmaf(gate.look, delta, gate.decay * joined(with_query_));
      if (t >= pending && active_ && band_ == 0) *y = out;
      if (t + 1 < count || t < kept) update(keys, gate.decay, delta);
    }
  }

 private:
  static constexpr int kRows = FewRing<D>::kRows, kBand = FewRing<D>::kBand;

  // A column's sum; all lanes call.
  __device__ static __forceinline__ float joined(float band) {
    band += __shfl_xor_sync(kAllLanes, band, kWarpColumns);
    return band + __shfl_xor_sync(kAllLanes, band, 2 * kWarpColumns);
  }
  // The column's product with a key, and the band's with a query.
  __device__ __forceinline__ float products(const typename FewRing<D>::Row& row, const float4* keys) {
    const auto* queries = reinterpret_cast<const float4*>(row.query + band_ * kBand);
    float with_key = 0;
    with_query_ = 0;
    const auto add = [&](int i, float key, float query) {
      with_key = fmaf(key, state_[i], with_key), with_query_ = fmaf(query, state_[i], with_query_);
    };
#pragma unroll
    for (int i = 0; i < kRows; i += 4) {
      const float4 k = keys[i / 4], q = queries[i / 4];
      add(i, k.x, q.x), add(i + 1, k.y, q.y), add(i + 2, k.z, q.z), add(i + 3, k.w, q.w);
    }
    return joined(with_key);
  }
  // S = decay S + k d^T
  __device__ __forceinline__ void update(const float4* keys, float decay, float delta) {
#pragma unroll
    for (int i = 0; i < kRows; i += 4) {
      const float4 k = keys[i / 4];
      const float key[] = {k.x, k.y, k.z, k.w};
#pragma unroll
      for (int n = 0; n < 4; ++n) state_[i + n] = fmaf(key[n], delta, decay * state_[i + n]);
    }
  }
  __device__ __forceinline__ void write() const {
#pragma unroll
    for (int i = 0; i < kRows; ++i)
      if (active_) to_[i * D] = state_[i];
  }

  bool active_, moves_;
  int band_, column_;
  float* to_;
  float state_[kRows], with_query_ = 0;
};

// Outputs of a key head's value heads, normed and gated, and what is pending from now on; the whole block calls.
template <int D>
__device__ __forceinline__ void finish_heads(const Work& work, const Sequence& sequence, const HeadPart<D>& part) {
  constexpr int kHalfWarps = kOneThreads<D> / kLanes;
  const int own = static_cast<int>(sequence.own), all = own * part.group, thread = static_cast<int>(threadIdx.x);
#pragma unroll 1
  for (int n = kHalfWarps - 1 - thread / kLanes; n < (all + 1) / 2 * 2; n += kHalfWarps) {  // the last threads begin
    const int which = min(n, all - 1);
    finish_row<D>(work, sequence.begin + which % own, part.value_head(which / own), n < all);
  }
  const int pending_max = static_cast<int>(work.geometry.pending_max);
#pragma unroll 1
  for (int i = thread; i < pending_max * part.group; i += kOneThreads<D>) {
    const int head = part.value_head(i / pending_max), t = i % pending_max;
    Gates gates;
    gates.beta = kNoToken;
    if (!work.geometry.commit && t < own) gates.read(work, sequence, head, sequence.pending + t), gates.finish();
    work.gates[work.log_decay_at(sequence.slot_out, t, head)] = gates.log_decay;
    work.gates[work.beta_at(sequence.slot_out, t, head)] = gates.beta;
  }
}

// grid: [parts of a head's columns, value heads]. `done` [key heads]: counts blocks that are done with one. What
// the launch before does not write is asked for before that one is done: state, window and pending gates.
template <int D>
__global__ void __launch_bounds__(kOneThreads<D>, 2) scan_one(const __grid_constant__ Work work, unsigned* done) {
  allow_next();
  __shared__ __align__(16) FewTokens<D> tokens;
  const Geometry& g = work.geometry;
  const int thread = static_cast<int>(threadIdx.x);
  const bool scans = thread < kScanners * kWarp, has_value = thread >= kUnitThreads<D>;
  const Sequence sequence(work.step, 0);
  const HeadPart<D> part(g);
  Band<D> band(work, sequence, part);
  const int c = has_value ? thread - kUnitThreads<D> + 2 * D : thread, channel = part.channel(c);
  const bool active = has_value ? c < 2 * D + part.count : c < 2 * D;
  float4 tap{};
  if (active) tap = *reinterpret_cast<const float4*>(work.conv + 4 * channel);
  const int told_by = part.value_head(0);  // the same one for all who are counted together
  const bool holds = sequences_hold(work.step, told_by);
  const int count = static_cast<int>(sequence.count()), stored = kHistory + static_cast<int>(sequence.pending);
  if (holds)
    ask_for_columns(g, part, work.past_window + sequence.slot_in * g.window_rows() * g.channels(), 0, stored,
                    sequence.fresh ? 0 : 16, tokens);
  await_previous();
  if (!holds) return tell_step(work.step, told_by, Operator::gated_delta_net, work.record);
  ask_for_columns(g, part, work.qkv + (sequence.begin - stored) * g.channels(), stored, kHistory + count, 16, tokens);
  if (const int n = thread - kUnitThreads<D>; n >= 0 && n < count) {
    Gates gates;
    gates.read(work, sequence, part.head, n), gates.finish();
    tokens.ring.gate[n].decay = gates.decay(), tokens.ring.gate[n].beta = gates.beta;
  }
  await_copies(0);
  __syncthreads();
  if (active) make_column(c, count, tap, tokens);
  __syncthreads();
  make_units(g.eps, count, tokens);
  __syncthreads();
  const int kept = static_cast<int>(sequence.left_behind(g.commit));  // tokens of the state after the step
  if (scans) band.scan(work, sequence, part, kept, tokens.ring);
  const bool last = is_last(done + part.k_head, static_cast<unsigned>(part.group) * gridDim.x);
  if (active && (last || has_value)) {
    float* window = work.window + sequence.slot_out * g.window_rows() * g.channels() + channel;
#pragma unroll 1
    for (int row = 0; row < sequence.window_rows(g.commit); ++row)
      window[row * g.channels()] = tokens.column[kept + row][c];
  }
  if (last) finish_heads(work, sequence, part);
}

using ScanOne = void (*)(Work, unsigned*);
constexpr ScanOne kScanOnes[] = {scan_one<16>, scan_one<32>, scan_one<48>,  scan_one<64>,
                                 scan_one<80>, scan_one<96>, scan_one<112>, scan_one<128>};
constexpr int kOneThreadsOf[] = {kOneThreads<16>, kOneThreads<32>, kOneThreads<48>,  kOneThreads<64>,
                                 kOneThreads<80>, kOneThreads<96>, kOneThreads<112>, kOneThreads<128>};

}  // namespace trigraph::TRIGRAPH_ISA
