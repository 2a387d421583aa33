#include "cudart.h"

namespace fake_cuda {

Device& device() {
  static auto* device = new Device;
  return *device;
}

bool Device::capturing() const {
  for (const auto& stream : streams)
    if (stream->capture) return true;
  return false;
}

cudaError_t Device::refuse(const char* what) {
  note(std::string("error ") + what + " while a stream is captured");
  for (const auto& stream : streams)
    if (stream->capture) stream->capture->broken = true;
  return cudaErrorStreamCaptureUnsupported;
}

cudaError_t Device::enqueue(cudaStream_t handle, Work work) {
  Stream& own = stream(handle);
  if (own.capture) {
    if (own.capture->broken) return cudaErrorStreamCaptureInvalidated;
    own.capture->work.push_back(std::move(work));
    return cudaSuccess;
  }
  if (dry) work = [] {};
  const bool is_legacy = &own == &legacy;
  for (const auto& other : streams)
    if (is_legacy && other->capture && other->blocking()) return refuse("work on the default stream");
  const auto wait_for = [&](Stream& other) {
    own.add([&other, number = other.enqueued()] { other.run_until(number); });
  };
  if (is_legacy) {
    for (const auto& other : streams)
      if (other->blocking()) wait_for(*other);
  } else if (own.blocking()) {
    wait_for(legacy);
  }
  own.add(std::move(work));
  return cudaSuccess;
}

cudaError_t Device::run(Stream& stream) {
  if (stream.capture) return refuse("a wait for its stream");
  memory.open(true);
  stream.run();
  memory.open(false);
  return cudaSuccess;
}

std::string Device::place_of(cudaStream_t handle) const {
  size_t number = 0;
  while (number < streams.size() && streams[number].get() != handle) ++number;
  return handle ? " on " + std::to_string(number) : " on the default stream";
}

void Device::run_all() {
  memory.open(true);
  for (const auto& stream : streams) stream->run();
  legacy.run();
  memory.open(false);
}

}  // namespace fake_cuda
