// ONNX Runtime as this host needs it: one graph in a session, tensors in the host's own memory, errors as exceptions.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "ort_host_api.h"

inline const OrtApi& ort() {
  static const OrtApi* api = OrtGetApiBase()->GetApi(18);
  if (!api) throw std::runtime_error(std::string("ONNX Runtime is too old: ") + OrtGetApiBase()->GetVersionString());
  return *api;
}

inline void check(OrtStatus* status) {
  if (!status) return;
  std::string text = ort().GetErrorMessage(status);
  ort().ReleaseStatus(status);
  throw std::runtime_error(text);
}

template <class T>
using Handle = std::unique_ptr<T, void(ORT_API_CALL*)(T*)>;

using Dims = std::vector<int64_t>;

// A tensor in memory that it owns, NaN at first.
class Tensor {
 public:
  Tensor(ONNXTensorElementDataType type, const Dims& dims) : value_(nullptr, ort().ReleaseValue) {
    size_t bytes = type == ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16 ? 2
                   : type == ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64 ? 8
                                                                 : 4;
    for (int64_t size : dims) bytes *= static_cast<size_t>(size);
    memory_.assign(bytes ? bytes : 1, '\xff');
    OrtMemoryInfo* cpu = nullptr;
    check(ort().CreateCpuMemoryInfo(OrtDeviceAllocator, OrtMemTypeDefault, &cpu));
    OrtValue* value = nullptr;
    OrtStatus* status =
        ort().CreateTensorWithDataAsOrtValue(cpu, memory_.data(), bytes, dims.data(), dims.size(), type, &value);
    ort().ReleaseMemoryInfo(cpu);
    check(status);
    value_.reset(value);
  }
  template <class T>
  Tensor(ONNXTensorElementDataType type, const Dims& dims, const std::vector<T>& content) : Tensor(type, dims) {
    if (memory_.size() < content.size() * sizeof(T)) throw std::logic_error("content larger than its tensor");
    std::copy_n(reinterpret_cast<const char*>(content.data()), content.size() * sizeof(T), memory_.data());
  }
  OrtValue* value() const { return value_.get(); }

 private:
  std::vector<char> memory_;
  Handle<OrtValue> value_;
};

// What a graph says of an input or output: -1 in `dims` where `symbols` has the name of a size that the host chooses.
struct Port {
  std::string name;
  ONNXTensorElementDataType type;
  Dims dims;
  std::vector<std::string> symbols;
};

class Graph {
 public:
  // `library`: the operator library to register; empty for a package that needs none.
  Graph(OrtEnv* env, const std::filesystem::path& file, const std::string& library, int threads)
      : session_(nullptr, ort().ReleaseSession) {
    OrtSessionOptions* raw = nullptr;
    check(ort().CreateSessionOptions(&raw));
    Handle<OrtSessionOptions> options(raw, ort().ReleaseSessionOptions);
    void* handle = nullptr;  // stays loaded as long as the process
    if (!library.empty()) check(ort().RegisterCustomOpsLibrary(raw, library.c_str(), &handle));
    check(ort().SetIntraOpNumThreads(raw, threads));
    check(ort().AddSessionConfigEntry(raw, "session.disable_prepacking", "1"));
    check(ort().AddSessionConfigEntry(raw, "session.force_spinning_stop", "1"));
    OrtSession* session = nullptr;
    try {
      check(ort().CreateSession(env, file.c_str(), raw, &session));
    } catch (const std::runtime_error& error) {
      const bool unknown = std::string(error.what()).find("is not a registered function/op") != std::string::npos;
      if (!unknown || !library.empty()) throw;
      throw std::runtime_error(
          "the package needs the operator library: give its file with --library, or export with --portable");
    }
    session_.reset(session);
    inputs = ports(ort().SessionGetInputCount, ort().SessionGetInputName, ort().SessionGetInputTypeInfo);
    outputs = ports(ort().SessionGetOutputCount, ort().SessionGetOutputName, ort().SessionGetOutputTypeInfo);
  }

