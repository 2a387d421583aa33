// How an operator is written: a class with kName, kInputs, kOutputs, a constructor from KernelInfo and
// compute(Context&). Errors are thrown as Error and become an ONNX Runtime status that names the operator, the input
// and the value.
#pragma once

#include <cstdio>
#include <exception>
#include <iterator>

#include "context.h"
#include "parallel_for.h"
#include "scratch.h"

#ifndef TRIGRAPH_PROVIDER
#define TRIGRAPH_PROVIDER "CPUExecutionProvider"  // the execution provider whose nodes a library's operators are
#endif

namespace trigraph {

constexpr uint32_t kOrtApiVersion = 24;       // the first with GetTensorElementTypeAndShapeDataReference
constexpr uint32_t kOrtCustomOpVersion = 18;  // of the 208-byte OrtCustomOp

// The OrtCustomOp of one kernel class.
template <class Kernel>
struct Op : OrtCustomOp {
  // Not by the arrays' types: in a template, GCC 13 leaves their bounds open until a value needs them.
  static constexpr size_t kInputCount = std::size(Kernel::kInputs);
  static constexpr size_t kOutputCount = std::size(Kernel::kOutputs);
  struct Instance {
    const OrtApi* api;
    Kernel kernel;
  };

  Op() : OrtCustomOp{} {
    version = kOrtCustomOpVersion;
    GetName = [](const OrtCustomOp*) { return Kernel::kName; };
    GetExecutionProviderType = [](const OrtCustomOp*) -> const char* { return TRIGRAPH_PROVIDER; };
    GetInputTypeCount = [](const OrtCustomOp*) { return kInputCount; };
    GetInputType = [](const OrtCustomOp*, size_t i) { return element(Kernel::kInputs[i].type); };
    GetInputCharacteristic = [](const OrtCustomOp*, size_t i) { return characteristic(Kernel::kInputs[i]); };
    GetInputMemoryType = [](const OrtCustomOp*, size_t i) {
      return Kernel::kInputs[i].on_host ? OrtMemTypeCPUInput : OrtMemTypeDefault;
    };
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
        const ScratchLoan scratch;
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
