// The part of ONNX Runtime's C ABI that this host calls, declared by hand: no package index ships the C headers. The
// table is append-only, so entries keep their index for ever. -DONNXRUNTIME_INCLUDE_DIR= uses the official header.
#pragma once

#include <cstddef>
#include <cstdint>

#ifdef OFFICIAL_ORT_HEADER
#include <onnxruntime_c_api.h>
#else

#ifdef _WIN32
#define ORT_API_CALL __stdcall
#define ORTCHAR_T wchar_t
#else
#define ORT_API_CALL
#define ORTCHAR_T char
#endif

struct OrtAllocator;
struct OrtEnv;
struct OrtMemoryInfo;
struct OrtModelMetadata;
struct OrtRunOptions;
struct OrtSession;
struct OrtSessionOptions;
struct OrtStatus;
struct OrtTensorTypeAndShapeInfo;
struct OrtTypeInfo;
struct OrtValue;

enum OrtLoggingLevel { ORT_LOGGING_LEVEL_FATAL = 4 };
enum OrtAllocatorType { OrtDeviceAllocator = 0 };
enum OrtMemType { OrtMemTypeDefault = 0 };
enum ONNXTensorElementDataType {
  ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT = 1,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32 = 6,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64 = 7,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16 = 10,
};

// Field names are the official ones, so that the sources compile against either declaration.
struct OrtApi {
  void* entries_0_1[2];
  const char*(ORT_API_CALL* GetErrorMessage)(const OrtStatus*);
  OrtStatus*(ORT_API_CALL* CreateEnv)(OrtLoggingLevel, const char* name, OrtEnv**);
  void* entries_4_6[3];
  OrtStatus*(ORT_API_CALL* CreateSession)(const OrtEnv*, const ORTCHAR_T* path, const OrtSessionOptions*, OrtSession**);
  void* entry_8;
  OrtStatus*(ORT_API_CALL* Run)(OrtSession*, const OrtRunOptions*, const char* const* input_names,
                                const OrtValue* const* inputs, size_t input_count, const char* const* output_names,
                                size_t output_count, OrtValue** outputs);
  OrtStatus*(ORT_API_CALL* CreateSessionOptions)(OrtSessionOptions**);
  void* entries_11_23[13];
  OrtStatus*(ORT_API_CALL* SetIntraOpNumThreads)(OrtSessionOptions*, int);
  void* entries_25_28[4];
  OrtStatus*(ORT_API_CALL* RegisterCustomOpsLibrary)(OrtSessionOptions*, const char* path, void** handle);
  OrtStatus*(ORT_API_CALL* SessionGetInputCount)(const OrtSession*, size_t*);
  OrtStatus*(ORT_API_CALL* SessionGetOutputCount)(const OrtSession*, size_t*);
  void* entry_32;
  OrtStatus*(ORT_API_CALL* SessionGetInputTypeInfo)(const OrtSession*, size_t, OrtTypeInfo**);
  OrtStatus*(ORT_API_CALL* SessionGetOutputTypeInfo)(const OrtSession*, size_t, OrtTypeInfo**);
  void* entry_35;
  OrtStatus*(ORT_API_CALL* SessionGetInputName)(const OrtSession*, size_t, OrtAllocator*, char**);
  OrtStatus*(ORT_API_CALL* SessionGetOutputName)(const OrtSession*, size_t, OrtAllocator*, char**);
  void* entries_38_48[11];
  OrtStatus*(ORT_API_CALL* CreateTensorWithDataAsOrtValue)(const OrtMemoryInfo*, void* data, size_t bytes,
                                                           const int64_t* dims, size_t rank, ONNXTensorElementDataType,
                                                           OrtValue**);
  void* entry_50;
  OrtStatus*(ORT_API_CALL* GetTensorMutableData)(OrtValue*, void**);
  void* entries_52_54[3];
  OrtStatus*(ORT_API_CALL* CastTypeInfoToTensorInfo)(const OrtTypeInfo*, const OrtTensorTypeAndShapeInfo**);
  void* entries_56_59[4];
  OrtStatus*(ORT_API_CALL* GetTensorElementType)(const OrtTensorTypeAndShapeInfo*, ONNXTensorElementDataType*);
  OrtStatus*(ORT_API_CALL* GetDimensionsCount)(const OrtTensorTypeAndShapeInfo*, size_t*);
  OrtStatus*(ORT_API_CALL* GetDimensions)(const OrtTensorTypeAndShapeInfo*, int64_t*, size_t);
  OrtStatus*(ORT_API_CALL* GetSymbolicDimensions)(const OrtTensorTypeAndShapeInfo*, const char**, size_t);
  void* entries_64_68[5];
  OrtStatus*(ORT_API_CALL* CreateCpuMemoryInfo)(OrtAllocatorType, OrtMemType, OrtMemoryInfo**);
  void* entries_70_75[6];
  OrtStatus*(ORT_API_CALL* AllocatorFree)(OrtAllocator*, void*);
  void* entry_77;
  OrtStatus*(ORT_API_CALL* GetAllocatorWithDefaultOptions)(OrtAllocator**);
  void* entries_79_91[13];
  void(ORT_API_CALL* ReleaseEnv)(OrtEnv*);
  void(ORT_API_CALL* ReleaseStatus)(OrtStatus*);
  void(ORT_API_CALL* ReleaseMemoryInfo)(OrtMemoryInfo*);
  void(ORT_API_CALL* ReleaseSession)(OrtSession*);
  void(ORT_API_CALL* ReleaseValue)(OrtValue*);
  void* entry_97;
  void(ORT_API_CALL* ReleaseTypeInfo)(OrtTypeInfo*);
  void* entry_99;
  void(ORT_API_CALL* ReleaseSessionOptions)(OrtSessionOptions*);
  void* entries_101_110[10];
  OrtStatus*(ORT_API_CALL* SessionGetModelMetadata)(const OrtSession*, OrtModelMetadata**);
  void* entries_112_115[4];
  OrtStatus*(ORT_API_CALL* ModelMetadataLookupCustomMetadataMap)(const OrtModelMetadata*, OrtAllocator*,
                                                                 const char* key, char** value);
  OrtStatus*(ORT_API_CALL* ModelMetadataGetVersion)(const OrtModelMetadata*, int64_t*);
  void(ORT_API_CALL* ReleaseModelMetadata)(OrtModelMetadata*);
  void* entries_119_129[11];
  OrtStatus*(ORT_API_CALL* AddSessionConfigEntry)(OrtSessionOptions*, const char* key, const char* value);
};

struct OrtApiBase {
  const OrtApi*(ORT_API_CALL* GetApi)(uint32_t version);
  const char*(ORT_API_CALL* GetVersionString)();
};

extern "C" const OrtApiBase* ORT_API_CALL OrtGetApiBase();

static_assert(offsetof(OrtApi, Run) == 9 * sizeof(void*));
static_assert(offsetof(OrtApi, RegisterCustomOpsLibrary) == 29 * sizeof(void*));
static_assert(offsetof(OrtApi, CreateTensorWithDataAsOrtValue) == 49 * sizeof(void*));
static_assert(offsetof(OrtApi, GetTensorElementType) == 60 * sizeof(void*));
static_assert(offsetof(OrtApi, GetAllocatorWithDefaultOptions) == 78 * sizeof(void*));
static_assert(offsetof(OrtApi, ReleaseStatus) == 93 * sizeof(void*));
static_assert(offsetof(OrtApi, ReleaseSessionOptions) == 100 * sizeof(void*));
static_assert(offsetof(OrtApi, ModelMetadataGetVersion) == 117 * sizeof(void*));
static_assert(offsetof(OrtApi, AddSessionConfigEntry) == 130 * sizeof(void*));
#endif
