// A host for one operator: as much of ONNX Runtime's C interface as the kernels ask for, so that they run without it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "../../../custom_ops/kernel.h"

namespace gpu_kernels {

using trigraph::DType;

struct Attribute {
  std::string text;
  double number;
  Attribute(const char* text) : text(text), number(0) {}
  Attribute(const std::string& text) : text(text), number(0) {}
  Attribute(double number) : number(number) {}
};
using Attributes = std::map<std::string, Attribute>;

size_t bytes_of(DType type);

// A tensor on the device. An absent input has no data.
struct Value {
  DType type = DType::f32;
  std::vector<int64_t> dims;
  void* data = nullptr;
  size_t bytes() const;
};

// A node: the kernel of `op` with these attributes.
class Node {
 public:
  Node(const OrtCustomOp* op, const Attributes& attributes);
  Node(const Node&) = delete;
  ~Node();
  // Enqueues it. `outputs` have the memory that results go to. Throws trigraph::Error with the kernel's own words.
  void run(std::vector<Value>& inputs, std::vector<Value>& outputs, void* stream);

 private:
  const OrtCustomOp* op_;
  void* kernel_ = nullptr;
};

// trigraph_draw_rows as an operator.
const OrtCustomOp* draw_tokens();

// The operator of that name whose input `index` may have this type.
const OrtCustomOp* find_operator(const std::string& name, size_t index, DType type);

}  // namespace gpu_kernels
