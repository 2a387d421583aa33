// Sines, cosines and powers in float64 from IEEE operations alone: those of C libraries and of CUDA differ in their
// last bits. Errors are below 1e-13, far less than the rounding to float32 that follows.
#pragma once

#include <cmath>
#include <cstdint>

#include "../everywhere.h"

namespace trigraph::TRIGRAPH_ISA {

// c[0] + c[1] x + ... + c[N - 1] x^(N - 1)
template <int N>
TRIGRAPH_EVERYWHERE inline double polynomial(double x, const double (&c)[N]) {
  double sum = c[N - 1];
  for (int i = N - 2; i >= 0; --i) sum = fma(sum, x, c[i]);
  return sum;
}

// e^x for |x| < 700: x = n ln 2 + r, and the series of e^r.
TRIGRAPH_EVERYWHERE inline double exact_exp(double x) {
  const double series[] = {1,         1,          1 / 2.,      1 / 6.,       1 / 24.,       1 / 120.,      1 / 720.,
                           1 / 5040., 1 / 40320., 1 / 362880., 1 / 3628800., 1 / 39916800., 1 / 479001600.};
  const double n = nearbyint(x * 0x1.71547652b82fep+0);
  const double r = fma(-n, 0x1.abc9e3b39803fp-56, fma(-n, 0x1.62e42fefa39efp-1, x));
  return ldexp(polynomial(r, series), static_cast<int>(n));
}

// ln x of a normal x, by Halley's iteration on e^y = x.
TRIGRAPH_EVERYWHERE inline double exact_log(double x) {
  int exponent;
  const double fraction = frexp(x, &exponent);
  double y = exponent * 0x1.62e42fefa39efp-1 + (fraction - 1);
  for (int i = 0; i < 4; ++i) {
    const double e = exact_exp(y);
    y += 2 * (x - e) / (x + e);
  }
  return y;
}

struct Angle {
  double cosine, sine;
};

// The angle of x radians: x = n pi / 2 + r, and the series of both for r.
TRIGRAPH_EVERYWHERE inline Angle angle(double x) {
  const double sine_series[] = {1, -1 / 6., 1 / 120., -1 / 5040., 1 / 362880., -1 / 39916800., 1 / 6227020800.};
  const double cosine_series[] = {1,          -1 / 2.,       1 / 24.,        -1 / 720.,
                                  1 / 40320., -1 / 3628800., 1 / 479001600., -1 / 87178291200.};
  const double n = nearbyint(x * 0x1.45f306dc9c883p-1);
  const double r = fma(-n, 0x1.1a62633145c07p-54, fma(-n, 0x1.921fb54442d18p+0, x));
  const double s = r * polynomial(r * r, sine_series), c = polynomial(r * r, cosine_series);
  // n mod 4, in float64 so that a loop over angles is one over vectors.
  const double quadrant = n - 4 * floor(n / 4);
  const bool odd = quadrant == 1 || quadrant == 3;
  const double sine = odd ? c : s, cosine = odd ? s : c;
  return {quadrant == 1 || quadrant == 2 ? -cosine : cosine, quadrant >= 2 ? -sine : sine};
}

// YaRN: pairs from `end` on turn `factor` times slower, those up to `start` as they do, and those between by shares;
// sines and cosines are multiplied with `magnitude`.
struct RopeScaling {
  double factor, start, end, magnitude;
};

// Multi-axis rotary embedding: the pairs that time, row and column turn. They take turns (pair i has axis i mod 3) as
// long as their sections last; time turns all others.
struct RopeSections {
  int32_t row, column;
  TRIGRAPH_EVERYWHERE int axis(int i) const {
    const int turn = i % 3;
    return i < 3 * (turn == 1 ? row : turn == 2 ? column : 0) ? turn : 0;
  }
};

// Radians that pair `i` of `dims` / 2 turns a position: theta^(-2 i / dims), scaled.
TRIGRAPH_EVERYWHERE inline double frequency(double log_theta, int64_t i, int64_t dims, const RopeScaling& scaling) {
  const double turn = exact_exp(-2.0 * static_cast<double>(i) / static_cast<double>(dims) * log_theta);
  if (scaling.factor == 1) return turn;
  const double length = scaling.end > scaling.start ? scaling.end - scaling.start : 0.001;
  const double share = (static_cast<double>(i) - scaling.start) / length;
  const double slow = share < 0 ? 0 : share > 1 ? 1 : share;
  return turn * ((1 - slow) + slow / scaling.factor);
}

}  // namespace trigraph::TRIGRAPH_ISA
