// The part of ONNX Runtime's C ABI that an operator library needs, declared by hand: no package index ships the C
// headers. The table is append-only, so entries keep their index for ever. -DONNXRUNTIME_INCLUDE_DIR= uses the official
// header.
#pragma once

#include <cstddef>
#include <cstdint>

// For what others look up in the library. The official ORT_EXPORT is empty on most systems.
#ifdef _WIN32
#define TRIGRAPH_EXPORT __declspec(dllexport)
#else
#define TRIGRAPH_EXPORT __attribute__((visibility("default")))
#endif

#ifdef TRIGRAPH_OFFICIAL_ORT_HEADER
#include <onnxruntime_c_api.h>
#else

#ifdef _WIN32
#define ORT_API_CALL __stdcall
#else
#define ORT_API_CALL
#endif

struct OrtStatus;
struct OrtKernelInfo;
struct OrtKernelContext;
struct OrtValue;
struct OrtCustomOpDomain;
struct OrtSessionOptions;
struct OrtShapeInferContext;
struct OrtMemoryInfo;
struct OrtCustomOp;

enum OrtErrorCode { ORT_OK = 0, ORT_FAIL = 1, ORT_INVALID_ARGUMENT = 2 };

enum ONNXTensorElementDataType {
  ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED = 0,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT = 1,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8 = 2,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32 = 6,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64 = 7,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16 = 10,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16 = 16,
};

enum OrtCustomOpInputOutputCharacteristic { INPUT_OUTPUT_REQUIRED = 0, INPUT_OUTPUT_OPTIONAL = 1 };
enum OrtMemType { OrtMemTypeCPUInput = -2, OrtMemTypeDefault = 0 };

struct OrtAllocator {
  uint32_t version;
  void*(ORT_API_CALL* Alloc)(OrtAllocator*, size_t);
  void(ORT_API_CALL* Free)(OrtAllocator*, void*);
  const OrtMemoryInfo*(ORT_API_CALL* Info)(const OrtAllocator*);
};

// Field names are the official ones, so that the sources compile against either declaration.
struct OrtApi {
  OrtStatus*(ORT_API_CALL* CreateStatus)(OrtErrorCode, const char*);
  void* entry_1;
  const char*(ORT_API_CALL* GetErrorMessage)(const OrtStatus*);
  void* entries_3_25[23];
  OrtStatus*(ORT_API_CALL* CreateCustomOpDomain)(const char*, OrtCustomOpDomain**);
  OrtStatus*(ORT_API_CALL* CustomOpDomain_Add)(OrtCustomOpDomain*, const OrtCustomOp*);
  OrtStatus*(ORT_API_CALL* AddCustomOpDomain)(OrtSessionOptions*, OrtCustomOpDomain*);
  void* entries_29_50[22];
  OrtStatus*(ORT_API_CALL* GetTensorMutableData)(OrtValue*, void**);
  void* entries_52_84[33];
  OrtStatus*(ORT_API_CALL* KernelInfoGetAttribute_float)(const OrtKernelInfo*, const char*, float*);
  OrtStatus*(ORT_API_CALL* KernelInfoGetAttribute_int64)(const OrtKernelInfo*, const char*, int64_t*);
  OrtStatus*(ORT_API_CALL* KernelInfoGetAttribute_string)(const OrtKernelInfo*, const char*, char*, size_t*);
  OrtStatus*(ORT_API_CALL* KernelContext_GetInputCount)(const OrtKernelContext*, size_t*);
  OrtStatus*(ORT_API_CALL* KernelContext_GetOutputCount)(const OrtKernelContext*, size_t*);
  OrtStatus*(ORT_API_CALL* KernelContext_GetInput)(const OrtKernelContext*, size_t, const OrtValue**);
  OrtStatus*(ORT_API_CALL* KernelContext_GetOutput)(OrtKernelContext*, size_t, const int64_t*, size_t, OrtValue**);
  void* entry_92;
  void(ORT_API_CALL* ReleaseStatus)(OrtStatus*);
  void* entries_94_131[38];
  void(ORT_API_CALL* ReleaseAllocator)(OrtAllocator*);
  void* entries_133_162[30];
  OrtStatus*(ORT_API_CALL* KernelInfoGetAttributeArray_int64)(const OrtKernelInfo*, const char*, int64_t*, size_t*);
  void* entries_164_192[29];
  OrtStatus*(ORT_API_CALL* KernelContext_GetGPUComputeStream)(const OrtKernelContext*, void**);
  void* entries_194_273[80];
  OrtStatus*(ORT_API_CALL* KernelContext_ParallelFor)(const OrtKernelContext*, void (*)(void*, size_t), size_t total,
                                                      size_t num_batch, void* user);
  void* entries_275_277[3];
  OrtStatus*(ORT_API_CALL* KernelInfoGetAllocator)(const OrtKernelInfo*, OrtMemType, OrtAllocator**);
  void* entries_279_413[135];
  OrtStatus*(ORT_API_CALL* GetTensorElementTypeAndShapeDataReference)(const OrtValue*, ONNXTensorElementDataType*,
                                                                      const int64_t**, size_t*);
};

