// A GPU that is not there, in the place of libcudart.so.13, so that ONNX Runtime's real CUDA provider runs on any
// machine. Our kernels run in the emulator; those of others are counted, and do nothing.
//
// Work is put off as long as CUDA allows: a stream runs when something waits for it, in its own order and in no other.
// So a result that is read too early, a copy from memory that was changed since, and work on another stream that
// nothing orders come out wrong here, every time. Device memory cannot be reached by the host while no work runs.
//
// Here: its state, and what its entry points share.
#pragma once

#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "../emulator/host_calls.h"
#include "memory.h"
#include "stream.h"

#define FAKE_CUDA_API HOST_C_CALL

// What happened since the last call, an event a line; the text stays until the next call.
FAKE_CUDA_API const char* fake_cuda_take_events();
// Bytes that are allocated on all devices, and on one.
FAKE_CUDA_API size_t fake_cuda_allocated();
FAKE_CUDA_API size_t fake_cuda_allocated_on(int device);
// Bytes of pinned memory that are allocated, without what is registered.
FAKE_CUDA_API size_t fake_cuda_pinned();
// The most bytes that were allocated on all devices since the last call.
FAKE_CUDA_API size_t fake_cuda_take_most();
// Allocations that would make more than so many bytes of a device fail, as if others had the rest.
FAKE_CUDA_API void fake_cuda_limit(int device, size_t bytes);
// The memory clock of a device.
FAKE_CUDA_API void fake_cuda_clock(int device, int kilohertz);
// Whether devices can reach each other's memory.
FAKE_CUDA_API void fake_cuda_peers(int peers);
// From now on `called` runs in the midst of each capture, in its thread; nullptr: nothing does.
FAKE_CUDA_API void fake_cuda_in_captures(void (*called)());
FAKE_CUDA_API cudaError_t cudaMemset(void* memory, int value, size_t bytes);

namespace fake_cuda {

// Of a thread: the device that it uses, and whether it may do what ends captures of others.
inline thread_local int current_device = 0;
inline thread_local cudaStreamCaptureMode capture_mode = cudaStreamCaptureModeGlobal;

struct Device {
  // With TRIGRAPH_FAKE_CUDA=dry nothing runs, and a model of any size fits: what is asked of the device is noted.
  const bool dry = is_dry();
  std::recursive_mutex lock;
  Memory memory{dry};
  Stream legacy{true};
  std::vector<std::unique_ptr<Stream>> streams;
  std::string events;
  std::map<int, int> clocks;              // by device, kHz
  bool peers = false;                     // whether devices can reach each other's memory
  std::set<std::pair<int, int>> reached;  // by whom whose

  void note(const std::string& event) { events += event + '\n'; }
  bool capturing() const;
  // Whether this thread may not allocate or free: a stream is captured.
  bool closed() const { return capture_mode != cudaStreamCaptureModeRelaxed && capturing(); }
  Stream& stream(cudaStream_t handle) { return handle ? *static_cast<Stream*>(handle) : legacy; }
  // Puts work off, or into the graph that is captured.
  cudaError_t enqueue(cudaStream_t handle, Work work);
  // Runs a stream, or all of them that are not captured.
  cudaError_t run(Stream& stream);
  // What notes say of a stream: its number among those that were made.
  std::string place_of(cudaStream_t handle) const;
  void run_all();
  // Something that CUDA forbids while a stream is captured: it fails, and the capture with it.
  cudaError_t refuse(const char* what);

 private:
  static bool is_dry() {
    const char* mode = std::getenv("TRIGRAPH_FAKE_CUDA");
    return mode && !std::strcmp(mode, "dry");
  }
};

// One for the process, which outlives all who may still call at its end.
Device& device();
// Of the thread, as CUDA keeps it.
inline cudaError_t& last_error() {
  static thread_local cudaError_t error = cudaSuccess;
  return error;
}

using Guard = std::lock_guard<std::recursive_mutex>;

}  // namespace fake_cuda
