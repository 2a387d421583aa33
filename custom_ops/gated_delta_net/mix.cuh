// The first launch: convolution, SiLU, unit lengths, and the window after the step.
#pragma once

#include "work.cuh"

namespace trigraph::TRIGRAPH_ISA {

constexpr int kMixTokens = 32;  // of a block

// Column i of a sequence: history, pending tokens, own tokens.
__device__ __forceinline__ float column(const Work& work, const Sequence& sequence, int64_t i, int64_t channel) {
  const Geometry& g = work.geometry;
  const int64_t stored = kHistory + sequence.pending;
  if (i >= stored) return work.qkv[(sequence.begin + i - stored) * g.channels() + channel];
  if (sequence.fresh) return 0;
  return work.past_window[(sequence.slot_in * g.window_rows() + i) * g.channels() + channel];
}

// A thread's channel of the window. Only a first chunk reads the window, and a thread reads nobody's channels but its
// own: so it may move them. A column never lies before its destination.
__device__ __forceinline__ void move_window(const Work& work, const Sequence& sequence, int64_t channel) {
  const Geometry& g = work.geometry;
  const int64_t kept = g.commit ? sequence.count() : sequence.pending;
  const int64_t moved = kHistory + (g.commit ? 0 : sequence.own);
  float* window = work.window + sequence.slot_out * g.window_rows() * g.channels() + channel;
  for (int64_t row = 0; row < moved; ++row) window[row * g.channels()] = column(work, sequence, kept + row, channel);
}

// grid: [query, key and value heads, chunks of tokens, sequences]; a thread for each channel of the head.
__global__ void __launch_bounds__(kMostDim) mix(Work work) {
  __shared__ float head[kMixTokens][kMostDim], factor[kMixTokens];
  if (!step_holds(work)) return;
  const Geometry& g = work.geometry;
  const Sequence sequence(work.step, blockIdx.z);
  const int unit = blockIdx.x, thread = threadIdx.x, dim = static_cast<int>(g.dim);
  const int64_t first = int64_t{blockIdx.y} * kMixTokens;
  const int count = static_cast<int>(min(int64_t{kMixTokens}, sequence.count() - first));
  if (count <= 0) return;
  const bool active = thread < dim, key_or_query = unit < 2 * g.k_heads;
  const int64_t channel = unit * g.dim + (active ? thread : 0);
  float* out = work.mixed_of(sequence, blockIdx.z) + first * g.channels() + channel;

  const float4 tap = *reinterpret_cast<const float4*>(work.conv + 4 * channel);
  float x0 = column(work, sequence, first, channel), x1 = column(work, sequence, first + 1, channel),
        x2 = column(work, sequence, first + 2, channel);
  for (int t = 0; active && t < count; ++t) {
    const float x3 = column(work, sequence, first + t + 3, channel);
    const float value = silu(fmaf(x3, tap.w, fmaf(x2, tap.z, fmaf(x1, tap.y, x0 * tap.x))));
    if (key_or_query)
      head[t][thread] = value;
    else
      out[t * g.channels()] = value;
    x0 = x1, x1 = x2, x2 = x3;
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
