// What queries and keys share: RMS norm of a head, then rotary position embedding of its first dimensions.
#pragma once

#include <cmath>
#include <complex>
#include <vector>

#include "../simd.h"
#include "signature.h"

namespace trigraph::TRIGRAPH_ISA {

class Rotary : public RotaryAttributes {
 public:
  explicit Rotary(const KernelInfo& info) : RotaryAttributes(info) {
    for (int64_t i = 0; i < dims / 2; ++i)
      frequency_.push_back(std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(dims)));
    for (int64_t step = 0; step < kAnchor; ++step)
      for (double f : frequency_) steps.push_back(std::polar(1.0, static_cast<double>(step) * f));
  }

  int64_t angle_size() const { return dims; }

  // Of `count` positions from `position` on: rope_dims / 2 cosines, then as many sines. Each position is turned from
  // the multiple of kAnchor below it, so its angles do not depend on the others asked for.
  void angles(int64_t position, int64_t count, float* out) const {
    const int64_t half = dims / 2;
    std::complex<double> anchor[kMostDims / 2];
    for (int64_t t = 0; t < count; ++t, ++position, out += dims) {
      const int64_t step = position % kAnchor;
      if (t == 0 || step == 0)
        for (int64_t i = 0; i < half; ++i)
          anchor[i] = std::polar(1.0, static_cast<double>(position - step) * frequency_[i]);
      const std::complex<double>* turn = steps.data() + step * half;
      for (int64_t i = 0; i < half; ++i) {
        const double c = anchor[i].real(), s = anchor[i].imag();
        out[i] = static_cast<float>(c * turn[i].real() - s * turn[i].imag());
        out[half + i] = static_cast<float>(c * turn[i].imag() + s * turn[i].real());
      }
    }
  }

  // out = rotate(x / rms(x) * norm) * scale, for one head; NEOX pairs (i, i + rope_dims / 2). `out` is not x.
  void apply(const float* x, const float* norm, const float* angles, int64_t width, float scale, float* out) const {
    vf squares = zero();
    for (int64_t i = 0; i < width; i += VL) squares = fmadd(load(x + i), load(x + i), squares);
    const vf inverse = splat(1.0f / std::sqrt(reduce_add(squares) / static_cast<float>(width) + eps));
    for (int64_t i = 0; i < width; i += VL)
      store(out + i, mul(mul(mul(load(x + i), inverse), load(norm + i)), splat(scale)));
    const int64_t half = dims / 2;
    const float *cosine = angles, *sine = angles + half;
    for (int64_t i = 0; i < half; ++i) {
      const float a = out[i], b = out[half + i];
      out[i] = a * cosine[i] - b * sine[i];
      out[half + i] = b * cosine[i] + a * sine[i];
    }
  }

 private:
  static constexpr int64_t kAnchor = 64;
  std::vector<double> frequency_;           // radians a position
  std::vector<std::complex<double>> steps;  // [kAnchor, dims / 2]
};

}  // namespace trigraph::TRIGRAPH_ISA
