// The first launch: convolution, SiLU, unit lengths, and the window after the step.
#pragma once

#include "work.cuh"

namespace trigraph::TRIGRAPH_ISA {

constexpr int kMixTokens = 32;  // of a block
constexpr int kMixAhead = 8;    // columns that are read together

// Columns i to i + count, at most N, of a sequence: history, pending tokens, own tokens.
template <int N>
__device__ __forceinline__ void read_columns(const Work& work, const Sequence& sequence, int64_t i, int count,
                                             int64_t channel, float* out) {
  const Geometry& g = work.geometry;
  const int64_t stored = kHistory + sequence.pending;
  const float* own = work.qkv + (sequence.begin - stored) * g.channels() + channel;
  const float* before = work.past_window + sequence.slot_in * g.window_rows() * g.channels() + channel;
#pragma unroll
  for (int n = 0; n < N; ++n) {
    const bool is_own = i + n >= stored, is_there = n < count && (is_own || !sequence.fresh);
    out[n] = is_there ? (is_own ? own : before)[(i + n) * g.channels()] : 0.0f;
  }
}

// A channel's convolution with four columns.
__device__ __forceinline__ float convolved(const float* x, const float4& tap) {
  return fmaf(x[3], tap.w, fmaf(x[2], tap.z, fmaf(x[1], tap.y, x[0] * tap.x)));
}

// A thread's channel of the window. Only a first chunk reads the window, and a thread reads nobody's channels but its
// own: so it may move them. A column never lies before its destination.
__device__ __forceinline__ void move_window(const Work& work, const Sequence& sequence, int64_t channel) {
  const Geometry& g = work.geometry;
  const int64_t kept = sequence.left_behind(g.commit);
  const int moved = sequence.window_rows(g.commit);
  float* window = work.window + sequence.slot_out * g.window_rows() * g.channels() + channel;
  for (int row = 0; row < moved; row += kMixAhead) {
    float x[kMixAhead];
    read_columns<kMixAhead>(work, sequence, kept + row, moved - row, channel, x);
#pragma unroll
    for (int n = 0; n < kMixAhead; ++n)
      if (row + n < moved) window[(row + n) * g.channels()] = x[n];
  }
}

// grid: [query, key and value heads, chunks of tokens, sequences]; a thread for each channel of the head.
__global__ void __launch_bounds__(kMostDim) mix(Work work) {
  __shared__ float head[kMixTokens][kMostDim], factor[kMixTokens];
  const Geometry& g = work.geometry;
  const int unit = blockIdx.x, thread = threadIdx.x, dim = static_cast<int>(g.dim);
  const bool active = thread < dim, key_or_query = unit < 2 * g.k_heads;
  const int64_t channel = unit * g.dim + (active ? thread : 0);
  const float4 tap = *reinterpret_cast<const float4*>(work.conv + 4 * channel);
  if (!step_holds(work, 0)) return;
  const Sequence sequence(work.step, blockIdx.z);
  const int64_t first = int64_t{blockIdx.y} * kMixTokens;
  const int count = static_cast<int>(min(int64_t{kMixTokens}, sequence.count() - first));
  if (count <= 0) return;
  float* out = work.mixed_of(sequence, blockIdx.z) + first * g.channels() + channel;

  float x[kHistory + kMixAhead];
  read_columns<kHistory>(work, sequence, first, kHistory, channel, x);
  for (int from = 0; active && from < count; from += kMixAhead) {
    read_columns<kMixAhead>(work, sequence, first + kHistory + from, count - from, channel, x + kHistory);
#pragma unroll
    for (int n = 0; n < kMixAhead; ++n) {
      if (from + n >= count) break;
      const float value = silu(convolved(x + n, tap));
      if (key_or_query)
        head[from + n][thread] = value;
      else
        out[(from + n) * g.channels()] = value;
    }
#pragma unroll
    for (int n = 0; n < kHistory; ++n) x[n] = x[kMixAhead + n];
  }
  __syncthreads();
  if (key_or_query) {
    const float scale = unit < g.k_heads ? 1.0f / sqrtf(static_cast<float>(dim)) : 1.0f;
    for (int t = thread / kLanes; t < (count + 1) / 2 * 2; t += blockDim.x / kLanes) {  // all lanes of a warp or none
      const float squares = dot(head[min(t, count - 1)], head[min(t, count - 1)], dim);
      if (t < count && thread % kLanes == 0) factor[t] = scale / sqrtf(squares + g.eps);
    }
    __syncthreads();
    for (int t = 0; active && t < count; ++t) out[t * g.channels()] = head[t][thread] * factor[t];
  }
  if (first == 0 && active) move_window(work, sequence, channel);
}

}  // namespace trigraph::TRIGRAPH_ISA
