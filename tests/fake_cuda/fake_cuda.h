// A GPU that is not there, in the place of libcudart.so.13, so that ONNX Runtime's real CUDA provider runs on any
// machine. Our kernels run in the emulator; those of others are counted, and do nothing.
//
// Work is put off as long as CUDA allows: a stream runs when something waits for it, in its own order and in no other.
// So a result that is read too early, a copy from memory that was changed since, and work on another stream that
// nothing orders come out wrong here, every time. Device memory cannot be reached by the host while no work runs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

namespace fake_cuda {
struct Event;
}
using cudaStream_t = void*;
using cudaEvent_t = fake_cuda::Event*;
enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorNotSupported = 801,
  cudaErrorStreamCaptureUnsupported = 900,
};
enum { cudaMemcpyDeviceToDevice = 3, cudaMemcpyDefault = 4, cudaHostAllocMapped = 2, cudaHostAllocPortable = 1 };
enum { cudaStreamNonBlocking = 1 };

#define FAKE_CUDA_API extern "C" __attribute__((visibility("default")))

FAKE_CUDA_API const char* cudaGetErrorString(cudaError_t error);
FAKE_CUDA_API cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, int kind, cudaStream_t stream);
FAKE_CUDA_API cudaError_t cudaMemsetAsync(void* memory, int value, size_t bytes, cudaStream_t stream);
FAKE_CUDA_API cudaError_t cudaMemset(void* memory, int value, size_t bytes);
FAKE_CUDA_API cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned flags);
FAKE_CUDA_API cudaError_t cudaMalloc(void** memory, size_t bytes);
FAKE_CUDA_API cudaError_t cudaFree(void* memory);
FAKE_CUDA_API cudaError_t cudaFreeHost(void* memory);
FAKE_CUDA_API cudaError_t cudaGetDeviceCount(int* count);
FAKE_CUDA_API cudaError_t cudaMemGetInfo(size_t* left, size_t* total);
FAKE_CUDA_API cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags);
FAKE_CUDA_API cudaError_t cudaStreamSynchronize(cudaStream_t stream);
FAKE_CUDA_API cudaError_t cudaEventCreate(cudaEvent_t* event);
FAKE_CUDA_API cudaError_t cudaEventDestroy(cudaEvent_t event);
FAKE_CUDA_API cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
FAKE_CUDA_API cudaError_t cudaEventSynchronize(cudaEvent_t event);
FAKE_CUDA_API cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to);

namespace fake_cuda {

// Enqueues a kernel of ours; `kernel` is its address in its library.
__attribute__((visibility("default"))) void launch(const void* kernel, std::function<void()> body, cudaStream_t stream);

}  // namespace fake_cuda

// What happened since the last call, an event a line; the text stays until the next call.
FAKE_CUDA_API const char* fake_cuda_take_events();
// Bytes that are allocated on the device.
FAKE_CUDA_API size_t fake_cuda_allocated();
