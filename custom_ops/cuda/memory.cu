// For hosts in other languages than CUDA's: a stream to give to ONNX Runtime, device and pinned memory, copies between
// all of them, and times. What can fail returns nullptr, or CUDA's own words, which are "" for a success.
#include <cstring>

#include "platform.cuh"

using trigraph::TRIGRAPH_ISA::BesideCaptures;

namespace {

// A failure is told here alone: whoever launches next, ONNX Runtime say, would take CUDA's last error for its own.
void* failed() {
  (void)cudaGetLastError();
  return nullptr;
}
const char* text_of(cudaError_t status) {
  if (status == cudaSuccess) return "";
  failed();
  return cudaGetErrorString(status);
}

}  // namespace

extern "C" {

// How many devices there are; why none can be used is in *problem.
TRIGRAPH_EXPORT int trigraph_devices(const char** problem) {
  int count = 0;
  *problem = text_of(cudaGetDeviceCount(&count));
  return count;
}

// The device that the calling thread's next calls are about. What else the thread allocates and frees, ONNX Runtime's
// memory too, from now on ends no capture of another thread.
TRIGRAPH_EXPORT const char* trigraph_use_device(int device) {
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  (void)cudaThreadExchangeStreamCaptureMode(&mode);
  return text_of(cudaSetDevice(device));
}

// Free and all bytes of the current device's memory.
TRIGRAPH_EXPORT void trigraph_device_memory(size_t* free, size_t* total) {
  *free = *total = 0;
  (void)cudaMemGetInfo(free, total);
}

// Bytes a second of a device's memory, by its clock and the width of its bus: to compare devices that nobody uses yet.
TRIGRAPH_EXPORT double trigraph_memory_rate(int device) {
  int kilohertz = 0, bits = 0;
  (void)cudaDeviceGetAttribute(&kilohertz, cudaDevAttrMemoryClockRate, device);
  (void)cudaDeviceGetAttribute(&bits, cudaDevAttrGlobalMemoryBusWidth, device);
  return 2e3 * kilohertz * bits / 8;
}

// Whether copies to the current device from another one's memory need not go through the host's. From now on they
// don't.
TRIGRAPH_EXPORT int trigraph_reaches(int other) {
  int device = 0, can = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return failed() != nullptr;
  if (device == other) return 1;
  if (cudaDeviceCanAccessPeer(&can, device, other) != cudaSuccess || !can) return failed() != nullptr;
  const cudaError_t status = cudaDeviceEnablePeerAccess(other, 0);
  (void)cudaGetLastError();
  return status == cudaSuccess || status == cudaErrorPeerAccessAlreadyEnabled;
}

// A stream that does not wait for the default one. It lives as long as the process.
TRIGRAPH_EXPORT void* trigraph_make_stream() {
  cudaStream_t stream = nullptr;
  return cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess ? stream : nullptr;
}

// Memory on the device that is zeroed on a stream, or zeroed memory on the host where copies need no staging.
TRIGRAPH_EXPORT void* trigraph_allocate(size_t bytes, int pinned, void* stream) {
  const BesideCaptures beside;
  void* memory = nullptr;
  if (pinned) {
    if (cudaHostAlloc(&memory, bytes, cudaHostAllocPortable) != cudaSuccess) return failed();
    std::memset(memory, 0, bytes);
    return memory;
  }
  if (cudaMalloc(&memory, bytes) != cudaSuccess) return failed();
  return cudaMemsetAsync(memory, 0, bytes, static_cast<cudaStream_t>(stream)) == cudaSuccess ? memory : nullptr;
}

TRIGRAPH_EXPORT void trigraph_free(void* memory, int pinned) {
  const BesideCaptures beside;
  if (pinned)
    (void)cudaFreeHost(memory);
  else
    (void)cudaFree(memory);
}

// Lets copies read memory of the host without staging, for all devices: whole pages, which stay in memory. Whether the
// driver does that; it may not for mapped files.
TRIGRAPH_EXPORT int trigraph_register(void* memory, size_t bytes) {
  const BesideCaptures beside;
  if (cudaHostRegister(memory, bytes, cudaHostRegisterPortable | cudaHostRegisterReadOnly) == cudaSuccess) return 1;
  return failed() != nullptr;
}

TRIGRAPH_EXPORT void trigraph_unregister(void* memory) {
  const BesideCaptures beside;
  (void)cudaHostUnregister(memory);
}

// Enqueues a copy; what lies where is told by the addresses.
TRIGRAPH_EXPORT const char* trigraph_copy(void* to, const void* from, size_t bytes, void* stream) {
  return text_of(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, static_cast<cudaStream_t>(stream)));
}

// Waits for everything on a stream.
TRIGRAPH_EXPORT const char* trigraph_wait(void* stream) {
  return text_of(cudaStreamSynchronize(static_cast<cudaStream_t>(stream)));
}

// A point of time on a stream, to be recorded as often as one likes.
TRIGRAPH_EXPORT void* trigraph_make_event() {
  cudaEvent_t event = nullptr;
  return cudaEventCreate(&event) == cudaSuccess ? event : nullptr;
}

TRIGRAPH_EXPORT void trigraph_free_event(void* event) { (void)cudaEventDestroy(static_cast<cudaEvent_t>(event)); }

TRIGRAPH_EXPORT const char* trigraph_record_event(void* event, void* stream) {
  return text_of(cudaEventRecord(static_cast<cudaEvent_t>(event), static_cast<cudaStream_t>(stream)));
}

TRIGRAPH_EXPORT const char* trigraph_wait_for_event(void* event) {
  return text_of(cudaEventSynchronize(static_cast<cudaEvent_t>(event)));
}

// What is enqueued on a stream from now on waits for an event as it was recorded last, on any device.
TRIGRAPH_EXPORT const char* trigraph_hold_for_event(void* event, void* stream) {
  return text_of(cudaStreamWaitEvent(static_cast<cudaStream_t>(stream), static_cast<cudaEvent_t>(event), 0));
}

// Seconds between two events that are past; 0 where they are not.
TRIGRAPH_EXPORT double trigraph_seconds_between(void* from, void* to) {
  float milliseconds = 0;
  const cudaError_t status =
      cudaEventElapsedTime(&milliseconds, static_cast<cudaEvent_t>(from), static_cast<cudaEvent_t>(to));
  return status == cudaSuccess ? milliseconds / 1e3 : (failed(), 0);
}

}  // extern "C"
