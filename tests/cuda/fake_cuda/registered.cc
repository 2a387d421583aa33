// The entry points that make the host's own memory pinned, and that tell where memory is.
#include "cudart.h"

using namespace fake_cuda;

static_assert(sizeof(cudaPointerAttributes) == 88);

// Read-only memory needs the flag for it.
FAKE_CUDA_API cudaError_t cudaHostRegister(void* memory, size_t bytes, unsigned flags) {
  const Guard guard(device().lock);
  device().note("register " + std::to_string(bytes));
  if (device().closed()) return device().refuse("a registration");
  if (!(flags & cudaHostRegisterReadOnly) || !device().memory.pin(memory, bytes))
    return last_error() = cudaErrorInvalidValue;
  return cudaSuccess;
}
FAKE_CUDA_API cudaError_t cudaHostUnregister(void* memory) {
  const Guard guard(device().lock);
  device().note("unregister");
  return device().memory.unpin(memory) ? cudaSuccess : cudaErrorInvalidValue;
}

FAKE_CUDA_API cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* out, const void* address) {
  const Guard guard(device().lock);
  const Place place = device().memory.place_of(address);
  *out = {};
  out->type = place == Place::device   ? cudaMemoryTypeDevice
              : place == Place::pinned ? cudaMemoryTypeHost
                                       : cudaMemoryTypeUnregistered;
  out->devicePointer = out->hostPointer = const_cast<void*>(address);
  return cudaSuccess;
}
