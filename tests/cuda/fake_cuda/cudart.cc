// The entry points that move data and enqueue work. Their declarations are of CUDA 13's binary interface.
#include "cudart.h"

#include <cxxabi.h>
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>

using namespace fake_cuda;

namespace {

struct Dim3 {
  unsigned x, y, z;
};
struct LaunchConfig {
  Dim3 grid, block;
  size_t shared_bytes;
  cudaStream_t stream;
};
thread_local LaunchConfig left_for_launch;

// Kernels of others by the address of their host function.
std::map<const void*, std::string>& kernel_names() {
  static auto* names = new std::map<const void*, std::string>;
  return *names;
}

const char* word(Place place) {
  return place == Place::device ? "device" : place == Place::pinned ? "pinned" : "pageable";
}

cudaError_t launch_named(const std::string& name, cudaStream_t stream, Work work) {
  const Guard guard(device().lock);
  if (stream && device().stream(stream).device() != current_device) {
    device().note("error a launch on the stream of another device");
    return cudaErrorInvalidValue;
  }
  const bool captured = device().stream(stream).capture != nullptr;
  if (captured) ++device().stream(stream).capture->kernels;
  device().note((captured ? "captured " : "launch ") + name + device().place_of(stream));
  return device().enqueue(stream, std::move(work));
}

cudaError_t launch_foreign(const void* kernel, cudaStream_t stream) {
  const Guard guard(device().lock);
  const auto known = kernel_names().find(kernel);
  const std::string mangled = known == kernel_names().end() ? "?" : known->second;
  char* readable = abi::__cxa_demangle(mangled.c_str(), nullptr, nullptr, nullptr);
  const std::string name = readable ? readable : mangled;
  std::free(readable);
  return launch_named("foreign " + name.substr(0, 160), stream, [] {});
}

cudaError_t take(void** memory, size_t bytes, Place place) {
  const Guard guard(device().lock);
  device().note(std::string("allocate ") + word(place) + ' ' + std::to_string(bytes));
  if (device().closed()) return device().refuse("an allocation");
  *memory = device().memory.take(bytes ? bytes : 1, place, current_device);
  return *memory ? cudaSuccess : (last_error() = cudaErrorMemoryAllocation);
}

cudaError_t give(void* memory) {
  const Guard guard(device().lock);
  if (!memory) return cudaSuccess;
  if (device().closed()) return device().refuse("a free");
  device().run_all();
  device().note("free");
  return device().memory.give(memory) ? cudaSuccess : cudaErrorInvalidValue;
}

std::string name_of(cudaEvent_t event) { return std::to_string(reinterpret_cast<uintptr_t>(event)); }

// A copy's source as it is now, where CUDA reads it before it returns.
Work copy_of(void* to, const void* from, size_t bytes, bool keep) {
  if (!keep) return [=] { std::memcpy(to, from, bytes); };
  const char* source = static_cast<const char*>(from);
  return [to, kept = std::vector<char>(source, source + bytes)] { std::memcpy(to, kept.data(), kept.size()); };
}

}  // namespace

void emulator::enqueue(const Launch& launch, std::function<void()> body, cudaStream_t stream) {
  Dl_info library{};
  dladdr(launch.kernel, &library);
  char name[120];
  std::snprintf(name, sizeof name, "own %zx %u %u %u %d %zu",
                reinterpret_cast<uintptr_t>(launch.kernel) - reinterpret_cast<uintptr_t>(library.dli_fbase),
                launch.grid[0], launch.grid[1], launch.grid[2], launch.threads, launch.shared_bytes);
  launch_named(name, stream, std::move(body));
}
bool emulator::at_once() { return false; }
const char* emulator::provider() { return "CUDAExecutionProvider"; }

FAKE_CUDA_API const char* fake_cuda_take_events() {
  static std::string taken;
  const Guard guard(device().lock);
  taken.swap(device().events);
  device().events.clear();
  return taken.c_str();
}
FAKE_CUDA_API size_t fake_cuda_allocated() {
  const Guard guard(device().lock);
  return device().memory.allocated();
}
FAKE_CUDA_API size_t fake_cuda_allocated_on(int number) {
  const Guard guard(device().lock);
  return device().memory.allocated(number);
}
FAKE_CUDA_API size_t fake_cuda_pinned() {
  const Guard guard(device().lock);
  return device().memory.pinned();
}
FAKE_CUDA_API size_t fake_cuda_take_most() {
  const Guard guard(device().lock);
  const size_t most = device().memory.most();
  device().memory.forget_most();
  return most;
}
FAKE_CUDA_API void fake_cuda_limit(int number, size_t bytes) {
  const Guard guard(device().lock);
  device().memory.limit(number, bytes);
}

