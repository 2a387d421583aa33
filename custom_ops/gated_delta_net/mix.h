// From projections to the delta rule's inputs: causal convolution, SiLU, unit lengths, gates.
#pragma once

#include "../simd.h"

namespace trigraph::TRIGRAPH_ISA {

// Four-tap causal depthwise convolution and SiLU of `count` tokens over `dim` channels. Token i reads columns[i .. i +
// 3] (nullptr: zeros) at `channel`; taps is [dim][4], the last tap for the token itself; out is [count][dim].
inline void convolve(const float* const* columns, int64_t count, int64_t channel, int64_t dim, const float* taps,
                     float* out) {
  const auto column = [&](int64_t i, int64_t c) { return columns[i] ? load(columns[i] + channel + c) : zero(); };
  for (int64_t c = 0; c < dim; c += VL) {
    vf tap[4];
    load_transposed4(taps + 4 * c, tap);
    vf x0 = column(0, c), x1 = column(1, c), x2 = column(2, c);
    for (int64_t i = 0; i < count; ++i) {
      const vf x3 = column(i + 3, c);
      const vf sum = fmadd(x3, tap[3], fmadd(x2, tap[2], fmadd(x1, tap[1], mul(x0, tap[0]))));
      store(out + i * dim + c, silu(sum));
      x0 = x1, x1 = x2, x2 = x3;
    }
  }
}

// Copies `count` columns of one head into the window rows at `rows` (a row is row_size apart). Rows may overlap the
// columns when no column lies before its own destination.
inline void copy_columns(const float* const* columns, int64_t count, int64_t channel, int64_t dim, float* rows,
                         int64_t row_size) {
  for (int64_t i = 0; i < count; ++i) {
    float* row = rows + i * row_size + channel;
    if (columns[i] && columns[i] + channel == row) continue;
    if (columns[i])
      std::memmove(row, columns[i] + channel, dim * sizeof(float));
    else
      std::memset(row, 0, dim * sizeof(float));
  }
}

inline float dot(const float* a, const float* b, int64_t dim) {
  vf sum = zero();
  for (int64_t i = 0; i < dim; i += VL) sum = fmadd(load(a + i), load(b + i), sum);
  return reduce_add(sum);
}

// x *= scale / sqrt(|x|^2 + eps)
inline void normalize(float* x, int64_t dim, float eps, float scale) {
  const vf factor = splat(scale / std::sqrt(dot(x, x, dim) + eps));
  for (int64_t i = 0; i < dim; i += VL) store(x + i, mul(load(x + i), factor));
}

// y = RMS norm of a head's output, times norm, times silu(z), or sigmoid(z).
inline void gated_norm(const float* x, const float* z, const float* norm, int64_t dim, float eps, bool sigmoid_gate,
                       float* y) {
  const vf factor = splat(1 / std::sqrt(dot(x, x, dim) / static_cast<float>(dim) + eps));
  for (int64_t i = 0; i < dim; i += VL) {
    const vf gate = sigmoid_gate ? sigmoid(load(z + i)) : silu(load(z + i));
    store(y + i, mul(mul(mul(load(x + i), factor), load(norm + i)), gate));
  }
}

// log(1 + e^x) = max(x, 0) + log1p(e^-|x|), without cancellation at either end: log1p(y) = 2 atanh(s) with s = y / (2 +
// y) <= 1/3, by its series up to s^17 (relative error below 1e-9 before rounding).
inline vf softplus(vf x) {
  const vf y = exp(min(x, sub(zero(), x)));
  const vf s = div(y, add(splat(2), y)), s2 = mul(s, s);
  vf p = splat(1.0f / 17);
  for (float n : {15.0f, 13.0f, 11.0f, 9.0f, 7.0f, 5.0f, 3.0f}) p = fmadd(p, s2, splat(1 / n));
  const vf twice = add(s, s);
  return add(max(x, zero()), fmadd(mul(p, s2), twice, twice));
}

// One token's gates: log_decay = softplus(alpha + dt_bias) * a and beta = sigmoid(beta). The outputs have room for
// whole vectors.
inline void gates(const float* alpha, const float* beta, const float* dt_bias, const float* a, int64_t heads,
                  float* log_decay, float* beta_out) {
  for (int64_t h = 0; h < heads; h += VL) {
    const int64_t n = heads - h;
    const vf x = add(load_first(alpha + h, n), load_first(dt_bias + h, n));
    store(log_decay + h, mul(softplus(x), load_first(a + h, n)));
    store(beta_out + h, sigmoid(load_first(beta + h, n)));
  }
}

// Log-decays to decays, in place; count is a multiple of VL.
inline void decays(float* x, int64_t count) {
  for (int64_t i = 0; i < count; i += VL) {
    float log_decay[VL];
    std::memcpy(log_decay, x + i, sizeof log_decay);
    store(x + i, exp(load(x + i)));
    // Below e^-60 nothing of the old state is left in float32; as zero it makes no subnormal numbers, which are slow.
    for (int lane = 0; lane < VL; ++lane) x[i + lane] = log_decay[lane] < -60 ? 0 : x[i + lane];
  }
}

}  // namespace trigraph::TRIGRAPH_ISA
