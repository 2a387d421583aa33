// ONNX Runtime's C ABI as a kernel sees it: attributes when it is made, inputs and outputs when it is called.
#pragma once

#include <initializer_list>
#include <string>
#include <vector>

#include "ort_api.h"
#include "tensor.h"

namespace trigraph {

class Api {
 public:
  explicit Api(const OrtApi* table) : table_(table) {}
  const OrtApi* operator->() const { return table_; }
  const OrtApi* table() const { return table_; }
  // ONNX Runtime's own failures (out of memory, say) pass through with a name for the call.
  void check(OrtStatus* status, const char* call) const {
    if (!status) return;
    const std::string message = table_->GetErrorMessage(status);
    table_->ReleaseStatus(status);
    fail("ONNX Runtime failed in %s: %s", call, message.c_str());
  }

 private:
  const OrtApi* table_;
};

class KernelInfo {
 public:
  KernelInfo(const OrtApi* api, const OrtKernelInfo* info) : api_(api), info_(info) {}

  int64_t integer(const char* name) const {
    int64_t value = 0;
    require(api_->KernelInfoGetAttribute_int64(info_, name, &value), name, "an integer");
    return value;
  }
  int64_t integer(const char* name, int64_t fallback) const {
    int64_t value = 0;
    return given(api_->KernelInfoGetAttribute_int64(info_, name, &value)) ? value : fallback;
  }
  float real(const char* name) const {
    float value = 0;
    require(api_->KernelInfoGetAttribute_float(info_, name, &value), name, "a float");
    return value;
  }
  float real(const char* name, float fallback) const {
    float value = 0;
    return given(api_->KernelInfoGetAttribute_float(info_, name, &value)) ? value : fallback;
  }
  // Empty without the attribute.
  std::vector<int64_t> integers(const char* name) const {
    size_t count = 0;
    if (!given(api_->KernelInfoGetAttributeArray_int64(info_, name, nullptr, &count))) return {};
    std::vector<int64_t> values(count);
    require(api_->KernelInfoGetAttributeArray_int64(info_, name, values.data(), &count), name, "integers");
    return values;
  }
  // fallback == nullptr: the attribute is required.
  std::string text(const char* name, const char* fallback = nullptr) const {
    char value[64] = {};
    size_t size = sizeof value;
    OrtStatus* status = api_->KernelInfoGetAttribute_string(info_, name, value, &size);
    if (status && fallback && size == sizeof value) {  // a text that is too long changes the size
      api_->ReleaseStatus(status);
      return fallback;
    }
    require(status, name, "a short string");
    return value;
  }
  // An allocator of memory where the provider computes. Valid until it is given to ReleaseAllocator.
  OrtAllocator* allocator() const {
    OrtAllocator* allocator = nullptr;
    api_.check(api_->KernelInfoGetAllocator(info_, OrtMemTypeDefault, &allocator), "KernelInfoGetAllocator");
    return allocator;
  }
  const OrtApi* api() const { return api_.table(); }

 private:
  bool given(OrtStatus* status) const {
    if (status) api_->ReleaseStatus(status);
    return !status;
  }
  void require(OrtStatus* status, const char* name, const char* kind) const {
    if (given(status)) return;
    fail("attribute %s is missing or is not %s", name, kind);
  }
  Api api_;
  const OrtKernelInfo* info_;
};

class Context {
 public:
  Context(const OrtApi* api, OrtKernelContext* context, const Argument* inputs, size_t input_count)
      : api_(api), context_(context), inputs_(inputs) {
    size_t present = 0;
    api_.check(api_->KernelContext_GetInputCount(context_, &present), "GetInputCount");
    present_ = present < input_count ? present : input_count;
  }

  // An absent optional input has data == nullptr and rank 0.
  Tensor input(size_t index) const {
    Tensor tensor;
    tensor.name = inputs_[index].name;
    const OrtValue* value = nullptr;
    if (index < present_) api_.check(api_->KernelContext_GetInput(context_, index, &value), "GetInput");
    if (!value) {
      if (!inputs_[index].optional) fail("input %s is missing", tensor.name);
      return tensor;
    }
    const int64_t* dims = nullptr;
    size_t rank = 0;
    ONNXTensorElementDataType type = ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
    api_.check(api_->GetTensorElementTypeAndShapeDataReference(value, &type, &dims, &rank), "GetTensorTypeAndShape");
    if (rank > kMaxRank) fail("input %s has %zu dimensions, more than %d", tensor.name, rank, kMaxRank);
    for (size_t i = 0; i < rank; ++i) tensor.dims[i] = dims[i];
    tensor.rank = static_cast<int>(rank);
    tensor.type = static_cast<DType>(type);
    api_.check(api_->GetTensorMutableData(const_cast<OrtValue*>(value), &tensor.data), "GetTensorData");
    return tensor;
  }

  // A node must name those outputs that an operator may leave out and its inputs or attributes ask for.
  void expect_outputs(size_t count) const {
    size_t found = 0;
    api_.check(api_->KernelContext_GetOutputCount(context_, &found), "GetOutputCount");
    if (found != count) fail("the node has %zu outputs, but its inputs and attributes make %zu", found, count);
  }

  Tensor output(size_t index, std::initializer_list<int64_t> shape) const {
    return output(index, shape.begin(), static_cast<int>(shape.size()), false);
  }
  Tensor output_like(size_t index, const Tensor& other) const { return output(index, other.dims, other.rank, false); }
  // One that a node leaves unnamed, as nobody reads it, has data == nullptr.
  Tensor optional_output(size_t index, std::initializer_list<int64_t> shape) const {
    return output(index, shape.begin(), static_cast<int>(shape.size()), true);
  }

  // Where a GPU provider enqueues work; nullptr on a CPU.
  void* gpu_stream() const {
    void* stream = nullptr;
    api_.check(api_->KernelContext_GetGPUComputeStream(context_, &stream), "GetGPUComputeStream");
    return stream;
  }

  // Runs body(i) for i in [0, count) on the session's pool; indices are claimed one at a time, so that unequal work
  // balances. An exception may not leave a thread of the pool; bodies throw for want of memory only. See
  // parallel_for.h.
  template <class Body>
  void parallel_for(int64_t count, Body&& body) const;

 private:
  Tensor output(size_t index, const int64_t* dims, int rank, bool optional) const {
    Tensor tensor;
    tensor.rank = rank;
    for (int i = 0; i < rank; ++i) tensor.dims[i] = dims[i];
    OrtValue* value = nullptr;
    api_.check(api_->KernelContext_GetOutput(context_, index, dims, rank, &value), "GetOutput");
    if (!value && !optional) fail("output %zu has no name", index);
    if (value) api_.check(api_->GetTensorMutableData(value, &tensor.data), "GetTensorMutableData");
    return tensor;
  }

  Api api_;
  OrtKernelContext* context_;
  const Argument* inputs_;
  size_t present_ = 0;
};

}  // namespace trigraph
