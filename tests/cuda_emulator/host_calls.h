// CUDA's functions for the host on a CPU alone: device memory is the host's, and a stream is no queue.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <cstring>

using cudaStream_t = void*;
enum cudaError_t { cudaSuccess = 0, cudaErrorMemoryAllocation = 2 };
enum { cudaMemcpyDeviceToDevice = 3, cudaMemcpyDefault = 4, cudaHostAllocMapped = 2, cudaHostAllocPortable = 1 };
enum { cudaStreamNonBlocking = 1 };
inline const char* cudaGetErrorString(cudaError_t) { return ""; }
inline cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, int, cudaStream_t) {
  std::memcpy(to, from, bytes);
  return cudaSuccess;
}
inline cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned) {
  return posix_memalign(memory, 64, bytes) ? cudaErrorMemoryAllocation : cudaSuccess;  // not a byte more
}
inline cudaError_t cudaMalloc(void** memory, size_t bytes) { return cudaHostAlloc(memory, bytes, 0); }
inline cudaError_t cudaMemsetAsync(void* memory, int value, size_t bytes, cudaStream_t) {
  std::memset(memory, value, bytes);
  return cudaSuccess;
}
inline cudaError_t cudaFree(void* memory) {
  std::free(memory);
  return cudaSuccess;
}
inline cudaError_t cudaFreeHost(void* memory) { return cudaFree(memory); }
inline cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
inline cudaError_t cudaMemGetInfo(size_t* left, size_t* total) {
  *left = *total = size_t{1} << 34;
  return cudaSuccess;
}
inline cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = nullptr;
  return cudaSuccess;
}
inline cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }

struct cudaEvent {
  std::chrono::steady_clock::time_point time;
};
using cudaEvent_t = cudaEvent*;
inline cudaError_t cudaEventCreate(cudaEvent_t* event) {
  *event = new cudaEvent;
  return cudaSuccess;
}
inline cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
inline cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t) {
  event->time = std::chrono::steady_clock::now();
  return cudaSuccess;
}
inline cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
inline cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to) {
  *milliseconds = std::chrono::duration<float, std::milli>(to->time - from->time).count();
  return cudaSuccess;
}
