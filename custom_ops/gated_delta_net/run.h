// One step over checked inputs: a verify (few tokens a sequence, state from memory) or a prefill (many, state in
// cache).
#pragma once

#include <algorithm>

#include "batch.h"
#include "mix.h"
#include "scan.h"
#include "signature.h"

namespace trigraph::TRIGRAPH_ISA {

// One state tensor, before and after the step: the same buffer, or another one.
struct Slots {
  const float* past;
  float* present;
  int64_t count, size;  // floats of a slot

  const float* in(int64_t slot) const { return past + slot * size; }
  float* out(int64_t slot) const { return present + slot * size; }
};

// What the heads of one step share.
struct Run {
  Geometry geometry;
  const float *z, *conv, *norm;
  Slots state, window, gates;
  float* y;
  const float* const* columns;  // 3 history columns of each sequence, then its tokens'; nullptr: zeros
  const float *decay, *beta;    // [tokens][gate_row]
  int64_t gate_row;

  const float* const* columns_of(int64_t s, const StepSequence& sequence) const {
    return columns + 3 * s + sequence.first;
  }

  // One head's convolved channels, [count][dim]: a query or key head with unit length, or a value head. columns start
  // at the first token's history.
  void mix(const float* const* columns, int64_t count, int64_t unit, float* out) const {
    const int64_t dim = geometry.dim, channel = unit * dim;
    convolve(columns, count, channel, dim, conv + 4 * channel, out);
    if (unit >= 2 * geometry.k_heads) return;
    const float scale = unit < geometry.k_heads ? 1 / std::sqrt(static_cast<float>(dim)) : 1;
    for (int64_t t = 0; t < count; ++t) normalize(out + t * dim, dim, geometry.eps, scale);
  }

  // Saves a range of channels of the columns, once this sequence's tokens have read them.
  void save_window(const float* const* columns, const Sequence& sequence, int64_t channel, int64_t count) const {
    const int64_t row = geometry.channels(), kept = geometry.commit ? sequence.count() : sequence.pending;
    float* rows = window.out(sequence.slot_out);
    copy_columns(columns + kept, 3, channel, count, rows, row);
    if (!geometry.commit) copy_columns(columns + 3 + kept, sequence.own, channel, count, rows + 3 * row, row);
  }

  // Tokens first..first + count of a sequence for one value head; k, q, v and o start at token `first`.
  void tokens(const StepSequence& sequence, int64_t first, int64_t count, int64_t v_head, const float* k,
              const float* q, const float* v, float* o, Token* out) const {
    const int64_t dim = geometry.dim;
    for (int64_t t = 0; t < count; ++t, k += dim, q += dim, v += dim, o += dim) {
      const bool own = first + t >= sequence.pending;
      const int64_t gate = (sequence.first + first + t) * gate_row + v_head;
      out[t] = {k, v, own ? q : nullptr, own ? o : nullptr, decay[gate], beta[gate], own ? dot(q, k, dim) : 0};
    }
  }

  // Asks memory for some rows of a head while other work goes on.
  static void fetch(const float* row, int64_t dim) {
    for (int64_t i = 0; i < dim; i += 16) prefetch(row + i);
  }
  void fetch_columns(const float* const* columns, int64_t count, int64_t unit) const {
    for (int64_t t = 3; t < 3 + count; ++t)
      if (columns[t]) fetch(columns[t] + unit * geometry.dim, geometry.dim);
  }
  void fetch_z(const Sequence& sequence, int64_t first, int64_t count, int64_t v_head) const {
    for (int64_t t = first; t < first + count; ++t)
      fetch(z + ((sequence.begin + t) * geometry.v_heads + v_head) * geometry.dim, geometry.dim);
  }

