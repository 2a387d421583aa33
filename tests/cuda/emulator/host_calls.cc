// CUDA's functions for the host on a CPU alone: device memory is the host's, and a stream is no queue.
#include "host_calls.h"

#include <chrono>
#include <cstdlib>
#include <cstring>

const char* cudaGetErrorString(cudaError_t) { return ""; }
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, int, cudaStream_t) {
  std::memcpy(to, from, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* memory, int value, size_t bytes, cudaStream_t) {
  std::memset(memory, value, bytes);
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned) {
  return posix_memalign(memory, 64, bytes) ? cudaErrorMemoryAllocation : cudaSuccess;  // not a byte more
}
cudaError_t cudaMalloc(void** memory, size_t bytes) { return cudaHostAlloc(memory, bytes, 0); }
cudaError_t cudaFree(void* memory) {
  std::free(memory);
  return cudaSuccess;
}
cudaError_t cudaGetLastError() { return cudaSuccess; }
cudaError_t cudaFreeHost(void* memory) { return cudaFree(memory); }
cudaError_t cudaHostRegister(void*, size_t, unsigned) { return cudaErrorNotSupported; }
cudaError_t cudaHostUnregister(void*) { return cudaErrorNotSupported; }
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* found, const void*) {
  *found = {};
  return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) { return device ? cudaErrorInvalidValue : cudaSuccess; }
// An H100; a device with fewer multiprocessors, which a test asks for, has as much shared memory in each as the
// smallest.
cudaError_t cudaDeviceGetAttribute(int* value, int attribute, int) {
  const char* multiprocessors = std::getenv("TRIGRAPH_EMULATED_MULTIPROCESSORS");
  if (attribute == cudaDevAttrMaxSharedMemoryPerMultiprocessor)
    *value = (multiprocessors ? 100 : 228) << 10;
  else if (attribute == cudaDevAttrComputeCapabilityMajor)
    *value = 9;
  else
    *value = multiprocessors ? std::atoi(multiprocessors) : 132;
  return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) {
  *can = 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) { return cudaErrorNotSupported; }
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) { return cudaSuccess; }
cudaError_t cudaMemGetInfo(size_t* left, size_t* total) {
  *left = *total = size_t{1} << 34;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = nullptr;
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaLaunchHostFunc(cudaStream_t, void (*function)(void*), void* data) {
  function(data);
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  *status = cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }

struct CUevent_st {
  std::chrono::steady_clock::time_point time;
};
cudaError_t cudaEventCreate(cudaEvent_t* event) {
  *event = new CUevent_st;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t) {
  event->time = std::chrono::steady_clock::now();
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) { return cudaSuccess; }
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to) {
  *milliseconds = std::chrono::duration<float, std::milli>(to->time - from->time).count();
  return cudaSuccess;
}

namespace emulator {

void enqueue(const Launch&, std::function<void()> body, cudaStream_t) { body(); }
bool at_once() { return true; }
const char* provider() { return "CPUExecutionProvider"; }

}  // namespace emulator
