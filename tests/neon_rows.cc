// Runs row products of the NEON kernels on cases read from stdin; built and fed by test_neon.py.
// A case: type and activations as text lines, a line "n width m row_bytes", then weights, x [m, width] and the
// reference y [m, n] as raw bytes. Prints one line a case: the largest error relative to the sum of |x| in its row
// times the largest |weight|, and whether each row alone and a row of weights alone give the same bits.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <string>
#include <vector>

#include "blocks/row_kernel.h"

using namespace trigraph::TRIGRAPH_ISA;

namespace {

std::vector<float> run(const RowKernel& kernel, const uint8_t* w, int64_t n, int64_t row_bytes, int64_t width,
                       const float* x, int64_t m) {
  const int64_t stride = kernel.prepared_bytes(width);
  std::vector<char> space(static_cast<size_t>(stride * m + 64));
  char* prepared = space.data() + (64 - reinterpret_cast<uintptr_t>(space.data()) % 64) % 64;
  std::vector<float> y(static_cast<size_t>(m * n), std::nanf(""));
  std::vector<const void*> rows;
  std::vector<float*> out;
  for (int64_t i = 0; i < m; ++i) {
    kernel.prepare(x + i * width, width, prepared + i * stride);
    rows.push_back(prepared + i * stride);
    out.push_back(y.data() + i * n);
  }
  kernel.product(w, n, row_bytes, width, rows.data(), m, out.data());
  return y;
}

template <class T>
std::vector<T> read(int64_t count) {
  std::vector<T> values(static_cast<size_t>(count));
  std::cin.read(reinterpret_cast<char*>(values.data()), static_cast<std::streamsize>(count * sizeof(T)));
  return values;
}

}  // namespace

int main() {
  std::string type, activations;
  while (std::cin >> type >> activations) {
    int64_t n, width, m, row_bytes;
    std::cin >> n >> width >> m >> row_bytes;
    std::cin.get();
    const auto w = read<uint8_t>(n * row_bytes);
    const auto x = read<float>(m * width), expected = read<float>(m * n);
    const RowKernel& kernel = row_kernel(type, activations);
    std::vector<float> weight(static_cast<size_t>(width));
    float largest = 0;
    for (int64_t j = 0; j < n; ++j) {
      kernel.unpack(w.data() + j * row_bytes, width, weight.data());
      for (float v : weight) largest = std::fmax(largest, std::fabs(v));
    }
    const auto y = run(kernel, w.data(), n, row_bytes, width, x.data(), m);
    double worst = 0;
    bool same = true;
    for (int64_t i = 0; i < m; ++i) {
      double total = 0;
      for (int64_t k = 0; k < width; ++k) total += std::fabs(x[i * width + k]);
      for (int64_t j = 0; j < n; ++j) {
        const double error = std::fabs(static_cast<double>(y[i * n + j]) - expected[i * n + j]) / (total * largest);
        worst = error <= worst ? worst : error;  // NaN becomes the worst
      }
      const auto alone = run(kernel, w.data(), n, row_bytes, width, x.data() + i * width, 1);
      same = same && std::memcmp(alone.data(), &y[i * n], static_cast<size_t>(n) * 4) == 0;
      const auto corner = run(kernel, w.data() + (n - 1) * row_bytes, 1, row_bytes, width, x.data() + i * width, 1);
      same = same && std::memcmp(corner.data(), &y[i * n + n - 1], 4) == 0;
    }
    std::printf("%s %s %g %s\n", type.c_str(), activations.c_str(), worst, same ? "same" : "different");
  }
}
