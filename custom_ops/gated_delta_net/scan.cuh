// The second launch: the delta rule of scan.h, output norm and gate. A block for each value head of a sequence, with
// the state in registers: read once, written once.
#pragma once

#include "work.cuh"

namespace trigraph::TRIGRAPH_ISA {

constexpr int kGroup = 8;  // tokens whose keys and queries are in shared memory together

// log(1 + e^x) as in mix.h.
__device__ __forceinline__ float softplus(float x) {
  const float negative = 0.0f - x, y = exp(x < negative ? x : negative);
  const float s = y / (2.0f + y), s2 = s * s;
  float p = 1.0f / 17;
#pragma unroll
  for (int n = 15; n >= 3; n -= 2) p = fmaf(p, s2, 1.0f / static_cast<float>(n));
  const float twice = s + s;
  return (x > 0.0f ? x : 0.0f) + fmaf(p * s2, twice, twice);
}

__device__ __forceinline__ float log_decay(const Work& work, int64_t row, int64_t head) {
  return softplus(work.alpha[row * work.geometry.v_heads + head] + work.dt_bias[head]) * work.a[head];
}
__device__ __forceinline__ float beta(const Work& work, int64_t row, int64_t head) {
  return sigmoid(work.beta[row * work.geometry.v_heads + head]);
}

struct Tokens {
  float key[kGroup][kMostDim], query[kGroup][kMostDim], out[kGroup][kMostDim];
  float decay[kGroup], beta[kGroup], look[kGroup];

  // Tokens first to first + count of a sequence; the whole block calls.
  __device__ void load(const Work& work, const Sequence& sequence, const float* mixed, int64_t head, int64_t first,
                       int count) {
    const Geometry& g = work.geometry;
    const int dim = static_cast<int>(g.dim), thread = threadIdx.x;
    const int64_t k_head = g.k_head(head);
    for (int i = thread; i < count * dim; i += blockDim.x) {
      const float* token = mixed + (first + i / dim) * g.channels() + i % dim;
      query[i / dim][i % dim] = token[k_head * dim];
      key[i / dim][i % dim] = token[(g.k_heads + k_head) * dim];
    }
    if (thread < count) {
      const int64_t t = first + thread, own = t - sequence.pending;
      const float* saved = work.step.past_gates;
      const float g_t =
          own < 0 ? saved[work.log_decay_at(sequence.slot_in, t, head)] : log_decay(work, sequence.begin + own, head);
      decay[thread] = g_t < -60.0f ? 0.0f : exp(g_t);  // below e^-60 nothing of the old state is left in float32
      beta[thread] = own < 0 ? saved[work.beta_at(sequence.slot_in, t, head)]
                             : TRIGRAPH_ISA::beta(work, sequence.begin + own, head);
    }
    __syncthreads();
    for (int n = thread / kLanes; n < kGroup; n += blockDim.x / kLanes) {
      const float product = dot(query[min(n, count - 1)], key[min(n, count - 1)], dim);
      if (n < count && thread % kLanes == 0) look[n] = product;
    }
    __syncthreads();
  }

  // Output norm and gate of own tokens; the whole block calls.
  __device__ void finish(const Work& work, const Sequence& sequence, int64_t head, int64_t first, int count) {
    const Geometry& g = work.geometry;
    const int dim = static_cast<int>(g.dim), thread = threadIdx.x;
    __syncthreads();
    for (int n = thread / kLanes; n < kGroup; n += blockDim.x / kLanes) {
      const float* o = out[min(n, count - 1)];
      const float factor = 1.0f / sqrtf(dot(o, o, dim) / static_cast<float>(dim) + g.eps);
      const int64_t own = first + n - sequence.pending;
      if (n >= count || own < 0) continue;
      const int64_t to = ((sequence.begin + own) * g.v_heads + head) * dim;
      for (int i = thread % kLanes; i < dim; i += kLanes)
        work.y[to + i] = o[i] * factor * work.norm[i] * silu(work.z[to + i]);
    }
    __syncthreads();
  }
};

// One column of the state, and its products with the next token's key and query.
template <int D>
struct Column {
  float state[D], with_key = 0, with_query = 0;

