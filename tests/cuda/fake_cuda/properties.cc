// The entry points that say what the device is, and those that register code. It calls itself an H200.
#include <cstring>
#include <utility>

#include "cudart.h"

using namespace fake_cuda;

namespace {

constexpr int kMajor = 9, kMinor = 0, kMaxThreads = 1024, kWarp = 32;
constexpr int kSharedBytes = 48 << 10, kMostSharedBytes = 227 << 10, kRegisters = 64 << 10;

// A number that a test may set.
int setting(const char* name, int otherwise) {
  const char* text = std::getenv(name);
  return text ? std::atoi(text) : otherwise;
}
int multiprocessors() {
  static const int count = setting("TRIGRAPH_EMULATED_MULTIPROCESSORS", 132);
  return count;
}
int devices() {
  static const int count = setting("TRIGRAPH_FAKE_DEVICES", 1);
  return count;
}

// cudaDeviceProp of CUDA 13, as far as anyone asks.
struct Properties {
  char name[256];
  char ids[32];
  size_t memory_bytes, shared_bytes;
  int registers, warp;
  size_t pitch;
  int max_threads, max_block[3], max_grid[3];
  size_t constant_bytes;
  int major, minor;
  size_t texture[2];
  int multiprocessors;
  int textures[52];
  int l2_bytes, l2_persisting, threads_of_multiprocessor;
  int caching[3];
  size_t shared_of_multiprocessor;
  int registers_of_multiprocessor;
  int features[9];
  size_t most_shared_bytes;
  int others[82];
};
static_assert(sizeof(Properties) == 1008 && offsetof(Properties, multiprocessors) == 384 &&
              offsetof(Properties, l2_bytes) == 596 && offsetof(Properties, shared_of_multiprocessor) == 624 &&
              offsetof(Properties, most_shared_bytes) == 672);

struct FunctionAttributes {
  size_t shared_bytes, constant_bytes, local_bytes;
  int max_threads, registers, ptx, binary;
  int others[26];
};
static_assert(sizeof(FunctionAttributes) == 144);

}  // namespace

FAKE_CUDA_API cudaError_t cudaGetDeviceCount(int* count) {
  *count = devices();
  return cudaSuccess;
}
FAKE_CUDA_API cudaError_t cudaGetDevice(int* device) {
  *device = current_device;
  return cudaSuccess;
}
FAKE_CUDA_API cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= devices()) return cudaErrorInvalidValue;
  current_device = device;
  return cudaSuccess;
}
FAKE_CUDA_API cudaError_t cudaDriverGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}
FAKE_CUDA_API cudaError_t cudaRuntimeGetVersion(int* version) { return cudaDriverGetVersion(version); }
FAKE_CUDA_API cudaError_t cudaGetDeviceProperties(Properties* out, int) {
  *out = {};
  std::strcpy(out->name, "a GPU that is not there");
  out->memory_bytes = kDeviceBytes;
  out->shared_bytes = kSharedBytes, out->most_shared_bytes = kMostSharedBytes;
  out->shared_of_multiprocessor = kMostSharedBytes + 1024;
  out->registers = out->registers_of_multiprocessor = kRegisters;
  out->warp = kWarp, out->max_threads = kMaxThreads, out->threads_of_multiprocessor = 2 * kMaxThreads;
  out->max_block[0] = out->max_block[1] = kMaxThreads, out->max_block[2] = 64;
  out->max_grid[0] = 2147483647, out->max_grid[1] = out->max_grid[2] = 65535;
  out->major = kMajor, out->minor = kMinor, out->multiprocessors = ::multiprocessors();
  out->l2_bytes = 50 << 20;
  return cudaSuccess;
}
FAKE_CUDA_API cudaError_t cudaDeviceGetAttribute(int* value, int attribute, int number) {
  enum { threads = 1, shared = 8, warp = 10, processors = 16, clock = 36, bus = 37, major = 75, minor = 76 };
  enum { all_shared = 81, most_shared = 97 };
  switch (attribute) {
    case threads:
      *value = kMaxThreads;
      break;
    case shared:
      *value = kSharedBytes;
      break;
    case warp:
      *value = kWarp;
      break;
    case processors:
      *value = multiprocessors();
      break;
    case clock: {
      const Guard guard(device().lock);
      const auto own = device().clocks.find(number);
      *value = own == device().clocks.end() ? 1000000 : own->second;
      break;
    }
    case bus:
      *value = 384;
      break;
    case major:
      *value = kMajor;
      break;
    case minor:
      *value = kMinor;
      break;
    case all_shared:
      *value = kMostSharedBytes + 1024;
      break;
    case most_shared:
      *value = kMostSharedBytes;
      break;
    default:
      *value = 0;
  }
  return cudaSuccess;
}
FAKE_CUDA_API cudaError_t cudaDeviceCanAccessPeer(int* can, int number, int other) {
  const Guard guard(device().lock);
  *can = device().peers && number != other;
  return cudaSuccess;
}
FAKE_CUDA_API cudaError_t cudaDeviceEnablePeerAccess(int other, unsigned) {
  const Guard guard(device().lock);
  if (!device().peers) return cudaErrorInvalidValue;
  return device().reached.emplace(current_device, other).second ? cudaSuccess : cudaErrorPeerAccessAlreadyEnabled;
}
FAKE_CUDA_API void fake_cuda_clock(int number, int kilohertz) {
  const Guard guard(device().lock);
  device().clocks[number] = kilohertz;
}
FAKE_CUDA_API void fake_cuda_peers(int peers) {
  const Guard guard(device().lock);
  device().peers = peers;
  device().reached.clear();
}
FAKE_CUDA_API cudaError_t cudaFuncGetAttributes(FunctionAttributes* out, const void*) {
  *out = {};
  out->max_threads = kMaxThreads, out->registers = 64, out->ptx = out->binary = 10 * kMajor + kMinor;
  return cudaSuccess;
}
FAKE_CUDA_API cudaError_t cudaFuncSetAttribute(const void*, int, int) { return cudaSuccess; }
FAKE_CUDA_API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void*, int, size_t,
                                                                                 unsigned) {
  *blocks = 2;
  return cudaSuccess;
}
FAKE_CUDA_API const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorMemoryAllocation ? "out of memory" : "refused by the fake device";
}
FAKE_CUDA_API const char* cudaGetErrorName(cudaError_t error) { return cudaGetErrorString(error); }
FAKE_CUDA_API cudaError_t cudaGetLastError() { return std::exchange(last_error(), cudaSuccess); }
FAKE_CUDA_API cudaError_t cudaPeekAtLastError() { return last_error(); }
FAKE_CUDA_API cudaError_t cudaGetDriverEntryPointByVersion(const char*, void** function, unsigned, unsigned long long,
                                                           int* status) {
  *function = nullptr;
  if (status) *status = 1;  // not found
  return cudaSuccess;
}

// Code, which is not looked at.

FAKE_CUDA_API void** __cudaRegisterFatBinary(void*) {
  static void* handle[1];
  return handle;
}
FAKE_CUDA_API void __cudaRegisterFatBinaryEnd(void**) {}
FAKE_CUDA_API void __cudaUnregisterFatBinary(void**) {}
FAKE_CUDA_API void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}
