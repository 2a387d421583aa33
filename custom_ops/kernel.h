// How an operator is written: a class with kName, kInputs, kOutputs, a constructor from KernelInfo and
// compute(Context&). Errors are thrown as Error and become an ONNX Runtime status that names the operator, the input
// and the value.
#pragma once

#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <exception>
#include <memory>
#include <string>
#include <thread>
#include <type_traits>

#include "affinity.h"
#include "ort_api.h"

#ifndef TRIGRAPH_PROVIDER
#define TRIGRAPH_PROVIDER "CPUExecutionProvider"  // the execution provider whose nodes a library's operators are
#endif

namespace trigraph {

constexpr uint32_t kOrtApiVersion = 18;  // first version with KernelContext_ParallelFor beside the 208-byte OrtCustomOp

struct Error : std::exception {
  char text[512];
  const char* what() const noexcept override { return text; }
};

#if defined(__GNUC__)
[[noreturn]] inline void fail(const char* format, ...) __attribute__((format(printf, 1, 2)));
#endif
[[noreturn]] inline void fail(const char* format, ...) {
  Error error;
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(error.text, sizeof error.text, format, arguments);
  va_end(arguments);
  throw error;
}

enum class DType : int { any = 0, f32 = 1, u8 = 2, i32 = 6, i64 = 7, f16 = 10, bf16 = 16 };

struct Argument {
  const char* name;
  DType type;  // DType::any: checked by the kernel
  bool optional = false;
};

constexpr int kMaxRank = 6;

struct Tensor {
  const char* name = "";
  void* data = nullptr;
  DType type = DType::any;
  int rank = 0;
  int64_t dims[kMaxRank] = {};

  int64_t size() const {
    int64_t count = 1;
    for (int i = 0; i < rank; ++i) count *= dims[i];
    return count;
  }
  template <class T>
  T* as() const {
    return static_cast<T*>(data);
  }
  // Checks the shape; -1 matches any extent.
  void expect(std::initializer_list<int64_t> shape) const {
    bool same = rank == static_cast<int>(shape.size());
    int i = 0;
    if (same)
      for (int64_t d : shape) {
        same = same && (d < 0 || dims[i] == d);
        ++i;
      }
    if (same) return;
    char found[128], wanted[128];
    print(found, sizeof found, dims, rank);
    print(wanted, sizeof wanted, shape.begin(), static_cast<int>(shape.size()));
    fail("input %s has shape %s, expected %s", name, found, wanted);
  }

