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

// A token's gates: those saved of a pending one, or what they are made of.
struct Gates {
  bool saved = false;
  float log_decay = 0, beta = 0, alpha = 0, bias = 0, a = 0;

  __device__ void read(const Work& work, const Sequence& sequence, int64_t head, int64_t token) {
    const int64_t own = token - sequence.pending, at = (sequence.begin + own) * work.geometry.v_heads + head;
    saved = own < 0;
    if (saved) {
      log_decay = work.step.past_gates[work.log_decay_at(sequence.slot_in, token, head)];
      beta = work.step.past_gates[work.beta_at(sequence.slot_in, token, head)];
    } else {
      alpha = work.alpha[at], bias = work.dt_bias[head], a = work.a[head], beta = work.beta[at];
    }
  }
  __device__ void finish() {
    if (!saved) log_decay = softplus(alpha + bias) * a, beta = sigmoid(beta);
  }
  __device__ float decay() const { return log_decay < -60.0f ? 0.0f : exp(log_decay); }  // below, nothing old is left
};

// Tokens of a sequence on their way from memory: a thread's column of each.
template <int D>
struct Incoming {
  float key[kGroup], query[kGroup], value[kGroup];
  Gates gates;  // of token `threadIdx.x`

  __device__ __forceinline__ void read(const Work& work, const Sequence& sequence, const float* mixed, int64_t head,
                                       int j, int64_t first, int count) {
    const Geometry& g = work.geometry;
    const int64_t k_head = g.k_head(head);
    const float* token = mixed + first * g.channels() + j;
    if (const int t = threadIdx.x; t < count) gates.read(work, sequence, head, first + t);
#pragma unroll
    for (int n = 0; n < kGroup; ++n) {
      if (n < count) {
        const float* own = token + n * g.channels();
        query[n] = own[k_head * D], key[n] = own[(g.k_heads + k_head) * D], value[n] = own[(2 * g.k_heads + head) * D];
      }
    }
  }
};

template <int D>
struct Tokens {
  float key[kGroup][D], query[kGroup][D], value[kGroup][D], z[kGroup][D], out[kGroup][D];
  float decay[kGroup], beta[kGroup], look[kGroup], factor[kGroup];
  float saved_log_decay[kMostDim], saved_beta[kMostDim];  // of own tokens that will be pending

  // Takes what has come, while nobody uses what came before; the whole block calls.
  __device__ __forceinline__ void take(Incoming<D>& in, bool active, int64_t first, int count, int64_t pending) {
    const int j = threadIdx.x;
#pragma unroll
    for (int n = 0; n < kGroup; ++n)
      if (active && n < count) key[n][j] = in.key[n], query[n][j] = in.query[n], value[n][j] = in.value[n];
    if (j < count) take_gates(in.gates, j, first + j - pending);
  }
  // Asks for z of own tokens, which `finish` reads; the whole block calls.
  __device__ __forceinline__ void ask_for_z(const Work& work, const Sequence& sequence, int64_t head, int64_t first,
                                            int count) {
    const int64_t row = work.geometry.v_heads * D, own = sequence.begin + first - sequence.pending;
    for (int i = 4 * threadIdx.x; i < count * D; i += 4 * blockDim.x)
      if (first + i / D >= sequence.pending)
        copy_ahead(z[i / D] + i % D, work.z + (own + i / D) * row + head * D + i % D);
    end_copies();
  }
  // Takes the gates of token n, the sequence's own one `own` if that is not negative.
  __device__ __forceinline__ void take_gates(Gates& gates, int n, int64_t own) {
    gates.finish();
    decay[n] = gates.decay(), beta[n] = gates.beta;
    if (own >= 0 && own < kMostDim) saved_log_decay[own] = gates.log_decay, saved_beta[own] = gates.beta;
  }
  // Products of each query with its key; the whole block calls.
  __device__ __forceinline__ void look_at_keys(int count) {
    for (int n = threadIdx.x / kLanes; n < kGroup; n += blockDim.x / kLanes) {
      const float product = dot(query[min(n, count - 1)], key[min(n, count - 1)], D);
      if (n < count && threadIdx.x % kLanes == 0) look[n] = product;
    }
  }
  // Factors of the output norm; the whole block calls.
  __device__ __forceinline__ void find_factors(const Work& work, int count) {
    for (int n = threadIdx.x / kLanes; n < kGroup; n += blockDim.x / kLanes) {
      const float* o = out[min(n, count - 1)];
      const float squares = dot(o, o, D);
      if (n < count && threadIdx.x % kLanes == 0)
        factor[n] = 1.0f / sqrtf(squares / static_cast<float>(D) + work.geometry.eps);
    }
    __syncthreads();
  }
  // Output norm and gate of `count` tokens, those of them that are own, in column j.
  __device__ __forceinline__ void finish(const Work& work, const Sequence& sequence, int64_t head, int count, int j,
                                         float norm, int64_t first) const {
#pragma unroll 1
    for (int n = 0; n < count; ++n) {
      const int64_t own = first + n - sequence.pending;
      if (own >= 0)
        work.y[((sequence.begin + own) * work.geometry.v_heads + head) * D + j] =
            out[n][j] * factor[n] * norm * output_gate(work.geometry, z[n][j]);
    }
  }
};

// Products of some rows of a column with a key and a query.
struct Products {
  float key = 0, query = 0;
  __device__ __forceinline__ friend Products operator+(const Products& a, const Products& b) {
    return {a.key + b.key, a.query + b.query};
  }
};

