// For hosts in other languages than CUDA's: a stream to give to ONNX Runtime, device and pinned memory, and copies
// between all of them. What can fail returns nullptr, or CUDA's own words, which are "" for a success.
#include <cstring>

#include "device.cuh"

namespace {

const char* text_of(cudaError_t status) { return status == cudaSuccess ? "" : cudaGetErrorString(status); }

}  // namespace

extern "C" {

// How many devices there are; why none can be used is in *problem.
TRIGRAPH_EXPORT int trigraph_devices(const char** problem) {
  int count = 0;
  *problem = text_of(cudaGetDeviceCount(&count));
  return count;
}

// Free and all bytes of the current device's memory.
TRIGRAPH_EXPORT void trigraph_device_memory(size_t* free, size_t* total) {
  *free = *total = 0;
  (void)cudaMemGetInfo(free, total);
}

// A stream that does not wait for the default one. It lives as long as the process.
TRIGRAPH_EXPORT void* trigraph_make_stream() {
  cudaStream_t stream = nullptr;
  return cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess ? stream : nullptr;
}

// Memory on the device that is zeroed on a stream, or zeroed memory on the host where copies need no staging.
TRIGRAPH_EXPORT void* trigraph_allocate(size_t bytes, int pinned, void* stream) {
  void* memory = nullptr;
  if (pinned) {
    if (cudaHostAlloc(&memory, bytes, cudaHostAllocPortable) != cudaSuccess) return nullptr;
    std::memset(memory, 0, bytes);
    return memory;
  }
  if (cudaMalloc(&memory, bytes) != cudaSuccess) return nullptr;
  return cudaMemsetAsync(memory, 0, bytes, static_cast<cudaStream_t>(stream)) == cudaSuccess ? memory : nullptr;
}

TRIGRAPH_EXPORT void trigraph_free(void* memory, int pinned) {
  if (pinned)
    (void)cudaFreeHost(memory);
  else
    (void)cudaFree(memory);
}

// Enqueues a copy; what lies where is told by the addresses.
TRIGRAPH_EXPORT const char* trigraph_copy(void* to, const void* from, size_t bytes, void* stream) {
  return text_of(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, static_cast<cudaStream_t>(stream)));
}

// Waits for everything on a stream.
TRIGRAPH_EXPORT const char* trigraph_wait(void* stream) {
  return text_of(cudaStreamSynchronize(static_cast<cudaStream_t>(stream)));
}

}  // extern "C"