 private:
  static void print(char* out, size_t size, const int64_t* dims, int rank) {
    size_t n = std::snprintf(out, size, "[");
    for (int i = 0; i < rank && n < size; ++i)
      n += dims[i] < 0 ? std::snprintf(out + n, size - n, i ? ", *" : "*")
                       : std::snprintf(out + n, size - n, i ? ", %lld" : "%lld", static_cast<long long>(dims[i]));
    if (n < size) std::snprintf(out + n, size - n, "]");
  }
};

class Api {
 public:
  explicit Api(const OrtApi* table) : table_(table) {}
  const OrtApi* operator->() const { return table_; }
  const OrtApi* table() const { return table_; }
  // ONNX Runtime's own failures (out of memory, say) pass through with a name for the call.
  void check(OrtStatus* status, const char* call) const {
    if (!status) return;
    table_->ReleaseStatus(status);
    fail("ONNX Runtime refused %s", call);
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
  float real(const char* name) const {
    float value = 0;
    require(api_->KernelInfoGetAttribute_float(info_, name, &value), name, "a float");
    return value;
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
  // Of memory where the provider computes. Valid until it is given to ReleaseAllocator.
  OrtAllocator* allocator() const {
    OrtAllocator* allocator = nullptr;
    api_.check(api_->KernelInfoGetAllocator(info_, OrtMemTypeDefault, &allocator), "KernelInfoGetAllocator");
    return allocator;
  }
  const OrtApi* api() const { return api_.table(); }

 private:
  void require(OrtStatus* status, const char* name, const char* kind) const {
    if (!status) return;
    api_->ReleaseStatus(status);
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
    OrtTensorTypeAndShapeInfo* info = nullptr;
    api_.check(api_->GetTensorTypeAndShape(value, &info), "GetTensorTypeAndShape");
    size_t rank = 0;
    ONNXTensorElementDataType type = ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
    OrtStatus* status = api_->GetTensorElementType(info, &type);
    if (!status) status = api_->GetDimensionsCount(info, &rank);
    if (!status && rank <= kMaxRank) status = api_->GetDimensions(info, tensor.dims, rank);
    api_->ReleaseTensorTypeAndShapeInfo(info);
    api_.check(status, "GetDimensions");
    if (rank > kMaxRank) fail("input %s has %zu dimensions, more than %d", tensor.name, rank, kMaxRank);
    tensor.rank = static_cast<int>(rank);
    tensor.type = static_cast<DType>(type);
    api_.check(api_->GetTensorMutableData(const_cast<OrtValue*>(value), &tensor.data), "GetTensorData");
    return tensor;
  }

  // Of the outputs that an operator may leave out, a node must name those that its inputs or attributes ask for.
  void expect_outputs(size_t count) const {
    size_t found = 0;
    api_.check(api_->KernelContext_GetOutputCount(context_, &found), "GetOutputCount");
    if (found != count) fail("the node has %zu outputs, but its inputs and attributes make %zu", found, count);
  }

  Tensor output(size_t index, std::initializer_list<int64_t> shape) const {
    return output(index, shape.begin(), static_cast<int>(shape.size()));
  }
  Tensor output_like(size_t index, const Tensor& other) const { return output(index, other.dims, other.rank); }

  // Where a GPU provider enqueues work; nullptr on a CPU.
  void* gpu_stream() const {
    void* stream = nullptr;
    api_.check(api_->KernelContext_GetGPUComputeStream(context_, &stream), "GetGPUComputeStream");
    return stream;
  }

  // Runs body(i) for i in [0, count) on the session's pool; indices are claimed one at a time, so that unequal work
  // balances. An exception may not leave a thread of the pool; bodies throw for want of memory only.
  template <class Body>
  void parallel_for(int64_t count, Body&& body) const {
    if (count <= 0) return;
    if (count == 1) return body(int64_t{0});
    struct Shared {
      std::remove_reference_t<Body>* body;
      std::thread::id caller;
      int processor;
      std::atomic<bool> failed{false};
    } shared{&body, std::this_thread::get_id(), claim_processor()};
    auto call = [](void* user, size_t i) {
      auto* all = static_cast<Shared*>(user);
      if (std::this_thread::get_id() != all->caller) keep_off(all->caller, all->processor);
      try {
        (*all->body)(static_cast<int64_t>(i));
      } catch (const std::exception&) {
        all->failed = true;
      }
    };
    api_.check(api_->KernelContext_ParallelFor(context_, call, count, count, &shared), "ParallelFor");
    if (shared.failed) fail("a thread ran out of memory");
  }

 private:
  Tensor output(size_t index, const int64_t* dims, int rank) const {
    Tensor tensor;
    tensor.rank = rank;
    for (int i = 0; i < rank; ++i) tensor.dims[i] = dims[i];
    OrtValue* value = nullptr;
    api_.check(api_->KernelContext_GetOutput(context_, index, dims, rank, &value), "GetOutput");
    api_.check(api_->GetTensorMutableData(value, &tensor.data), "GetTensorMutableData");
    return tensor;
  }

  Api api_;
  OrtKernelContext* context_;
  const Argument* inputs_;
  size_t present_ = 0;
};

// 64-byte aligned scratch of the calling thread, kept between calls. One live use per Tag and thread; body functions of
// parallel_for may write into the caller's buffer, or take their own.
template <class Tag>
void* scratch(size_t bytes) {
  struct Free {
    void operator()(char* p) const { ::operator delete(p, std::align_val_t{64}); }
  };
  thread_local std::unique_ptr<char, Free> buffer;
  thread_local size_t capacity = 0;
#if defined(__SANITIZE_ADDRESS__)
  capacity = 0;  // exactly as large as asked for, so that a step past its end is seen
#endif
  if (capacity < bytes) {
    buffer.reset();
    capacity = 0;
    buffer.reset(static_cast<char*>(::operator new(bytes, std::align_val_t{64})));
    capacity = bytes;
  }
  return buffer.get();
}

// The OrtCustomOp of one kernel class.
template <class Kernel>
struct Op : OrtCustomOp {
  static constexpr size_t kInputCount = std::extent_v<decltype(Kernel::kInputs)>;
  static constexpr size_t kOutputCount = std::extent_v<decltype(Kernel::kOutputs)>;
  struct Instance {
    const OrtApi* api;
    Kernel kernel;
  };

  Op() : OrtCustomOp{} {
    version = kOrtApiVersion;
    GetName = [](const OrtCustomOp*) { return Kernel::kName; };
    GetExecutionProviderType = [](const OrtCustomOp*) -> const char* { return TRIGRAPH_PROVIDER; };
    GetInputTypeCount = [](const OrtCustomOp*) { return kInputCount; };
    GetInputType = [](const OrtCustomOp*, size_t i) { return element(Kernel::kInputs[i].type); };
    GetInputCharacteristic = [](const OrtCustomOp*, size_t i) { return characteristic(Kernel::kInputs[i]); };
    GetInputMemoryType = [](const OrtCustomOp*, size_t) { return OrtMemTypeDefault; };
    GetOutputTypeCount = [](const OrtCustomOp*) { return kOutputCount; };
    GetOutputType = [](const OrtCustomOp*, size_t i) { return element(Kernel::kOutputs[i].type); };
    GetOutputCharacteristic = [](const OrtCustomOp*, size_t i) { return characteristic(Kernel::kOutputs[i]); };
    GetVariadicInputMinArity = GetVariadicInputHomogeneity = [](const OrtCustomOp*) { return 0; };
    GetVariadicOutputMinArity = GetVariadicOutputHomogeneity = [](const OrtCustomOp*) { return 0; };
    GetStartVersion = [](const OrtCustomOp*) { return 1; };
    GetEndVersion = [](const OrtCustomOp*) { return 1; };
    CreateKernelV2 = [](const OrtCustomOp*, const OrtApi* api, const OrtKernelInfo* info, void** kernel) {
      return guarded(api, [&] { *kernel = new Instance{api, Kernel(KernelInfo(api, info))}; });
    };
    KernelComputeV2 = [](void* kernel, OrtKernelContext* context) {
      auto* instance = static_cast<Instance*>(kernel);
      return guarded(instance->api, [&] {
        Context wrapped(instance->api, context, Kernel::kInputs, kInputCount);
        instance->kernel.compute(wrapped);
      });
    };
    KernelDestroy = [](void* kernel) { delete static_cast<Instance*>(kernel); };
  }

 private:
  static ONNXTensorElementDataType element(DType type) { return static_cast<ONNXTensorElementDataType>(type); }
  static OrtCustomOpInputOutputCharacteristic characteristic(const Argument& argument) {
    return argument.optional ? INPUT_OUTPUT_OPTIONAL : INPUT_OUTPUT_REQUIRED;
  }
  template <class Body>
  static OrtStatus* guarded(const OrtApi* api, Body&& body) {
    try {
      body();
      return nullptr;
    } catch (const std::exception& error) {
      char text[640];
      std::snprintf(text, sizeof text, "trigraph.%s: %s", Kernel::kName, error.what());
      return api->CreateStatus(ORT_INVALID_ARGUMENT, text);
    }
  }
};

}  // namespace trigraph
