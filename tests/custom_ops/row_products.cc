// Row products of one instruction set, case after case from stdin; built and fed by test_emulated_sets.py. A case: type
// and activations on a line, "n width m row_bytes" on the next one, then n rows of weights and x [m, width] as raw
// bytes. Its y [m, n] goes to stdout.
#include <cmath>
#include <iostream>
#include <string>
#include <vector>

#include "blocks/cpu/row_kernel.h"

using namespace trigraph;
using namespace trigraph::TRIGRAPH_ISA;

#if defined(TRIGRAPH_INT8_ALONE)
const RowKernel* trigraph::TRIGRAPH_ISA::find_float_kernel(const std::string&) { return nullptr; }
#endif

namespace {

std::vector<float> product(const RowKernel& kernel, const std::vector<uint8_t>& w, int64_t n, int64_t row_bytes,
                           int64_t width, const std::vector<float>& x, int64_t m) {
  const int64_t stride = kernel.prepared_bytes(width);
  std::vector<char> space(static_cast<size_t>(stride * m + 64));
  char* prepared = space.data() + (64 - reinterpret_cast<uintptr_t>(space.data()) % 64) % 64;
  std::vector<float> y(static_cast<size_t>(m * n), std::nanf(""));
  std::vector<const void*> rows;
  std::vector<float*> out;
  for (int64_t i = 0; i < m; ++i) {
    kernel.prepare(x.data() + i * width, width, prepared + i * stride);
    rows.push_back(prepared + i * stride);
    out.push_back(y.data() + i * n);
  }
  kernel.product(w.data(), n, row_bytes, width, rows.data(), m, out.data());
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
    const auto x = read<float>(m * width);
    const auto y = product(row_kernel(type, activations), w, n, row_bytes, width, x, m);
    std::cout.write(reinterpret_cast<const char*>(y.data()), static_cast<std::streamsize>(y.size() * sizeof(float)));
  }
}