  // Output norm and gate of own tokens first..first + count.
  void finish(const Sequence& sequence, int64_t first, int64_t count, int64_t v_head, const float* o) const {
    for (int64_t t = 0; t < count; ++t) {
      const int64_t at = ((sequence.begin + first + t) * geometry.v_heads + v_head) * geometry.dim;
      gated_norm(o + t * geometry.dim, z + at, norm, geometry.dim, geometry.eps, geometry.sigmoid_gate, y + at);
    }
  }
};

struct SharedScratch;
struct HeadScratch;

// First every head's queries, keys and values; then head by head the state, which comes from memory, and the window.
inline void verify(const Context& context, const Run& run, const DeltaStep& step) {
  constexpr int64_t kMixUnits = 4, kWindowParts = 4;  // heads and shares that make a task
  const Geometry& g = run.geometry;
  const int64_t dim = g.dim, sequences = static_cast<int64_t>(step.sequences.size());
  const int64_t mix_tasks = (g.units() + kMixUnits - 1) / kMixUnits;
  // By sequence: [unit][token][dim]; the queries of pending tokens are left out.
  float* mixed = static_cast<float*>(scratch<SharedScratch>(step.tokens * g.channels() * sizeof(float)));
  const auto unit = [&](const StepSequence& sequence, int64_t u) {
    return mixed + sequence.first * g.channels() + u * sequence.count() * dim;
  };

  context.parallel_for(sequences * mix_tasks, [&](int64_t task) {
    const int64_t s = task / mix_tasks, first = task % mix_tasks * kMixUnits;
    const StepSequence& sequence = step.sequences[s];
    for (int64_t u = first; u < std::min(first + kMixUnits, g.units()); ++u) {
      const int64_t skipped = u < g.k_heads ? sequence.pending : 0;
      run.mix(run.columns_of(s, sequence) + skipped, sequence.count() - skipped, u, unit(sequence, u) + skipped * dim);
    }
  });

  const int64_t head_tasks = sequences * g.v_heads;
  context.parallel_for(head_tasks + sequences * kWindowParts, [&](int64_t task) {
    if (task >= head_tasks) {
      const int64_t s = (task - head_tasks) / kWindowParts, part = (task - head_tasks) % kWindowParts;
      const int64_t begin = g.channels() * part / kWindowParts, end = g.channels() * (part + 1) / kWindowParts;
      run.save_window(run.columns_of(s, step.sequences[s]), step.sequences[s], begin, end - begin);
      return;
    }
    const StepSequence& sequence = step.sequences[task / g.v_heads];
    const int64_t v_head = task % g.v_heads, k_head = g.k_head(v_head);
    const int64_t n = sequence.count(), size = dim * dim;
    float* o = static_cast<float*>(  // [n][dim]
        scratch<HeadScratch>(n * dim * sizeof(float) + n * sizeof(Token) + scan_bytes(dim)));
    float* work = o + n * dim;
    Token* tokens = reinterpret_cast<Token*>(reinterpret_cast<char*>(work) + scan_bytes(dim));
    run.tokens(sequence, 0, n, v_head, unit(sequence, g.k_heads + k_head), unit(sequence, k_head),
               unit(sequence, 2 * g.k_heads + v_head), o, tokens);

    const float* from = run.state.in(sequence.slot_in) + v_head * size;
    float* to = run.state.out(sequence.slot_out) + v_head * size;
    if (sequence.pending == 0) {
      copy_state(sequence.fresh, from, to, size);
      from = to;
    }
    scan(tokens, n, sequence.pending, from, to, work, dim);
    run.finish(sequence, 0, sequence.own, v_head, o + sequence.pending * dim);
  });
}

constexpr int64_t kPrefillBlock = 64;  // tokens whose keys, queries and values are in cache together

// A key head's tokens in blocks, each from projections to outputs while it is in cache.
inline void prefill(const Context& context, const Run& run, const DeltaStep& step) {
  const Geometry& g = run.geometry;
  const int64_t dim = g.dim, size = dim * dim, group = g.group();

  context.parallel_for(static_cast<int64_t>(step.sequences.size()) * g.k_heads, [&](int64_t task) {
    const int64_t s = task / g.k_heads, k_head = task % g.k_heads;
    const StepSequence& sequence = step.sequences[s];
    const float* const* columns = run.columns_of(s, sequence);
    float* keys = static_cast<float*>(scratch<HeadScratch>(4 * kPrefillBlock * dim * sizeof(float) +
                                                           kPrefillBlock * sizeof(Token) + scan_bytes(dim)));
    float *queries = keys + kPrefillBlock * dim, *values = queries + kPrefillBlock * dim;
    float *o = values + kPrefillBlock * dim, *work = o + kPrefillBlock * dim;
    Token* tokens = reinterpret_cast<Token*>(reinterpret_cast<char*>(work) + scan_bytes(dim));
    const auto state = [&](int64_t v_head) { return run.state.out(sequence.slot_out) + v_head * size; };
    const auto value_unit = [&](int64_t i) { return 2 * g.k_heads + g.v_head(k_head, i); };
    for (int64_t i = 0; i < group; ++i) {
      const int64_t v_head = g.v_head(k_head, i);
      copy_state(sequence.fresh, run.state.in(sequence.slot_in) + v_head * size, state(v_head), size);
    }
    for (int64_t first = 0, n; first < sequence.count(); first += n) {
      n = std::min(sequence.count() - first, kPrefillBlock);
      const int64_t skipped = std::clamp<int64_t>(sequence.pending - first, 0, n);  // pending: no output is wanted
      const int64_t own = first + skipped - sequence.pending, next = std::min(sequence.count() - first - n, n);
      run.mix(columns + first, n, g.k_heads + k_head, keys);
      run.mix(columns + first, n, k_head, queries);
      for (int64_t i = 0; i < group; ++i) {
        const int64_t v_head = g.v_head(k_head, i);
        run.mix(columns + first, n, value_unit(i), values);
        run.tokens(sequence, first, n, v_head, keys, queries, values, o, tokens);
        run.fetch_z(sequence, own, n - skipped, v_head);
        if (i + 1 < group)
          run.fetch_columns(columns + first, n, value_unit(i + 1));
        else
          for (int64_t unit : {k_head, g.k_heads + k_head, value_unit(0)})
            run.fetch_columns(columns + first + n, next, unit);
        scan(tokens, n, n, state(v_head), state(v_head), work, dim);
        run.finish(sequence, own, n - skipped, v_head, o + skipped * dim);
      }
    }
    const auto save = [&](int64_t unit) { run.save_window(columns, sequence, unit * dim, dim); };
    save(k_head);
    save(g.k_heads + k_head);
    for (int64_t i = 0; i < group; ++i) save(value_unit(i));
  });
}

}  // namespace trigraph::TRIGRAPH_ISA
