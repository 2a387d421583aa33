// The state of the fake CUDA, and what its entry points share.
#pragma once

#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <vector>

#include "fake_cuda.h"
#include "memory.h"
#include "stream.h"

namespace fake_cuda {

struct Device {
  // With TRIGRAPH_FAKE_CUDA=dry nothing runs, and a model of any size fits: what is asked of the device is noted.
  const bool dry = is_dry();
  std::recursive_mutex lock;
  Memory memory{dry};
  Stream legacy{true};
  std::vector<std::unique_ptr<Stream>> streams;
  std::string events;

  void note(const std::string& event) { events += event + '\n'; }
  bool capturing() const;
  Stream& stream(cudaStream_t handle) { return handle ? *static_cast<Stream*>(handle) : legacy; }
  // Puts work off, or into the graph that is captured.
  cudaError_t enqueue(cudaStream_t handle, Work work);
  // Runs a stream, or all of them.
  cudaError_t run(Stream& stream);
  cudaError_t run_all();
  // Something that CUDA forbids while a stream is captured.
  cudaError_t refuse(const char* what);

 private:
  static bool is_dry() {
    const char* mode = std::getenv("TRIGRAPH_FAKE_CUDA");
    return mode && !std::strcmp(mode, "dry");
  }
};

// One for the process, which outlives all who may still call at its end.
Device& device();

using Guard = std::lock_guard<std::recursive_mutex>;

}  // namespace fake_cuda
