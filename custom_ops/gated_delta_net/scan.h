// The delta rule over one head's state S, C tokens at a time (C = 1: token by token; more: the chunked WY form of Yang
// et al., 2024). With E_ts the decay from token s to token t of a chunk, E_t the decay from the chunk's start to t, and
// S the state before it:
//   x_t = beta_t (v_t - E_t S^T k_t) - sum over s < t of beta_t (k_t . k_s) E_ts x_s
//   o_t = E_t S^T q_t + sum over s <= t of (q_t . k_s) E_ts x_s
//   S   = E_last S + sum over s of E_last,s k_s x_s^T
// Column j of S and of x meet no other column, so a head is done by blocks of columns that stay in cache. A walk over a
// block applies one chunk (a product of rank C) and takes the products with the next chunk's 2 C keys and queries, all
// in registers: n chunks are n + 1 walks. Decoding uses C = 1, prefill C = 2. Arithmetic is the limit: C = 2 was
// measured 1.3 times as fast as C = 1, chunks of 16 to 64 by blocked matrix products, which multiply more, 1.1 times.
#pragma once

#include <algorithm>
#include <new>
#include <type_traits>

#include "mix.h"

namespace trigraph::TRIGRAPH_ISA {

constexpr int kScanVectors = 4;                   // of a walk with C = 1
constexpr int kPrefillChunk = 2;                  // tokens
constexpr int64_t kScanWork = kScanVectors * VL;  // columns of `work`

struct Token {
  const float *k, *v;  // [D]
  const float* q;      // [D], or nullptr: no output is wanted
  float* o;            // [D] when q is there
  float decay, beta;   // e^g
};

// The scalars of one chunk. The state is held divided by a scale, so that decays need not be multiplied in at every
// chunk.
template <int C>
struct Chunk {
  const Token* tokens;
  float read[C];      // scale * E_t
  float solve[C][C];  // -beta_t (k_t . k_s) E_ts, s < t
  float look[C][C];   // (q_t . k_s) E_ts, s <= t
  float write[C];     // E_last,s / scale after the chunk
  float keep;         // what the held state is multiplied by

