// The whole step of one sequence with few tokens in one launch: the block of a value head makes the queries, keys and
// values that it needs. Those of a key head are made by every value head that shares it.
#pragma once

#include "../cuda/last_block.cuh"
#include "mix.cuh"
#include "scan.cuh"

namespace trigraph::TRIGRAPH_ISA {

// What a third of a block's threads make. The first two thirds also scan: a thread has half a column of the state, two
// bands of its rows.
enum Role { kQuery, kKey, kValue };
template <int D>
constexpr int kHalfThreads = (D + kWarp - 1) / kWarp * kWarp;

template <int D>
struct OneHead {
  static constexpr int kRows = D / 2;
  Tokens<D> tokens;
  float window[kHistory + kGroup][3][D];  // after the step: a thread's channel
  bool last;                              // of the value heads that read their key head's window: it may move it
  float product[2][2][2][D];              // of a token, even or odd, by halves: of columns with its key and its query

  // What a half of a column's rows makes with token n; the whole block calls.
  __device__ __forceinline__ void multiply(int n, int half, int j, const float* state) {
    if (half < 2 && j < D) {
      const float *key = tokens.key[n] + half * kRows, *query = tokens.query[n] + half * kRows;
      const auto band = [&](int b) { return band_products<D>(state, key, query, b * (kRows / 2), [](int) {}); };
      const Products sum = band(0) + band(1);
      float (*made)[D] = product[n % 2][half];
      made[0][j] = sum.key, made[1][j] = sum.query;
    }
    __syncthreads();
  }
  // Output of token n, and S = decay S + k d^T, by the threads that scan.
  __device__ __forceinline__ void update(int n, int half, int j, float* state) {
    const auto made = [&](int with) { return product[n % 2][0][with][j] + product[n % 2][1][with][j]; };
    const float decay = tokens.decay[n], delta = tokens.beta[n] * (tokens.value[n][j] - decay * made(0));
    if (half == 0) tokens.out[n][j] = fmaf(tokens.look[n], delta, decay * made(1));
    const float* key = tokens.key[n] + half * kRows;
#pragma unroll
    for (int i = 0; i < kRows; ++i) state[i] = fmaf(key[i], delta, decay * state[i]);
  }
};

// A channel of tokens `first` to `first + count` of a value head: the query, key or value's column `j`. Of token n it
// goes to made[n * stride]; what the window holds after the step, to window[row * between]; the gates are those of
// token `gated`, if that is one.
template <int D>
__device__ __forceinline__ void make_channel(const Work& work, const Sequence& sequence, int64_t head, int role, int j,
                                             int64_t channel, int64_t first, int count, int gated, float* made,
                                             int stride, float* window, int between, Tokens<D>& tokens) {
  const Geometry& g = work.geometry;
  const float4 tap = *reinterpret_cast<const float4*>(work.conv + 4 * channel);
  float x[kHistory + kGroup];
  read_columns<kHistory + kGroup>(work, sequence, first, kHistory + count, channel, x);
  float z[kGroup];
#pragma unroll
  for (int n = 0; n < kGroup; ++n) {
    const int64_t own = first + n - sequence.pending;
    const bool is_gate = role == kValue && n < count && own >= 0;
    z[n] = is_gate ? work.z[((sequence.begin + own) * g.v_heads + head) * D + j] : 0.0f;
  }
  Gates gates;
  const bool has_gates = role == kKey && gated < count;
  if (has_gates) gates.read(work, sequence, head, first + gated);
#pragma unroll
  for (int n = 0; n < kGroup; ++n) {
    if (n < count) made[n * stride] = convolved(x + n, tap);
    if (n < count && role == kValue) tokens.z[n][j] = z[n];
  }
  const int before = static_cast<int>(first - sequence.left_behind(g.commit)), rows = sequence.window_rows(g.commit);
#pragma unroll
  for (int n = 0; n < kHistory + kGroup; ++n)
    if (before + n >= 0 && before + n < rows) window[(before + n) * between] = x[n];
#pragma unroll 1
  for (int n = 0; n < count; ++n) made[n * stride] = silu(made[n * stride]);
  if (has_gates) tokens.take_gates(gates, gated, first + gated - sequence.pending);
}

// Queries and keys of `count` tokens to unit length, by a half-warp each; the whole block calls.
template <int D>
__device__ __forceinline__ void make_units(const Work& work, int count, Tokens<D>& tokens) {
  __syncthreads();
  const float scale = 1.0f / sqrtf(static_cast<float>(D));
  for (int n = threadIdx.x / kLanes; n < 2 * count; n += blockDim.x / kLanes) {
    const bool is_key = n % 2;
    float (*vectors)[D] = is_key ? tokens.key : tokens.query;  // named: GCC 12 checks an unnamed one's index wrongly
    float* vector = vectors[n / 2];
    const float squares = dot(vector, vector, D);
    const float factor = (is_key ? 1.0f : scale) / sqrtf(squares + work.geometry.eps);
    for (int i = threadIdx.x % kLanes; i < D; i += kLanes) vector[i] *= factor;
  }
  __syncthreads();
  tokens.look_at_keys(count);
  __syncthreads();
}

// grid: [value heads]. `done` [key heads]: counts the value heads that have read the window of their key head. The
// state is asked for before the step is known to hold.
template <int D>
__global__ void __launch_bounds__(3 * kHalfThreads<D>, 1) scan_one(Work work, unsigned* done) {
  allow_next();
  __shared__ __align__(16) OneHead<D> shared;
  const Geometry& g = work.geometry;
  const int64_t head = blockIdx.x, k_head = g.k_head(head), size = g.v_heads * D * D;
  const int role = threadIdx.x / kHalfThreads<D>, j = threadIdx.x % kHalfThreads<D>;
  const Sequence sequence(work.step, 0);
  const bool scans = role < 2 && j < D, kept_before = !sequence.fresh && sequence.reads_a_slot(work.step);
  const int64_t at = (head * D + role * (D / 2)) * D + j;
  const float* from = work.past_state + sequence.slot_in * size + at;
  float *to = work.state + sequence.slot_out * size + at, state[D / 2];
#pragma unroll
  for (int i = 0; i < D / 2; ++i) state[i] = scans && kept_before ? from[i * D] : 0.0f;
  const float norm = work.norm[min(j, D - 1)];
  await_previous();
  if (!step_holds(work, head)) return;
  const int64_t channel = (role * g.k_heads + (role == kValue ? head : k_head)) * D + min(j, D - 1);
  const int64_t kept = sequence.left_behind(g.commit);  // tokens of the state after the step
  const bool moves = kept > 0 || sequence.fresh || from != to;
  unsigned before = 0;  // value heads that have read the window, known to the block's last warps
  for (int64_t first = 0; first < sequence.count(); first += kGroup) {
    const int count = static_cast<int>(min(int64_t{kGroup}, sequence.count() - first));
    Tokens<D>& tokens = shared.tokens;
    float (*made)[D] = role == kQuery ? tokens.query : role == kKey ? tokens.key : tokens.value;
    if (j < D)
      make_channel(work, sequence, head, role, j, channel, first, count, j, made[0] + j, D, shared.window[0][role] + j,
                   3 * D, tokens);
    make_units(work, count, tokens);
    if (first + count == sequence.count() && threadIdx.x == kValue * kHalfThreads<D>) {
      __threadfence();  // the block has read the window, as a barrier says, before it counts
      before = atomicInc(done + k_head, static_cast<unsigned>(g.group()) - 1);
    }
    for (int n = first ? 0 : -1; n < count; ++n) {
      if (n >= 0) {
        shared.multiply(n, role, j, state);
        if (scans) shared.update(n, role, j, state);
      }
      if (first + n + 1 == kept && moves && scans) {
#pragma unroll
        for (int i = 0; i < D / 2; ++i) to[i * D] = state[i];
      }
    }
    if (threadIdx.x == kValue * kHalfThreads<D>) {
      shared.last = before + 1 == g.group();
      __threadfence();  // and what the last one writes comes after the others' reads
    }
    __syncthreads();
    shared.tokens.find_factors(work, count);
    shared.tokens.finish(work, sequence, head, threadIdx.x < D ? count : 0, j, norm, first);
    __syncthreads();
  }
  save_gates(work, sequence, head, shared.tokens);
  if (j < D && (shared.last || role == kValue)) {
    float* window = work.window + sequence.slot_out * g.window_rows() * g.channels() + channel;
#pragma unroll 1
    for (int row = 0; row < sequence.window_rows(g.commit); ++row)
      window[row * g.channels()] = shared.window[row][role][j];
  }
}

using ScanOne = void (*)(Work, unsigned*);
constexpr ScanOne kScanOnes[] = {scan_one<16>, scan_one<32>, scan_one<48>,  scan_one<64>,
                                 scan_one<80>, scan_one<96>, scan_one<112>, scan_one<128>};

}  // namespace trigraph::TRIGRAPH_ISA
