// The gated delta rule over one head's state S [D][D], token by token, in decoding and in a prefill alike:
//   d = beta (v - decay S^T k)
//   o = decay S^T q + (q . k) d
//   S = decay S + k d^T
// Column j of S and element j of d meet no other column, so a head is done by blocks of columns that stay in registers
// and cache. A walk down the rows of a block applies one token and takes the products of the next one's key and query
// with what it leaves: n tokens are n + 1 walks. Sums over rows have the order of bands.h.
#pragma once

#include "bands.h"
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

template <int V>
inline Products<V> no_products() {
  Products<V> sum;
  TRIGRAPH_UNROLL
  for (int v = 0; v < V; ++v) sum.key[v] = sum.query[v] = zero_part();
  return sum;
}

template <int V>
inline Products<V> add(const Products<V>& a, const Products<V>& b) {
  Products<V> sum;
  TRIGRAPH_UNROLL
  for (int v = 0; v < V; ++v) sum.key[v] = add(a.key[v], b.key[v]), sum.query[v] = add(a.query[v], b.query[v]);
  return sum;
}

// S = decay S + k d^T over V parts of columns, from `from` to `to`, and the products of `next`, if there is one.
template <int V, bool kNext, bool kQuery>
inline Products<V> walk(const float* from, int64_t from_stride, float* to, int64_t to_stride, int64_t rows,
                        const Token& token, const Part* delta, const Token* next) {
  const Part decay = splat_part(token.decay);
  const float *key = token.k, *next_key = kNext ? next->k : nullptr, *next_query = kQuery ? next->q : nullptr;
  const int64_t band_rows = rows / kBands;
  Part d[V];
  TRIGRAPH_UNROLL
  for (int v = 0; v < V; ++v) d[v] = delta[v];
  Products<V> half[2];
  for (int band = 0; band < kBands; ++band) {
    Products<V> sum = no_products<V>();
    for (int64_t i = band * band_rows; i < (band + 1) * band_rows; ++i) {
      const Part k = splat_part(key[i]);
      Part row[V];
      TRIGRAPH_UNROLL
      for (int v = 0; v < V; ++v) {
        row[v] = fmadd(k, d[v], mul(decay, load_part(from + i * from_stride + v * kPartLanes)));
        store_part(to + i * to_stride + v * kPartLanes, row[v]);
      }
      TRIGRAPH_UNROLL
      for (int v = 0; v < V; ++v) {
        if (kNext) sum.key[v] = fmadd(splat_part(next_key[i]), row[v], sum.key[v]);
        if (kQuery) sum.query[v] = fmadd(splat_part(next_query[i]), row[v], sum.query[v]);
      }
    }
    half[band / 2] = band % 2 ? add(half[band / 2], sum) : sum;
  }
  return add(half[0], half[1]);
}

// Walks for what `next` wants.
template <int V>
inline Products<V> walk(const float* from, int64_t from_stride, float* to, int64_t to_stride, int64_t rows,
                        const Token& token, const Part* delta, const Token* next) {
  if (!next) return walk<V, false, false>(from, from_stride, to, to_stride, rows, token, delta, next);
  if (!next->q) return walk<V, true, false>(from, from_stride, to, to_stride, rows, token, delta, next);
  return walk<V, true, true>(from, from_stride, to, to_stride, rows, token, delta, next);
}

// Adds the products of a token with V parts of columns and kRun rows to what the rows before them in their band made:
// key_sums and query_sums, [kBands][dim] each.
template <int V, int64_t kRun, bool kQuery>
inline void add_products(const Token& token, const float* from, int64_t dim, int64_t column, int64_t first_row,
                         float* key_sums, float* query_sums) {
  const int64_t band_rows = dim / kBands, at = first_row / band_rows * dim + column;
  Products<V> sum = no_products<V>();
  for (int v = 0; first_row % band_rows && v < V; ++v) {
    sum.key[v] = load_part(key_sums + at + v * kPartLanes);
    if (kQuery) sum.query[v] = load_part(query_sums + at + v * kPartLanes);
  }
  for (int64_t i = first_row; i < first_row + kRun; ++i)
    for (int v = 0; v < V; ++v) {
      const Part x = load_part(from + i * dim + column + v * kPartLanes);
      sum.key[v] = fmadd(splat_part(token.k[i]), x, sum.key[v]);
      if (kQuery) sum.query[v] = fmadd(splat_part(token.q[i]), x, sum.query[v]);
    }
  for (int v = 0; v < V; ++v) {
    store_part(key_sums + at + v * kPartLanes, sum.key[v]);
    if (kQuery) store_part(query_sums + at + v * kPartLanes, sum.query[v]);
  }
}

// The walk before the first token, in the order of memory: the state may have to come from there, which likes long
// runs. kRun rows are of one band.
template <int64_t kRun, bool kQuery>
inline void first_products(const Token& token, const float* from, int64_t dim, float* key_sums, float* query_sums) {
  constexpr int V = 4;
  for (int64_t row = 0; row < dim; row += kRun) {
    int64_t column = 0;
    for (; column + V * kPartLanes <= dim; column += V * kPartLanes)
      add_products<V, kRun, kQuery>(token, from, dim, column, row, key_sums, query_sums);
    for (; column < dim; column += kPartLanes)
      add_products<1, kRun, kQuery>(token, from, dim, column, row, key_sums, query_sums);
  }
}
template <int64_t kRun>
inline void first_products(const Token& token, const float* from, int64_t dim, float* key_sums, float* query_sums) {
  if (token.q) return first_products<kRun, true>(token, from, dim, key_sums, query_sums);
  first_products<kRun, false>(token, from, dim, key_sums, query_sums);
}

// What first_products left of a part of columns.
inline Part joined(const float* sums, int64_t dim) {
  const auto band = [&](int64_t b) { return load_part(sums + b * dim); };
  return add(add(band(0), band(1)), add(band(2), band(3)));
}

// Runs tokens over the V parts of columns at `column`. The state after the first `committed` tokens goes to `to`
// ([dim][dim], may be `from`), once; the others stay in `work` ([dim][V parts]), except the one after the last token,
// which nothing reads.
template <int V>
inline void scan_columns(const Token* tokens, int64_t count, int64_t committed, const float* from, float* to,
                         const float* key_sums, const float* query_sums, float* work, int64_t dim, int64_t column) {
  const float* state = from + column;
  int64_t stride = dim;
  Products<V> sum = no_products<V>();
  for (int v = 0; v < V; ++v) {
    sum.key[v] = joined(key_sums + column + v * kPartLanes, dim);
    if (tokens[0].q) sum.query[v] = joined(query_sums + column + v * kPartLanes, dim);
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

inline int64_t scan_bytes(int64_t dim) { return dim * (kWalkColumns + 2 * kBands) * sizeof(float); }

// Runs at least one token. The state after the first `committed` ones is written to `to`, which may be `from`. scratch
// has scan_bytes; dim is a multiple of 16.
inline void scan(const Token* tokens, int64_t count, int64_t committed, const float* from, float* to, float* scratch,
                 int64_t dim) {
  float *key_sums = scratch, *query_sums = key_sums + kBands * dim, *work = query_sums + kBands * dim;
  if (dim % 32)
    first_products<4>(tokens[0], from, dim, key_sums, query_sums);
  else
    first_products<8>(tokens[0], from, dim, key_sums, query_sums);
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
