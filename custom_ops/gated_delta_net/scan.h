// The gated delta rule over one head's state S [D][D], token by token, in decoding and in a prefill alike:
//   d = beta (v - decay S^T k)
//   o = decay S^T q + (q . k) d
//   S = decay S + k d^T
// Column j of S and element j of d meet no other column, so a head is done by blocks of columns that stay in registers
// and cache. A walk down the rows of a block applies one token and takes the products of the next one's key and query
// with what it leaves: n tokens are n + 1 walks. Sums over rows run in ascending order.
#pragma once

#include <type_traits>

#include "mix.h"

namespace trigraph::TRIGRAPH_ISA {

#if defined(TRIGRAPH_ISA_avx512) || defined(TRIGRAPH_ISA_neon)  // 32 vector registers, elsewhere 16
constexpr int kWalkParts = 4;
#else
constexpr int kWalkParts = 2;
#endif
constexpr int64_t kWalkColumns = kWalkParts * kPartLanes;

struct Token {
  const float *k, *v;       // [D]
  const float* q;           // [D], or nullptr: no output is wanted
  float* o;                 // [D] when q is there
  float decay, beta, look;  // look: q . k
};

// S^T k and S^T q of some columns.
template <int V>
struct Products {
  Part key[V], query[V];
};

// S = decay S + k d^T over V parts of columns, from `from` to `to`, and the products of `next`, if there is one.
template <int V, bool kNext, bool kQuery>
inline Products<V> walk(const float* from, int64_t from_stride, float* to, int64_t to_stride, int64_t rows,
                        const Token& token, const Part* delta, const Token* next) {
  const Part decay = splat_part(token.decay);
  const float *key = token.k, *next_key = kNext ? next->k : nullptr, *next_query = kQuery ? next->q : nullptr;
  Part d[V];
  Products<V> sum;
  TRIGRAPH_UNROLL
  for (int v = 0; v < V; ++v) {
    d[v] = delta[v];
    sum.key[v] = sum.query[v] = zero_part();
  }
  for (int64_t i = 0; i < rows; ++i) {
    Part row[V];
    TRIGRAPH_UNROLL
    for (int v = 0; v < V; ++v) {
      row[v] = mul(decay, load_part(from + i * from_stride + v * kPartLanes));
      row[v] = fmadd(splat_part(key[i]), d[v], row[v]);
      store_part(to + i * to_stride + v * kPartLanes, row[v]);
    }
    TRIGRAPH_UNROLL
    for (int v = 0; v < V; ++v) {
      if (kNext) sum.key[v] = fmadd(splat_part(next_key[i]), row[v], sum.key[v]);
      if (kQuery) sum.query[v] = fmadd(splat_part(next_query[i]), row[v], sum.query[v]);
    }
  }
  return sum;
}

// The same, by what `next` wants.
template <int V>
inline Products<V> walk(const float* from, int64_t from_stride, float* to, int64_t to_stride, int64_t rows,
                        const Token& token, const Part* delta, const Token* next) {
  if (!next) return walk<V, false, false>(from, from_stride, to, to_stride, rows, token, delta, next);
  if (!next->q) return walk<V, true, false>(from, from_stride, to, to_stride, rows, token, delta, next);
  return walk<V, true, true>(from, from_stride, to, to_stride, rows, token, delta, next);
}

// Adds the products of a token with V parts of columns and a band of rows to key_sums and query_sums, [dim] each.
template <int V, bool kQuery>
inline void add_products(const Token& token, const float* from, int64_t dim, int64_t column, int64_t first_row,
                         int64_t rows, float* key_sums, float* query_sums) {
  Products<V> sum;
  for (int v = 0; v < V; ++v) {
    sum.key[v] = load_part(key_sums + column + v * kPartLanes);
    sum.query[v] = load_part(query_sums + column + v * kPartLanes);
  }
  for (int64_t i = first_row; i < first_row + rows; ++i)
    for (int v = 0; v < V; ++v) {
      const Part x = load_part(from + i * dim + column + v * kPartLanes);
      sum.key[v] = fmadd(splat_part(token.k[i]), x, sum.key[v]);
      if (kQuery) sum.query[v] = fmadd(splat_part(token.q[i]), x, sum.query[v]);
    }
  for (int v = 0; v < V; ++v) {
    store_part(key_sums + column + v * kPartLanes, sum.key[v]);
    store_part(query_sums + column + v * kPartLanes, sum.query[v]);
  }
}

// The walk before the first token, in the order of memory: the state may have to come from there, which likes long
// runs.
template <bool kQuery>
inline void first_products(const Token& token, const float* from, int64_t dim, float* key_sums, float* query_sums) {
  constexpr int V = 4;
  constexpr int64_t kBand = 8;  // rows
  std::memset(key_sums, 0, dim * sizeof(float));
  std::memset(query_sums, 0, dim * sizeof(float));
  for (int64_t row = 0; row < dim; row += kBand) {
    int64_t column = 0;
    for (; column + V * kPartLanes <= dim; column += V * kPartLanes)
      add_products<V, kQuery>(token, from, dim, column, row, kBand, key_sums, query_sums);
    for (; column < dim; column += kPartLanes)
      add_products<1, kQuery>(token, from, dim, column, row, kBand, key_sums, query_sums);
  }
}

// Runs tokens over the V parts of columns at `column`. The state after the first `committed` tokens goes to `to`
// ([dim][dim], may be `from`), once; the others stay in `work` ([dim][V parts]), except the one after the last token,
// which nothing reads.
template <int V>
inline void scan_columns(const Token* tokens, int64_t count, int64_t committed, const float* from, float* to,
                         const float* key_sums, const float* query_sums, float* work, int64_t dim, int64_t column) {
  const float* state = from + column;
  int64_t stride = dim;
  Products<V> sum;
  for (int v = 0; v < V; ++v) {
    sum.key[v] = load_part(key_sums + column + v * kPartLanes);
    sum.query[v] = load_part(query_sums + column + v * kPartLanes);
  }
  for (int64_t t = 0; t < count; ++t) {
    const Token& token = tokens[t];
    const Part decay = splat_part(token.decay);
    Part d[V];
    for (int v = 0; v < V; ++v) {
      const int64_t at = column + v * kPartLanes;
      d[v] = mul(splat_part(token.beta), sub(load_part(token.v + at), mul(decay, sum.key[v])));
      if (token.q) store_part(token.o + at, fmadd(splat_part(token.look), d[v], mul(decay, sum.query[v])));
    }
    const bool last = t + 1 == count, commit = t + 1 == committed;
    if (last && !commit) break;
    float* target = commit ? to + column : work;
    const int64_t target_stride = commit ? dim : V * kPartLanes;
    sum = walk<V>(state, stride, target, target_stride, dim, token, d, last ? nullptr : &token + 1);
    state = target;
    stride = target_stride;
  }
}

inline int64_t scan_bytes(int64_t dim) { return dim * (kWalkColumns + 2) * sizeof(float); }

// Runs at least one token. The state after the first `committed` ones is written to `to`, which may be `from`. scratch
// has scan_bytes; dim is a multiple of 16.
inline void scan(const Token* tokens, int64_t count, int64_t committed, const float* from, float* to, float* scratch,
                 int64_t dim) {
  float *key_sums = scratch, *query_sums = key_sums + dim, *work = query_sums + dim;
  if (tokens[0].q)
    first_products<true>(tokens[0], from, dim, key_sums, query_sums);
  else
    first_products<false>(tokens[0], from, dim, key_sums, query_sums);
  int64_t column = 0;
  for (; column + kWalkColumns <= dim; column += kWalkColumns)
    scan_columns<kWalkParts>(tokens, count, committed, from, to, key_sums, query_sums, work, dim, column);
  for (; column < dim; column += kPartLanes)
    scan_columns<1>(tokens, count, committed, from, to, key_sums, query_sums, work, dim, column);
}

// Readies `to` for a scan from it: zeros at the start of a sequence, else the state at `from`.
inline void copy_state(bool fresh, const float* from, float* to, int64_t size) {
  if (fresh)
    std::memset(to, 0, size * sizeof(float));
  else if (from != to)
    std::memcpy(to, from, size * sizeof(float));
}

}  // namespace trigraph::TRIGRAPH_ISA
