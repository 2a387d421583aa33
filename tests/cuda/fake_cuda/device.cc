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
  return cudaErrorStreamCaptureUnsupported;
}

cudaError_t Device::enqueue(cudaStream_t handle, Work work) {
  Stream& own = stream(handle);
  if (own.capture) {
    own.capture->work.push_back(std::move(work));
    return cudaSuccess;
  }
  if (dry) work = [] {};
  const bool is_legacy = &own == &legacy;
  if (is_legacy && capturing()) return refuse("work on the default stream");
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

cudaError_t Device::run_all() {
  if (capturing()) return refuse("a wait for the device");
  memory.open(true);
  for (const auto& stream : streams) stream->run();
  legacy.run();
  memory.open(false);
  return cudaSuccess;
}

}  // namespace fake_cuda
