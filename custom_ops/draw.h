// The arithmetic of random choices, for processors and devices: plain IEEE operations in one order, no function of a
// mathematics library, so that all of them draw the same token. runtime/sampling/draws.py says what is computed.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__CUDACC__)
#define TRIGRAPH_EVERYWHERE __host__ __device__ inline
#else
#define TRIGRAPH_EVERYWHERE inline
#endif

namespace trigraph::draws {

template <typename To, typename From>
TRIGRAPH_EVERYWHERE To bits_of(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(&to, &from, sizeof(to));
  return to;
}

// e^x for x <= 0: 2^n times the Taylor series of the rest, which is ln 2 / 2 at most.
TRIGRAPH_EVERYWHERE double exp_of(double x) {
  constexpr double kLeast = -708;  // e^x of what is less counts as 0
  constexpr double kInverseFactorials[] = {
      1.0,        1.0,         1.0 / 2,      1.0 / 6,       1.0 / 24,       1.0 / 120,       1.0 / 720,
      1.0 / 5040, 1.0 / 40320, 1.0 / 362880, 1.0 / 3628800, 1.0 / 39916800, 1.0 / 479001600, 1.0 / 6227020800};
  double y = x < kLeast ? kLeast : x;
  double n = (y * 0x1.71547652b82fep0 + 0x1.8p52) - 0x1.8p52;  // to the nearest whole number
  double rest = (y - n * 0x1.62e42feep-1) - n * 0x1.a39ef35793c76p-33;
  double sum = kInverseFactorials[13];
  for (int k = 12; k >= 0; --k) sum = sum * rest + kInverseFactorials[k];
  double scale = bits_of<double>((static_cast<int64_t>(n) + 1023) << 52);
  return x < kLeast ? 0 : sum * scale;
}

// ln x for 2^-53 <= x < 1: of the mantissa by the series of artanh((m - 1) / (m + 1)), and of the power of two.
TRIGRAPH_EVERYWHERE double log_of(double x) {
  uint64_t bits = bits_of<uint64_t>(x);
  double power = static_cast<double>(static_cast<int64_t>(bits >> 52) - 1022);
  double mantissa = bits_of<double>((bits & 0xFFFFFFFFFFFFFu) | 0x3FE0000000000000u);  // from 1/2 to 1
  if (mantissa < 0x1.6a09e667f3bcdp-1) {
    mantissa *= 2;
    power -= 1;
  }
  double s = (mantissa - 1) / (mantissa + 1), square = s * s, sum = 1.0 / 21;
  for (int k = 19; k >= 1; k -= 2) sum = sum * square + 1.0 / k;
  return power * 0x1.62e42fefa39efp-1 + 2 * s * sum;
}

// Output `number` of the generator SplitMix64 with this state.
TRIGRAPH_EVERYWHERE uint64_t random_bits(uint64_t state, uint64_t number) {
  uint64_t z = state + (number + 1) * 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

// The key of a position, with which each token has a number of its own.
TRIGRAPH_EVERYWHERE uint64_t key_of(uint64_t seed, uint64_t position) {
  return random_bits(random_bits(seed, 0), position);
}

// The token's number between 0 and 1.
TRIGRAPH_EVERYWHERE double uniform(uint64_t key, int64_t token) {
  return (static_cast<double>(static_cast<int64_t>(random_bits(key, token) >> 12)) + 0.5) * 0x1p-52;
}

// When the token of this weight comes in: the first one of all wins.
TRIGRAPH_EVERYWHERE double time_of(uint64_t key, int64_t token, double weight) {
  return -log_of(uniform(key, token)) / weight;
}

// The weight of a logit at a temperature, where 1 is the weight of the largest.
TRIGRAPH_EVERYWHERE double weight_of(float logit, double largest, double temperature) {
  return exp_of((static_cast<double>(logit) - largest) / temperature);
}

}  // namespace trigraph::draws