  __device__ void products(const float* key, const float* query) {
    with_key = with_query = 0;
#pragma unroll
    for (int i = 0; i < D; ++i) {
      with_key = fmaf(key[i], state[i], with_key);
      with_query = fmaf(query[i], state[i], with_query);
    }
  }
  // S = decay S + k d^T
  __device__ void update(float decay, const float* key, float delta) {
#pragma unroll
    for (int i = 0; i < D; ++i) state[i] = fmaf(key[i], delta, decay * state[i]);
  }
  __device__ void read(const float* from) {
#pragma unroll
    for (int i = 0; i < D; ++i) state[i] = from ? from[i * D] : 0.0f;
  }
  __device__ void write(float* to) const {
#pragma unroll
    for (int i = 0; i < D; ++i) to[i * D] = state[i];
  }
};

// What is pending from now on, when all that was saved before has been read.
__device__ __forceinline__ void save_gates(const Work& work, const Sequence& sequence, int64_t head) {
  for (int64_t t = threadIdx.x; t < work.geometry.pending_max; t += blockDim.x) {
    const bool pending = !work.geometry.commit && t < sequence.own;
    work.gates[work.log_decay_at(sequence.slot_out, t, head)] =
        pending ? log_decay(work, sequence.begin + t, head) : 0.0f;
    work.gates[work.beta_at(sequence.slot_out, t, head)] = pending ? beta(work, sequence.begin + t, head) : kNoToken;
  }
}

// grid: [value heads, sequences]; a thread for each column of the state, in whole warps.
template <int D>
__global__ void __launch_bounds__((D + kWarp - 1) / kWarp * kWarp) scan(Work work) {
  __shared__ __align__(16) Tokens tokens;
  if (!*work.verdict) return;
  const Geometry& g = work.geometry;
  const Sequence sequence(work.step, blockIdx.y);
  const int64_t head = blockIdx.x, size = g.v_heads * D * D;
  const bool active = threadIdx.x < D;
  const int j = active ? threadIdx.x : 0;
  const float* mixed = work.mixed_of(sequence, blockIdx.y);
  const float* from = work.past_state + sequence.slot_in * size + head * D * D + j;
  float* to = work.state + sequence.slot_out * size + head * D * D + j;

  Column<D> column;
  column.read(sequence.fresh ? nullptr : from);
  if (active && !g.commit && sequence.pending == 0 && (sequence.fresh || from != to)) column.write(to);
  for (int64_t first = 0; first < sequence.count(); first += kGroup) {
    const int count = static_cast<int>(min(int64_t{kGroup}, sequence.count() - first));
    tokens.load(work, sequence, mixed, head, first, count);
    for (int n = 0; active && n < count; ++n) {
      const float decay = tokens.decay[n];
      const float value = mixed[(first + n) * g.channels() + (2 * g.k_heads + head) * D + j];
      column.products(tokens.key[n], tokens.query[n]);
      const float delta = tokens.beta[n] * (value - decay * column.with_key);
      tokens.out[n][j] = fmaf(tokens.look[n], delta, decay * column.with_query);
      column.update(decay, tokens.key[n], delta);
      if (!g.commit && first + n + 1 == sequence.pending) column.write(to);
    }
    tokens.finish(work, sequence, head, first, count);
  }
  if (active && g.commit) column.write(to);
  save_gates(work, sequence, head);
}

using Scan = void (*)(Work);
constexpr Scan kScans[] = {scan<16>, scan<32>, scan<48>, scan<64>, scan<80>, scan<96>, scan<112>, scan<128>};

}  // namespace trigraph::TRIGRAPH_ISA