// Memory.

FAKE_CUDA_API cudaError_t cudaMalloc(void** memory, size_t bytes) { return take(memory, bytes, Place::device); }
FAKE_CUDA_API cudaError_t cudaMallocHost(void** memory, size_t bytes) { return take(memory, bytes, Place::pinned); }
FAKE_CUDA_API cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned) {
  return take(memory, bytes, Place::pinned);
}
FAKE_CUDA_API cudaError_t cudaMallocFromPoolAsync(void**, size_t, void*, cudaStream_t) { return cudaErrorNotSupported; }
FAKE_CUDA_API cudaError_t cudaFree(void* memory) { return give(memory); }
FAKE_CUDA_API cudaError_t cudaFreeHost(void* memory) { return give(memory); }
FAKE_CUDA_API cudaError_t cudaFreeAsync(void*, cudaStream_t) { return cudaErrorNotSupported; }
FAKE_CUDA_API cudaError_t cudaMemGetInfo(size_t* left, size_t* total) {
  *total = kDeviceBytes;
  const Guard guard(device().lock);
  *left = device().memory.left(current_device);
  return cudaSuccess;
}

// Copies.

FAKE_CUDA_API cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, int, cudaStream_t stream) {
  const Guard guard(device().lock);
  if (!bytes) return cudaSuccess;
  const Place source = device().memory.place_of(from), target = device().memory.place_of(to);
  const bool captured = device().stream(stream).capture != nullptr;
  device().note(std::string(captured ? "captured copy " : "copy ") + word(source) + ' ' + word(target) + ' ' +
                std::to_string(bytes) + device().place_of(stream));
  const int reads = device().memory.device_of(from), writes = device().memory.device_of(to);
  if (reads >= 0 && writes >= 0 && reads != writes && !device().reached.count({writes, reads}))
    device().note("error a copy between devices that do not reach each other");
  if (device().dry && target != Place::device) std::memset(to, 0, bytes);  // results that nothing computed
  const cudaError_t error =
      device().enqueue(stream, copy_of(to, from, bytes, source == Place::pageable && !captured && !device().dry));
  // CUDA returns from a copy to pageable memory when it is done.
  if (error || captured || target != Place::pageable) return error;
  return device().run(device().stream(stream));
}
FAKE_CUDA_API cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, int kind) {
  const Guard guard(device().lock);
  if (const cudaError_t error = cudaMemcpyAsync(to, from, bytes, kind, nullptr)) return error;
  device().note("wait default stream");
  return device().run(device().legacy);
}
FAKE_CUDA_API cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                                            size_t width, size_t height, int, cudaStream_t stream) {
  const Guard guard(device().lock);
  device().note("copy rows");
  return device().enqueue(stream, [=] {
    for (size_t i = 0; i < height; ++i)
      std::memcpy(static_cast<char*>(to) + i * to_pitch, static_cast<const char*>(from) + i * from_pitch, width);
  });
}
FAKE_CUDA_API cudaError_t cudaMemsetAsync(void* memory, int value, size_t bytes, cudaStream_t stream) {
  const Guard guard(device().lock);
  device().note("fill " + std::to_string(bytes) + (stream ? "" : " on the default stream"));
  return device().enqueue(stream, [=] { std::memset(memory, value, bytes); });
}
FAKE_CUDA_API cudaError_t cudaMemset(void* memory, int value, size_t bytes) {
  return cudaMemsetAsync(memory, value, bytes, nullptr);
}
FAKE_CUDA_API cudaError_t cudaMemcpyFromSymbol(void*, const void*, size_t, size_t, int) {
  return cudaErrorNotSupported;
}

// Launches.

