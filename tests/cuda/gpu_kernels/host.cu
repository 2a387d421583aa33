#include <cstring>

#include "../../../custom_ops/cuda/platform.cuh"
#include "host.h"

struct OrtStatus {
  std::string text;
};
struct OrtKernelInfo {
  const gpu_kernels::Attributes* attributes;
};
struct OrtValue : gpu_kernels::Value {};
struct OrtKernelContext {
  std::vector<OrtValue> inputs, outputs;
  void* stream;
};

namespace trigraph::cuda {
std::vector<const OrtCustomOp*> operators();
std::vector<const OrtCustomOp*> fused_operators();
}  // namespace trigraph::cuda

namespace gpu_kernels {
namespace {

// Kernels ask for scratch memory and give it back before it was used: kept by size, it goes to the next that asks.
std::multimap<size_t, void*> spare;
std::map<void*, size_t> taken;

void* allocate(OrtAllocator*, size_t bytes) {
  const auto found = spare.find(bytes);
  void* memory = nullptr;
  if (found != spare.end()) {
    memory = found->second;
    spare.erase(found);
  } else if (cudaMalloc(&memory, bytes) != cudaSuccess) {
    return nullptr;
  }
  taken[memory] = bytes;
  return memory;
}

void give_back(OrtAllocator*, void* memory) {
  spare.emplace(taken[memory], memory);
  taken.erase(memory);
}

OrtAllocator allocator{18, allocate, give_back, nullptr};

OrtStatus* missing(const char* name) { return new OrtStatus{std::string("no ") + name}; }

template <class Set>
OrtStatus* attribute(const OrtKernelInfo* info, const char* name, Set&& set) {
  const auto found = info->attributes->find(name);
  if (found == info->attributes->end()) return missing(name);
  set(found->second);
  return nullptr;
}

// What a kernel asks when it is made.
void add_kernel_info(OrtApi& api) {
  api.CreateStatus = [](OrtErrorCode, const char* text) { return new OrtStatus{text}; };
  api.ReleaseStatus = [](OrtStatus* status) { delete status; };
  api.KernelInfoGetAttribute_int64 = [](const OrtKernelInfo* info, const char* name, int64_t* out) {
    return attribute(info, name, [&](const Attribute& a) { *out = static_cast<int64_t>(a.number); });
  };
  api.KernelInfoGetAttribute_float = [](const OrtKernelInfo* info, const char* name, float* out) {
    return attribute(info, name, [&](const Attribute& a) { *out = static_cast<float>(a.number); });
  };
  api.KernelInfoGetAttribute_string = [](const OrtKernelInfo* info, const char* name, char* out, size_t* size) {
    return attribute(info, name, [&](const Attribute& a) { std::strncpy(out, a.text.c_str(), *size - 1); });
  };
  api.KernelInfoGetAttributeArray_int64 = [](const OrtKernelInfo*, const char* name, int64_t*, size_t*) {
    return missing(name);
  };
  api.KernelInfoGetAllocator = [](const OrtKernelInfo*, OrtMemType, OrtAllocator** out) -> OrtStatus* {
    *out = &allocator;
    return nullptr;
  };
  api.ReleaseAllocator = [](OrtAllocator*) {};
}

// What it asks when it is called.
void add_kernel_context(OrtApi& api) {
  api.KernelContext_GetInputCount = [](const OrtKernelContext* context, size_t* out) -> OrtStatus* {
    *out = context->inputs.size();
    return nullptr;
  };
  api.KernelContext_GetOutputCount = [](const OrtKernelContext* context, size_t* out) -> OrtStatus* {
    *out = context->outputs.size();
    return nullptr;
  };
  api.KernelContext_GetInput = [](const OrtKernelContext* context, size_t i, const OrtValue** out) -> OrtStatus* {
    *out = context->inputs[i].data ? &context->inputs[i] : nullptr;
    return nullptr;
  };
  api.KernelContext_GetOutput = [](OrtKernelContext* context, size_t i, const int64_t* dims, size_t rank,
                                   OrtValue** out) -> OrtStatus* {
    *out = &context->outputs[i];
    return (*out)->dims == std::vector<int64_t>(dims, dims + rank) ? nullptr : missing("output of that shape");
  };
  api.GetTensorMutableData = [](OrtValue* value, void** out) -> OrtStatus* {
    *out = value->data;
    return nullptr;
  };
  api.GetTensorElementTypeAndShapeDataReference = [](const OrtValue* value, ONNXTensorElementDataType* type,
                                                     const int64_t** dims, size_t* rank) -> OrtStatus* {
    *type = static_cast<ONNXTensorElementDataType>(value->type);
    *dims = value->dims.data();
    *rank = value->dims.size();
    return nullptr;
  };
  api.KernelContext_GetGPUComputeStream = [](const OrtKernelContext* context, void** out) -> OrtStatus* {
    *out = context->stream;
    return nullptr;
  };
}

OrtApi make_api() {
  OrtApi api{};
  add_kernel_info(api);
  add_kernel_context(api);
  return api;
}

const OrtApi* api() {
  static const OrtApi table = make_api();
  return &table;
}

void check(OrtStatus* status) {
  if (!status) return;
  const std::string text = status->text;
  delete status;
  trigraph::fail("%s", text.c_str());
}

OrtKernelContext context_of(const std::vector<Value>& inputs, const std::vector<Value>& outputs, void* stream) {
  OrtKernelContext context;
  for (const Value& value : inputs) context.inputs.push_back({value});
  for (const Value& value : outputs) context.outputs.push_back({value});
  context.stream = stream;
  return context;
}

}  // namespace

size_t bytes_of(DType type) {
  switch (type) {
    case DType::i64:
      return 8;
    case DType::u8:
      return 1;
    case DType::f16:
    case DType::bf16:
      return 2;
    default:
      return 4;
  }
}

size_t Value::bytes() const {
  size_t count = bytes_of(type);
  for (int64_t dim : dims) count *= static_cast<size_t>(dim);
  return count;
}

Node::Node(const OrtCustomOp* op, const Attributes& attributes) : op_(op) {
  const OrtKernelInfo info{&attributes};
  check(op->CreateKernelV2(op, api(), &info, &kernel_));
}
Node::~Node() { op_->KernelDestroy(kernel_); }

void Node::run(std::vector<Value>& inputs, std::vector<Value>& outputs, void* stream) {
  OrtKernelContext context = context_of(inputs, outputs, stream);
  check(op_->KernelComputeV2(kernel_, &context));
}

const OrtCustomOp* find_operator(const std::string& name, size_t index, DType type) {
  for (const auto& operators : {trigraph::cuda::operators(), trigraph::cuda::fused_operators(), {draw_tokens()}})
    for (const OrtCustomOp* op : operators) {
      const auto takes = static_cast<DType>(op->GetInputType(op, index));
      if (name == op->GetName(op) && (takes == type || takes == DType::any)) return op;
    }
  trigraph::fail("no operator is called %s", name.c_str());
}

}  // namespace gpu_kernels