struct OrtApiBase {
  const OrtApi*(ORT_API_CALL* GetApi)(uint32_t version);
  const char*(ORT_API_CALL* GetVersionString)();
};

struct OrtCustomOp {
  uint32_t version;
  void*(ORT_API_CALL* CreateKernel)(const OrtCustomOp*, const OrtApi*, const OrtKernelInfo*);
  const char*(ORT_API_CALL* GetName)(const OrtCustomOp*);
  const char*(ORT_API_CALL* GetExecutionProviderType)(const OrtCustomOp*);
  ONNXTensorElementDataType(ORT_API_CALL* GetInputType)(const OrtCustomOp*, size_t);
  size_t(ORT_API_CALL* GetInputTypeCount)(const OrtCustomOp*);
  ONNXTensorElementDataType(ORT_API_CALL* GetOutputType)(const OrtCustomOp*, size_t);
  size_t(ORT_API_CALL* GetOutputTypeCount)(const OrtCustomOp*);
  void(ORT_API_CALL* KernelCompute)(void*, OrtKernelContext*);
  void(ORT_API_CALL* KernelDestroy)(void*);
  OrtCustomOpInputOutputCharacteristic(ORT_API_CALL* GetInputCharacteristic)(const OrtCustomOp*, size_t);
  OrtCustomOpInputOutputCharacteristic(ORT_API_CALL* GetOutputCharacteristic)(const OrtCustomOp*, size_t);
  OrtMemType(ORT_API_CALL* GetInputMemoryType)(const OrtCustomOp*, size_t);
  int(ORT_API_CALL* GetVariadicInputMinArity)(const OrtCustomOp*);
  int(ORT_API_CALL* GetVariadicInputHomogeneity)(const OrtCustomOp*);
  int(ORT_API_CALL* GetVariadicOutputMinArity)(const OrtCustomOp*);
  int(ORT_API_CALL* GetVariadicOutputHomogeneity)(const OrtCustomOp*);
  OrtStatus*(ORT_API_CALL* CreateKernelV2)(const OrtCustomOp*, const OrtApi*, const OrtKernelInfo*, void**);
  OrtStatus*(ORT_API_CALL* KernelComputeV2)(void*, OrtKernelContext*);
  OrtStatus*(ORT_API_CALL* InferOutputShapeFn)(const OrtCustomOp*, OrtShapeInferContext*);
  int(ORT_API_CALL* GetStartVersion)(const OrtCustomOp*);
  int(ORT_API_CALL* GetEndVersion)(const OrtCustomOp*);
  size_t(ORT_API_CALL* GetMayInplace)(int**, int**);
  void(ORT_API_CALL* ReleaseMayInplace)(int*, int*);
  size_t(ORT_API_CALL* GetAliasMap)(int**, int**);
  void(ORT_API_CALL* ReleaseAliasMap)(int*, int*);
};

static_assert(sizeof(OrtCustomOp) == 208, "OrtCustomOp as of API version 18");
static_assert(offsetof(OrtApi, AddCustomOpDomain) == 28 * sizeof(void*));
static_assert(offsetof(OrtApi, GetTensorMutableData) == 51 * sizeof(void*));
static_assert(offsetof(OrtApi, KernelInfoGetAttribute_string) == 87 * sizeof(void*));
static_assert(offsetof(OrtApi, KernelContext_GetOutput) == 91 * sizeof(void*));
static_assert(offsetof(OrtApi, ReleaseAllocator) == 132 * sizeof(void*));
static_assert(offsetof(OrtApi, KernelInfoGetAttributeArray_int64) == 163 * sizeof(void*));
static_assert(offsetof(OrtApi, KernelContext_GetGPUComputeStream) == 193 * sizeof(void*));
static_assert(offsetof(OrtApi, KernelContext_ParallelFor) == 274 * sizeof(void*));
static_assert(offsetof(OrtApi, KernelInfoGetAllocator) == 278 * sizeof(void*));
static_assert(offsetof(OrtApi, GetTensorElementTypeAndShapeDataReference) == 414 * sizeof(void*));
#endif
