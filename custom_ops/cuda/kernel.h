// The host's half of a CUDA kernel: its stream, its scratch memory, and what the device found wrong with an input.
#pragma once

#include <cstdlib>

#include "device_error.cuh"
#include "platform.cuh"

namespace trigraph::TRIGRAPH_ISA {

// Device memory of one call, from ONNX Runtime's arena. Given back at the end of the call, while kernels that use it
// are still enqueued: whoever gets it next enqueues behind them. With TRIGRAPH_SEPARATE_SCRATCH=1 each piece is an
// allocation of its own, so that tools see an access behind its end.
class Arena {
 public:
  explicit Arena(const KernelInfo& info) : api_(info.api()), allocator_(info.allocator()) {}
  Arena(const Arena&) = delete;
  Arena(Arena&& other) noexcept : api_(other.api_), allocator_(other.allocator_) { other.allocator_ = nullptr; }
  ~Arena() {
    if (allocator_) api_->ReleaseAllocator(allocator_);
  }

  class Memory {
   public:
    Memory(OrtAllocator* allocator, size_t bytes) : allocator_(separate() ? nullptr : allocator), bytes_(bytes) {
      if (!bytes) return;
      const size_t all = (allocator_ ? rounded(bytes) : bytes) + 2 * zone();
      if (allocator_)
        memory_ = static_cast<char*>(allocator->Alloc(allocator, all));
      else
        check(cudaMalloc(reinterpret_cast<void**>(&memory_), all), "scratch memory");
      if (!memory_) fail("the device has no %zu bytes of memory left", bytes);
#if !defined(__CUDACC__)
      emulator::prepare_scratch(memory_, bytes, zone());
#endif
    }
    Memory(const Memory&) = delete;
    ~Memory() {
      if (!memory_) return;
#if !defined(__CUDACC__)
      emulator::check_zones(memory_, bytes_, zone());
#endif
      if (allocator_)
        allocator_->Free(allocator_, memory_);
      else
        (void)cudaFree(memory_);  // waits for the kernels that use it
    }
    template <class T>
    T* as() const {
      return memory_ ? reinterpret_cast<T*>(memory_ + zone()) : nullptr;
    }

   private:
    // The arena keeps what it took from the device, and takes more for what is a little larger than all before. As
    // sizes follow the tokens of a step, there are few: powers of two, from a megabyte on.
    static size_t rounded(size_t bytes) {
      size_t all = size_t{1} << 20;
      if (bytes < all) return bytes;
      while (all < bytes) all *= 2;
      return all;
    }
    static bool separate() {
      static const bool set = std::getenv("TRIGRAPH_SEPARATE_SCRATCH") != nullptr;
      return set;
    }
    // Bytes before and behind what was asked for.
    static size_t zone() {
#if defined(__CUDACC__)
      return 0;
#else
      return separate() ? 0 : emulator::red_zone();
#endif
    }

    OrtAllocator* allocator_;  // nullptr: the memory is no arena's
    size_t bytes_;
    char* memory_ = nullptr;
  };

  template <class T>
  Memory take(int64_t count) const {
    return Memory(allocator_, static_cast<size_t>(count) * sizeof(T));
  }

 private:
  const OrtApi* api_;
  OrtAllocator* allocator_;
};

inline cudaStream_t stream_of(const Context& context) { return static_cast<cudaStream_t>(context.gpu_stream()); }

// The state that a step does not write, when it comes out in another buffer than it came in.
inline void copy_other_buffer(const Tensor& past, const Tensor& present, size_t item_bytes, cudaStream_t stream) {
  if (past.data == present.data || !past.size()) return;
  check(cudaMemcpyAsync(present.data, past.data, static_cast<size_t>(past.size()) * item_bytes,
                        cudaMemcpyDeviceToDevice, stream),
        "a copy of state");
}

// A kernel class whose calls also raise device errors, as soon as they are known: in the same call, or later.
template <class Kernel>
struct Checked : Kernel {
  explicit Checked(const KernelInfo& info) : Kernel(info) { error_record(); }
  void compute(Context& context) {
    raise_device_error();
    Kernel::compute(context);
    raise_device_error();
  }

 private:
  static void raise_device_error() {
    const DeviceError error = take_device_error();
    if (!error.found) return;
    if (!std::strcmp(error.op, Kernel::kName)) fail("%s", error.text);
    fail("an earlier operator failed: trigraph.%s: %s", error.op, error.text);
  }
};

}  // namespace trigraph::TRIGRAPH_ISA
