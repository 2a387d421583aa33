// Products of rows with a weight matrix on a device.
#pragma once

#include <optional>
#include <vector>

#include "../blocks/cuda/few_products.h"
#include "../cuda/kernel.h"

namespace trigraph::TRIGRAPH_ISA {

// A weight matrix, checked.
struct Weight {
  const ProductKernel& kernel;
  const uint8_t* data;
  int64_t columns, row_bytes, width;

  Weight(const Tensor& tensor, const ProductKernel& kernel, int64_t width)
      : kernel(kernel),
        data(tensor.as<uint8_t>()),
        columns(tensor.dims[0]),
        row_bytes(check_weight(tensor, kernel, width)),
        width(width) {
    check_alignment(tensor, kernel);
  }
  // The product of prepared rows.
  void product(const void* x, int64_t rows, float* y, cudaStream_t stream) const {
    kernel.product(data, columns, row_bytes, width, x, rows, y, stream);
  }
  // The product of silu(gate) * up, or, where up is nullptr, of silu(scale * gate).
  void gated_product(const float* gate, const float* up, int64_t rows, float* y, const Arena& arena,
                     cudaStream_t stream, float scale = 1) const;
  // Whether it shares a launch with weights of other types.
  bool takes_few() const { return kernel.few == few_common && kernel.layout == Layout::int8; }
};

// A product that is not empty, and where it goes.
struct Product {
  Weight weight;
  float* y;
};

// What meets weights.
struct ActivationRows {
  const float* x;
  const char* prepared;  // the same as int8, or nullptr
  int64_t width, count;
};

// The launch of few rows that makes all of the products, where there is one.
std::optional<FewTasks> one_launch(const std::vector<Product>& products, const ActivationRows& rows);
// The products of rows with several weights, in as few launches as they take. `counters`: kRowCounters.
void multiply(std::vector<Product> products, ActivationRows rows, const Arena& arena, unsigned* counters,
              cudaStream_t stream);

}  // namespace trigraph::TRIGRAPH_ISA