FAKE_CUDA_API cudaError_t cudaLaunchKernel(const void* kernel, Dim3, Dim3, void**, size_t, cudaStream_t stream) {
  return launch_foreign(kernel, stream);
}
FAKE_CUDA_API cudaError_t __cudaLaunchKernel(void* kernel, Dim3, Dim3, void**, size_t, cudaStream_t stream) {
  return launch_foreign(kernel, stream);
}
// kernel<<<...>>> leaves its configuration for the function that launches it.
FAKE_CUDA_API unsigned __cudaPushCallConfiguration(Dim3 grid, Dim3 block, size_t shared_bytes, cudaStream_t stream) {
  left_for_launch = {grid, block, shared_bytes, stream};
  return 0;
}
FAKE_CUDA_API cudaError_t __cudaPopCallConfiguration(Dim3* grid, Dim3* block, size_t* shared_bytes,
                                                     cudaStream_t* stream) {
  *grid = left_for_launch.grid, *block = left_for_launch.block;
  *shared_bytes = left_for_launch.shared_bytes, *stream = left_for_launch.stream;
  return cudaSuccess;
}
FAKE_CUDA_API cudaError_t cudaLaunchCooperativeKernel(const void* kernel, Dim3, Dim3, void**, size_t,
                                                      cudaStream_t stream) {
  return launch_foreign(kernel, stream);
}
FAKE_CUDA_API cudaError_t cudaLaunchKernelExC(const LaunchConfig* config, const void* kernel, void**) {
  return launch_foreign(kernel, config->stream);
}
FAKE_CUDA_API cudaError_t cudaLaunchHostFunc(cudaStream_t stream, void (*function)(void*), void* data) {
  const Guard guard(device().lock);
  device().note(device().stream(stream).capture ? "captured host function" : "host function");
  return device().enqueue(stream, [=] { function(data); });
}
FAKE_CUDA_API cudaError_t __cudaGetKernel(void** kernel, const void* host) {
  *kernel = const_cast<void*>(host);
  return cudaSuccess;
}
FAKE_CUDA_API void __cudaRegisterFunction(void**, const char* host, char*, const char* name, int, void*, void*, void*,
                                          void*, int*) {
  const Guard guard(device().lock);
  kernel_names()[host] = name;
}

// Streams and events.

FAKE_CUDA_API cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  const Guard guard(device().lock);
  device().note("make stream");
  device().streams.push_back(std::make_unique<Stream>(flags != cudaStreamNonBlocking, current_device));
  *stream = device().streams.back().get();
  return cudaSuccess;
}
FAKE_CUDA_API cudaError_t cudaStreamCreate(cudaStream_t* stream) { return cudaStreamCreateWithFlags(stream, 0); }
FAKE_CUDA_API cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }  // events may still name it
FAKE_CUDA_API cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  const Guard guard(device().lock);
  device().note("wait stream");
  return device().run(device().stream(stream));
}
FAKE_CUDA_API cudaError_t cudaDeviceSynchronize() {
  const Guard guard(device().lock);
  device().note("wait device");
  if (device().capturing()) return device().refuse("a wait for the device");
  device().run_all();
  return cudaSuccess;
}
FAKE_CUDA_API cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = new CUevent_st{current_device};
  return cudaSuccess;
}
FAKE_CUDA_API cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, 0); }
FAKE_CUDA_API cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
FAKE_CUDA_API cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const Guard guard(device().lock);
  if (device().stream(stream).capture) return device().refuse("an event");
  if (stream && device().stream(stream).device() != event->device) {
    device().note("error an event of another device than its stream's");
    return cudaErrorInvalidValue;
  }
  device().note("record " + name_of(event) + device().place_of(stream));
  event->stream = &device().stream(stream), event->number = device().stream(stream).enqueued();
  return cudaSuccess;
}
FAKE_CUDA_API cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned) {
  return cudaEventRecord(event, stream);
}
FAKE_CUDA_API cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  const Guard guard(device().lock);
  device().note("wait event on " + name_of(event));
  device().memory.open(true);
  if (event->stream) event->stream->run_until(event->number);
  device().memory.open(false);
  return cudaSuccess;
}
FAKE_CUDA_API cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t, cudaEvent_t) {
  *milliseconds = 1;
  return cudaSuccess;
}
FAKE_CUDA_API cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  const Guard guard(device().lock);
  if (!event->stream) return cudaSuccess;
  device().note("hold stream for " + name_of(event) + device().place_of(stream));
  return device().enqueue(stream, [on = *event] { on.stream->run_until(on.number); });
}
