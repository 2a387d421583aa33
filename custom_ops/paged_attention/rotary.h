// What queries and keys share: RMS norm of a head, then rotary position embedding of its first dimensions.
#pragma once

#include <cmath>
#include <vector>

#include "../simd.h"
#include "angles.h"
#include "ragged.h"

namespace trigraph::TRIGRAPH_ISA {

class Rotary : public RotaryAttributes {
 public:
  explicit Rotary(const KernelInfo& info) : RotaryAttributes(info) {
    for (int64_t i = 0; i < dims / 2; ++i) {
      frequency_.push_back(frequency(exact_log(theta), i, dims, scaling));
      axis_.push_back(sections.axis(static_cast<int>(i)));
    }
  }

  int64_t angle_size() const { return dims; }

  // The angles of each row of a run: rope_dims / 2 cosines, then as many sines.
  void angles(const Run& run, const AxisPositions& positions, float* out) const {
    const int64_t half = dims / 2;
    double turn[kMostDims / 2];
    for (int64_t t = 0; t < run.count; ++t, out += dims) {
      const int32_t* axes = positions.data ? positions.data + run.row + t : nullptr;
      for (int64_t i = 0; i < half; ++i)
        turn[i] = static_cast<double>(axes ? axes[axis_[i] * positions.rows] : run.position + t) * frequency_[i];
      for (int64_t i = 0; i < half; ++i) {
        const Angle a = angle(turn[i]);
        out[i] = static_cast<float>(a.cosine * scaling.magnitude);
        out[half + i] = static_cast<float>(a.sine * scaling.magnitude);
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
  std::vector<double> frequency_;  // [dims / 2], radians a position
  std::vector<int> axis_;          // [dims / 2]
};

}  // namespace trigraph::TRIGRAPH_ISA