  // Advances `scale`; with `settle` the state is held as it is (scale 1) after the chunk.
  Chunk(const Token* first, int64_t dim, bool settle, float* scale) : tokens(first) {
    float between[C][C];
    for (int t = 0; t < C; ++t) {
      const Token& token = tokens[t];
      between[t][t] = 1;
      read[t] = (t ? read[t - 1] : *scale) * token.decay;
      for (int s = 0; s < t; ++s) {
        between[t][s] = between[t - 1][s] * token.decay;
        solve[t][s] = -token.beta * dot(token.k, tokens[s].k, dim) * between[t][s];
      }
      if (token.q)
        for (int s = 0; s <= t; ++s) look[t][s] = dot(token.q, tokens[s].k, dim) * between[t][s];
    }
    const float after = read[C - 1];
    settle = settle || after < 1e-6f;
    keep = settle ? after : 1;
    *scale = settle ? 1 : after;
    for (int s = 0; s < C; ++s) write[s] = between[C - 1][s] / *scale;
  }
};

// One walk over V vectors of columns: the update by a chunk (kKeep: the held state is multiplied first) and the
// products with the next chunk's keys and queries. A sum runs over rows in ascending order whatever the walk does
// besides.
template <int V, int C, bool kKeep, bool kProducts, bool kQuery>
inline void walk(const float* from, int64_t from_stride, float* to, int64_t to_stride, int64_t rows,
                 const Chunk<C>& chunk, const vf (*x)[V], const Chunk<C>* next, vf (*sk)[V], vf (*sq)[V]) {
  const vf keep = splat(chunk.keep);
  vf delta[C][V], sum_k[C][V], sum_q[C][V];
  const float *key[C], *next_key[C] = {}, *next_query[C] = {};
  for (int c = 0; c < C; ++c) {
    key[c] = chunk.tokens[c].k;
    if (kProducts) next_key[c] = next->tokens[c].k;
    if (kQuery) next_query[c] = next->tokens[c].q;
    for (int v = 0; v < V; ++v) {
      delta[c][v] = x[c][v];
      sum_k[c][v] = sum_q[c][v] = zero();
    }
  }
  for (int64_t i = 0; i < rows; ++i) {
    vf row[V];
    for (int v = 0; v < V; ++v) {
      row[v] = load(from + i * from_stride + v * VL);
      if (kKeep) row[v] = mul(keep, row[v]);
    }
    for (int c = 0; c < C; ++c) {
      const vf factor = splat(key[c][i]);
      for (int v = 0; v < V; ++v) row[v] = fmadd(factor, delta[c][v], row[v]);
    }
    for (int v = 0; v < V; ++v) store(to + i * to_stride + v * VL, row[v]);
    for (int c = 0; c < C; ++c) {
      if (kProducts) {
        const vf factor = splat(next_key[c][i]);
        for (int v = 0; v < V; ++v) sum_k[c][v] = fmadd(factor, row[v], sum_k[c][v]);
      }
      if (kQuery) {
        const vf factor = splat(next_query[c][i]);
        for (int v = 0; v < V; ++v) sum_q[c][v] = fmadd(factor, row[v], sum_q[c][v]);
      }
    }
  }
  for (int c = 0; c < C; ++c)
    for (int v = 0; v < V; ++v) {
      sk[c][v] = sum_k[c][v];
      sq[c][v] = sum_q[c][v];
    }
}

// The variant of the walk that `chunk` and `next` need; a null `next` wants no products.
template <int V, int C>
inline void walk_to(const Chunk<C>* next, const float* from, int64_t from_stride, float* to, int64_t to_stride,
                    int64_t rows, const Chunk<C>& chunk, const vf (*x)[V], vf (*sk)[V], vf (*sq)[V]) {
  const auto run = [&](auto keep, auto products, auto query) {
    walk<V, C, keep, products, query>(from, from_stride, to, to_stride, rows, chunk, x, next, sk, sq);
  };
  constexpr std::true_type yes;
  constexpr std::false_type no;
  const bool query = next && next->tokens[0].q;
  if (!next)
    run(yes, no, no);
  else if (chunk.keep == 1)  // a multiplication by 1 changes no bits
    query ? run(no, yes, yes) : run(no, yes, no);
  else
    query ? run(yes, yes, yes) : run(yes, yes, no);
}

// Adds the first chunk's products with V vectors of columns and a band of rows to sums: [2 * C][dim], the keys' and
// then the queries'.
template <int V, int C, bool kQuery>
inline void add_products(const Chunk<C>& chunk, const float* from, int64_t dim, int64_t column, int64_t first_row,
                         int64_t rows, float* sums) {
  vf sum_k[C][V], sum_q[C][V];
  for (int c = 0; c < C; ++c)
    for (int v = 0; v < V; ++v) {
      sum_k[c][v] = load(sums + c * dim + column + v * VL);
      sum_q[c][v] = load(sums + (C + c) * dim + column + v * VL);
    }
  for (int64_t i = first_row; i < first_row + rows; ++i)
    for (int c = 0; c < C; ++c) {
      const vf key = splat(chunk.tokens[c].k[i]), query = splat(kQuery ? chunk.tokens[c].q[i] : 0);
      for (int v = 0; v < V; ++v) {
        const vf x = load(from + i * dim + column + v * VL);
        sum_k[c][v] = fmadd(key, x, sum_k[c][v]);
        if (kQuery) sum_q[c][v] = fmadd(query, x, sum_q[c][v]);
      }
    }
  for (int c = 0; c < C; ++c)
    for (int v = 0; v < V; ++v) {
      store(sums + c * dim + column + v * VL, sum_k[c][v]);
      if (kQuery) store(sums + (C + c) * dim + column + v * VL, sum_q[c][v]);
    }
}

// The walk before the first chunk, in the order of memory: the state may have to come from there, which likes long
// runs.
template <int C, bool kQuery>
inline void first_products(const Chunk<C>& chunk, const float* from, int64_t dim, float* sums) {
  constexpr int V = kScanVectors / C;
  constexpr int64_t kBand = 8;  // rows
  std::memset(sums, 0, 2 * C * dim * sizeof(float));
  for (int64_t row = 0; row < dim; row += kBand) {
    int64_t column = 0;
    for (; column + V * VL <= dim; column += V * VL)
      add_products<V, C, kQuery>(chunk, from, dim, column, row, kBand, sums);
    for (; column < dim; column += VL) add_products<1, C, kQuery>(chunk, from, dim, column, row, kBand, sums);
  }
}

// Runs chunks over the V vectors of columns at `column`. The state after the first `committed` chunks goes to `to`
// ([dim][dim], may be `from`), once; the others stay in `work` ([dim][V * VL]), except the one after the last chunk,
// which nothing reads.
template <int V, int C>
inline void scan_columns(const Chunk<C>* chunks, int64_t count, int64_t committed, const float* from, float* to,
                         const float* sums, float* work, int64_t dim, int64_t column) {
  const float* state = from + column;
  int64_t stride = dim;
  vf sk[C][V], sq[C][V], x[C][V];
  for (int c = 0; c < C; ++c)
    for (int v = 0; v < V; ++v) {
      sk[c][v] = load(sums + c * dim + column + v * VL);
      sq[c][v] = load(sums + (C + c) * dim + column + v * VL);
    }
  for (int64_t n = 0; n < count; ++n) {
    const Chunk<C>& chunk = chunks[n];
    for (int t = 0; t < C; ++t) {
      const Token& token = chunk.tokens[t];
      const vf read = splat(chunk.read[t]), beta = splat(token.beta);
      for (int v = 0; v < V; ++v) {
        x[t][v] = mul(sub(load(token.v + column + v * VL), mul(read, sk[t][v])), beta);
        for (int s = 0; s < t; ++s) x[t][v] = fmadd(splat(chunk.solve[t][s]), x[s][v], x[t][v]);
        if (!token.q) continue;
        vf o = mul(read, sq[t][v]);
        for (int s = 0; s <= t; ++s) o = fmadd(splat(chunk.look[t][s]), x[s][v], o);
        store(token.o + column + v * VL, o);
      }
    }
    for (int t = 0; t < C; ++t)
      for (int v = 0; v < V; ++v) x[t][v] = mul(x[t][v], splat(chunk.write[t]));
    const bool last = n + 1 == count, commit = n + 1 == committed;
    if (last && !commit) break;
    float* target = commit ? to + column : work;
    const int64_t target_stride = commit ? dim : V * VL;
    walk_to<V>(last ? nullptr : &chunk + 1, state, stride, target, target_stride, dim, chunk, x, sk, sq);
    state = target;
    stride = target_stride;
  }
}

template <int C>
inline void scan_chunks(const Chunk<C>* chunks, int64_t count, int64_t committed, const float* from, float* to,
                        float* work, int64_t dim) {
  constexpr int V = kScanVectors / C;
  float* sums = work + dim * kScanWork;
  if (chunks[0].tokens[0].q)
    first_products<C, true>(chunks[0], from, dim, sums);
  else
    first_products<C, false>(chunks[0], from, dim, sums);
  int64_t column = 0;
  for (; column + V * VL <= dim; column += V * VL)
    scan_columns<V>(chunks, count, committed, from, to, sums, work, dim, column);
  for (; column < dim; column += VL) scan_columns<1>(chunks, count, committed, from, to, sums, work, dim, column);
}

inline int64_t scan_bytes(int64_t count, int64_t dim) {
  return dim * (kScanWork + 2 * kPrefillChunk) * sizeof(float) +
         count * std::max(sizeof(Chunk<1>), sizeof(Chunk<kPrefillChunk>));
}

// Token by token, as decoding goes: a token's bits do not depend on the tokens beside it. The state after the first
// `committed` tokens is written to `to`, which may be `from`. scratch has scan_bytes; dim is a multiple of VL.
inline void scan_tokens(const Token* tokens, int64_t count, int64_t committed, const float* from, float* to,
                        void* scratch, int64_t dim) {
  float* work = static_cast<float*>(scratch);
  Chunk<1>* chunks = reinterpret_cast<Chunk<1>*>(work + dim * (kScanWork + 2));
  float scale = 1;
  for (int64_t t = 0; t < count; ++t) new (chunks + t) Chunk<1>(tokens + t, dim, true, &scale);
  scan_chunks(chunks, count, committed, from, to, work, dim);
}

// The same to rounding, by chunks; every token has an output and is committed.
inline void scan_prefill(const Token* tokens, int64_t count, float* state, void* scratch, int64_t dim) {
  constexpr int C = kPrefillChunk;
  float* work = static_cast<float*>(scratch);
  Chunk<C>* chunks = reinterpret_cast<Chunk<C>*>(work + dim * (kScanWork + 2 * C));
  const int64_t whole = count / C;
  float scale = 1;
  for (int64_t n = 0; n < whole; ++n) new (chunks + n) Chunk<C>(tokens + n * C, dim, n + 1 == whole, &scale);
  if (whole) scan_chunks(chunks, whole, whole, state, state, work, dim);
  if (count % C) scan_tokens(tokens + whole * C, count % C, count % C, state, state, scratch, dim);
}

// Readies `to` for a scan from it: zeros at the start of a sequence, else the state at `from`.
inline void copy_state(bool fresh, const float* from, float* to, int64_t size) {
  if (fresh)
    std::memset(to, 0, size * sizeof(float));
  else if (from != to)
    std::memcpy(to, from, size * sizeof(float));
}

}  // namespace trigraph::TRIGRAPH_ISA
