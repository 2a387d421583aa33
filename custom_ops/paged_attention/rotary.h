// What queries and keys share: RMS norm of a head, then rotary position embedding of its first dimensions.
#pragma once

#include <cmath>
#include <vector>

#include "../kernel.h"
#include "../simd.h"

namespace trigraph::TRIGRAPH_ISA {

class Rotary {
 public:
  explicit Rotary(const KernelInfo& info) : dims_(info.integer("rope_dims")), eps_(info.real("eps")) {
    const double theta = info.real("rope_theta");
    if (dims_ < 0 || dims_ % 2 != 0 || dims_ > 65536)
      fail("attribute rope_dims is %lld, not an even number of dimensions", static_cast<long long>(dims_));
    if (!(theta > 0)) fail("attribute rope_theta is %g, not above 0", theta);
    if (!(eps_ >= 0)) fail("attribute eps is %g, below 0", static_cast<double>(eps_));
    for (int64_t i = 0; i < dims_ / 2; ++i)
      frequency_.push_back(std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(dims_)));
  }

  // Checks the norm weight, and that the head is wide enough to rotate.
  void check(const Tensor& norm, int64_t width) const {
    norm.expect({width});
    if (dims_ > width)
      fail("attribute rope_dims is %lld, more than the head dimension %lld", static_cast<long long>(dims_),
           static_cast<long long>(width));
  }

  int64_t angle_size() const { return dims_; }

  // out = cosines, then sines, of the rope_dims / 2 angles of a position.
  void angles(int64_t position, float* out) const {
    const int64_t half = dims_ / 2;
    for (int64_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(position) * frequency_[i];
      out[i] = static_cast<float>(std::cos(angle));
      out[half + i] = static_cast<float>(std::sin(angle));
    }
  }

  // out = rotate(x / rms(x) * norm) * scale, for one head; NEOX pairs (i, i + rope_dims / 2). `out` is not x.
  void apply(const float* x, const float* norm, const float* angles, int64_t width, float scale, float* out) const {
    vf squares = zero();
    for (int64_t i = 0; i < width; i += VL) squares = fmadd(load(x + i), load(x + i), squares);
    const vf inverse = splat(1.0f / std::sqrt(reduce_add(squares) / static_cast<float>(width) + eps_));
    for (int64_t i = 0; i < width; i += VL)
      store(out + i, mul(mul(mul(load(x + i), inverse), load(norm + i)), splat(scale)));
    const int64_t half = dims_ / 2;
    const float *cosine = angles, *sine = angles + half;
    for (int64_t i = 0; i < half; ++i) {
      const float a = out[i], b = out[half + i];
      out[i] = a * cosine[i] - b * sine[i];
      out[half + i] = b * cosine[i] + a * sine[i];
    }
  }

 private:
  int64_t dims_;
  float eps_;
  std::vector<double> frequency_;
};

}  // namespace trigraph::TRIGRAPH_ISA
