// What the kernels' library asks of CUDA on the host: libcudart.so.13, which is either host_calls.cc beside the library
// (device memory is the host's, and a stream is no queue) or, where it is found first, the fake device
// (tests/cuda/fake_cuda).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

struct CUevent_st;
using cudaStream_t = void*;
using cudaEvent_t = CUevent_st*;
enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorPeerAccessAlreadyEnabled = 704,
  cudaErrorNotSupported = 801,
  cudaErrorStreamCaptureUnsupported = 900,
  cudaErrorStreamCaptureInvalidated = 901,
};
enum { cudaMemcpyDeviceToDevice = 3, cudaMemcpyDefault = 4, cudaHostAllocMapped = 2, cudaHostAllocPortable = 1 };
enum { cudaHostRegisterPortable = 1, cudaHostRegisterReadOnly = 8 };
enum { cudaMemoryTypeUnregistered, cudaMemoryTypeHost, cudaMemoryTypeDevice };
enum { cudaStreamNonBlocking = 1 };
enum { cudaDevAttrMultiProcessorCount = 16, cudaDevAttrMemoryClockRate = 36, cudaDevAttrGlobalMemoryBusWidth = 37 };
enum { cudaDevAttrComputeCapabilityMajor = 75, cudaDevAttrMaxSharedMemoryPerMultiprocessor = 81 };
enum cudaStreamCaptureMode {
  cudaStreamCaptureModeGlobal,
  cudaStreamCaptureModeThreadLocal,
  cudaStreamCaptureModeRelaxed
};
enum cudaStreamCaptureStatus {
  cudaStreamCaptureStatusNone,
  cudaStreamCaptureStatusActive,
  cudaStreamCaptureStatusInvalidated
};
struct cudaPointerAttributes {
  int type, device;
  void *devicePointer, *hostPointer;
  long reserved[8];
};

#define HOST_CALL __attribute__((visibility("default")))
#define HOST_C_CALL extern "C" HOST_CALL

HOST_C_CALL const char* cudaGetErrorString(cudaError_t error);
HOST_C_CALL cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, int kind, cudaStream_t stream);
HOST_C_CALL cudaError_t cudaMemsetAsync(void* memory, int value, size_t bytes, cudaStream_t stream);
HOST_C_CALL cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned flags);
HOST_C_CALL cudaError_t cudaMalloc(void** memory, size_t bytes);
HOST_C_CALL cudaError_t cudaFree(void* memory);
HOST_C_CALL cudaError_t cudaGetLastError();
HOST_C_CALL cudaError_t cudaFreeHost(void* memory);
HOST_C_CALL cudaError_t cudaHostRegister(void* memory, size_t bytes, unsigned flags);
HOST_C_CALL cudaError_t cudaHostUnregister(void* memory);
HOST_C_CALL cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* found, const void* address);
HOST_C_CALL cudaError_t cudaGetDeviceCount(int* count);
HOST_C_CALL cudaError_t cudaGetDevice(int* device);
HOST_C_CALL cudaError_t cudaSetDevice(int device);
HOST_C_CALL cudaError_t cudaDeviceGetAttribute(int* value, int attribute, int device);
HOST_C_CALL cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int other);
HOST_C_CALL cudaError_t cudaDeviceEnablePeerAccess(int other, unsigned flags);
HOST_C_CALL cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode);
HOST_C_CALL cudaError_t cudaMemGetInfo(size_t* left, size_t* total);
HOST_C_CALL cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags);
HOST_C_CALL cudaError_t cudaStreamDestroy(cudaStream_t stream);
HOST_C_CALL cudaError_t cudaLaunchHostFunc(cudaStream_t stream, void (*function)(void*), void* data);
HOST_C_CALL cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status);
HOST_C_CALL cudaError_t cudaStreamSynchronize(cudaStream_t stream);
HOST_C_CALL cudaError_t cudaEventCreate(cudaEvent_t* event);
HOST_C_CALL cudaError_t cudaEventDestroy(cudaEvent_t event);
HOST_C_CALL cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
HOST_C_CALL cudaError_t cudaEventSynchronize(cudaEvent_t event);
HOST_C_CALL cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags);
HOST_C_CALL cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to);

namespace emulator {

struct Launch {
  const void* kernel;  // its address in its library
  unsigned grid[3];
  int threads;
  size_t shared_bytes;
};

// Runs a kernel, or puts it off until its stream runs.
HOST_CALL void enqueue(const Launch& launch, std::function<void()> body, cudaStream_t stream);
// Whether a kernel has run when its launch returns, and the host can reach device memory.
HOST_CALL bool at_once();
// The execution provider whose nodes the kernels are.
HOST_CALL const char* provider();

}  // namespace emulator