// The products of the band of rows that begins at `first`; `row` makes each what it then is.
template <int D, class Row>
__device__ __forceinline__ Products band_products(const float* state, const float* key, const float* query, int first,
                                                  Row&& row) {
  Products sum;
#pragma unroll
  for (int i = first; i < first + D / kBands; ++i) {
    row(i);
    sum.key = fmaf(key[i], state[i], sum.key), sum.query = fmaf(query[i], state[i], sum.query);
  }
  return sum;
}

// One column of the state, and its products with the next token's key and query.
template <int D>
struct Column {
  float state[D], with_key = 0, with_query = 0;

  template <class Row>
  __device__ __forceinline__ void products(const float* key, const float* query, Row&& row) {
    const auto band = [&](int b) { return band_products<D>(state, key, query, b * (D / kBands), row); };
    const Products sum = (band(0) + band(1)) + (band(2) + band(3));
    with_key = sum.key, with_query = sum.query;
  }
  __device__ __forceinline__ void products(const float* key, const float* query) {
    products(key, query, [](int) {});
  }
  // S = decay S + k d^T
  __device__ __forceinline__ void update(float decay, const float* key, float delta) {
#pragma unroll
    for (int i = 0; i < D; ++i) state[i] = fmaf(key[i], delta, decay * state[i]);
  }
  // Both at once: the products wait for their own sums only.
  __device__ __forceinline__ void update(float decay, const float* key, float delta, const float* next_key,
                                         const float* next_query) {
    products(next_key, next_query, [&](int i) { state[i] = fmaf(key[i], delta, decay * state[i]); });
  }
  __device__ __forceinline__ void read(const float* from) {
#pragma unroll
    for (int i = 0; i < D; ++i) state[i] = from ? from[i * D] : 0.0f;
  }
  __device__ __forceinline__ void write(float* to) const {
#pragma unroll
    for (int i = 0; i < D; ++i) to[i * D] = state[i];
  }
};

// What is pending from now on, when all that was saved before has been read.
template <int D>
__device__ __forceinline__ void save_gates(const Work& work, const Sequence& sequence, int64_t head,
                                           const Tokens<D>& tokens) {
  for (int64_t t = threadIdx.x; t < work.geometry.pending_max; t += blockDim.x) {
    const bool pending = !work.geometry.commit && t < sequence.own;
    work.gates[work.log_decay_at(sequence.slot_out, t, head)] = pending ? tokens.saved_log_decay[t] : 0.0f;
    work.gates[work.beta_at(sequence.slot_out, t, head)] = pending ? tokens.saved_beta[t] : kNoToken;
  }
}

// grid: [value heads, sequences]; a thread for each column of the state, in whole warps. Memory is asked for a group of
// tokens while the one before it is at work. Left alone, the compiler takes all registers to look ahead.
template <int D>
__global__ void __maxnreg__(248) scan(Work work) {
  allow_next();
  __shared__ __align__(16) Tokens<D> tokens;
  const Geometry& g = work.geometry;
  const Sequence sequence(work.step, blockIdx.y);
  if (!*work.verdict) return;
  const int64_t head = blockIdx.x, size = g.v_heads * D * D;
  const bool active = threadIdx.x < D;
  const int j = active ? threadIdx.x : 0;
  const float* mixed = work.mixed_of(sequence, blockIdx.y);
  const float* from = work.past_state + sequence.slot_in * size + head * D * D + j;
  float* to = work.state + sequence.slot_out * size + head * D * D + j;
  const auto group = [&](int64_t first) { return static_cast<int>(min(int64_t{kGroup}, sequence.count() - first)); };

  Incoming<D> incoming;
  incoming.read(work, sequence, mixed, head, j, 0, group(0));
  const float norm = work.norm[j];
  Column<D> column;
  column.read(sequence.fresh ? nullptr : from);
  if (active && !g.commit && sequence.pending == 0 && (sequence.fresh || from != to)) column.write(to);
  for (int64_t first = 0; first < sequence.count(); first += kGroup) {
    const int count = group(first);
    tokens.take(incoming, active, first, count, sequence.pending);
    __syncthreads();
    if (first + kGroup < sequence.count())
      incoming.read(work, sequence, mixed, head, j, first + kGroup, group(first + kGroup));
    tokens.ask_for_z(work, sequence, head, first, count);
    tokens.look_at_keys(count);
    __syncthreads();
    if (active) column.products(tokens.key[0], tokens.query[0]);
    for (int n = 0; active && n < count; ++n) {
      const float decay = tokens.decay[n];
      const float delta = tokens.beta[n] * (tokens.value[n][j] - decay * column.with_key);
      tokens.out[n][j] = fmaf(tokens.look[n], delta, decay * column.with_query);
      if (n + 1 < count)
        column.update(decay, tokens.key[n], delta, tokens.key[n + 1], tokens.query[n + 1]);
      else
        column.update(decay, tokens.key[n], delta);
      if (!g.commit && first + n + 1 == sequence.pending) column.write(to);
    }
    await_copies(0);
    __syncthreads();
    tokens.find_factors(work, count);
    tokens.finish(work, sequence, head, active ? count : 0, j, norm, first);
    __syncthreads();
  }
  if (active && g.commit) column.write(to);
  save_gates(work, sequence, head, tokens);
}

using Scan = void (*)(Work);
constexpr Scan kScans[] = {scan<16>, scan<32>, scan<48>, scan<64>, scan<80>, scan<96>, scan<112>, scan<128>};

}  // namespace trigraph::TRIGRAPH_ISA