  // Runs the graph on the values of its inputs. `targets` has the tensors to write some outputs to; the others are
  // returned by name.
  std::map<std::string, Handle<OrtValue>> run(const std::map<std::string, const OrtValue*>& values,
                                              const std::map<std::string, OrtValue*>& targets) {
    std::vector<const char*> input_names, output_names;
    std::vector<const OrtValue*> fed;
    std::vector<OrtValue*> made;
    for (const Port& port : inputs) {
      input_names.push_back(port.name.c_str());
      fed.push_back(values.at(port.name));
    }
    for (const Port& port : outputs) {
      output_names.push_back(port.name.c_str());
      auto target = targets.find(port.name);
      made.push_back(target == targets.end() ? nullptr : target->second);
    }
    check(ort().Run(session_.get(), nullptr, input_names.data(), fed.data(), fed.size(), output_names.data(),
                    made.size(), made.data()));
    std::map<std::string, Handle<OrtValue>> results;
    for (size_t i = 0; i < made.size(); ++i)
      if (!targets.count(outputs[i].name))
        results.emplace(outputs[i].name, Handle<OrtValue>(made[i], ort().ReleaseValue));
    return results;
  }

  // The version number that the model itself bears.
  int64_t version() const {
    int64_t version = 0;
    check(ort().ModelMetadataGetVersion(metadata().get(), &version));
    return version;
  }

  // What the model asks of its host beside text: names between commas.
  std::string features() const {
    OrtAllocator* allocator = nullptr;
    check(ort().GetAllocatorWithDefaultOptions(&allocator));
    char* value = nullptr;
    check(ort().ModelMetadataLookupCustomMetadataMap(metadata().get(), allocator, "trigraph.features", &value));
    if (!value) return "";
    const std::string features = value;
    check(ort().AllocatorFree(allocator, value));
    return features;
  }

  std::vector<Port> inputs, outputs;

 private:
  Handle<OrtModelMetadata> metadata() const {
    OrtModelMetadata* metadata = nullptr;
    check(ort().SessionGetModelMetadata(session_.get(), &metadata));
    return {metadata, ort().ReleaseModelMetadata};
  }

  template <class Count, class Name, class Info>
  std::vector<Port> ports(Count get_count, Name get_name, Info get_info) const {
    OrtAllocator* allocator = nullptr;
    check(ort().GetAllocatorWithDefaultOptions(&allocator));
    size_t count = 0;
    check(get_count(session_.get(), &count));
    std::vector<Port> ports(count);
    for (size_t i = 0; i < count; ++i) {
      char* name = nullptr;
      check(get_name(session_.get(), i, allocator, &name));
      ports[i].name = name;
      check(ort().AllocatorFree(allocator, name));
      OrtTypeInfo* type = nullptr;
      check(get_info(session_.get(), i, &type));
      Handle<OrtTypeInfo> owner(type, ort().ReleaseTypeInfo);
      const OrtTensorTypeAndShapeInfo* tensor = nullptr;
      check(ort().CastTypeInfoToTensorInfo(type, &tensor));
      check(ort().GetTensorElementType(tensor, &ports[i].type));
      size_t rank = 0;
      check(ort().GetDimensionsCount(tensor, &rank));
      ports[i].dims.resize(rank);
      check(ort().GetDimensions(tensor, ports[i].dims.data(), rank));
      std::vector<const char*> symbols(rank);
      check(ort().GetSymbolicDimensions(tensor, symbols.data(), rank));
      ports[i].symbols.assign(symbols.begin(), symbols.end());
    }
    return ports;
  }

  Handle<OrtSession> session_;
};

template <class T>
const T* data(const Handle<OrtValue>& value) {
  void* memory = nullptr;
  check(ort().GetTensorMutableData(value.get(), &memory));
  return static_cast<const T*>(memory);
}
