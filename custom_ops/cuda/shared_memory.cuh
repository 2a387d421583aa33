// Memory that host and device share, for what the host does in the midst of a step.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>

#include "platform.cuh"

namespace trigraph::TRIGRAPH_ISA {

// A word of such memory. Who reads a value on the other side sees all that its writer's block, ahead of a barrier, or
// its thread had written before.
__device__ __forceinline__ void write_to_host(uint64_t* word, uint64_t value) {
#if defined(__CUDACC__)
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
#else
  emulator::write_to_host(word, value);
#endif
}
__device__ __forceinline__ uint64_t read_from_host(const uint64_t* word) {
#if defined(__CUDACC__)
  uint64_t value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
  return value;
#else
  return emulator::read_from_host(word);
#endif
}

// A clock of the device, which may jump.
__device__ __forceinline__ uint64_t nanoseconds() {
#if defined(__CUDACC__)
  uint64_t time;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(time));
  return time;
#else
  return emulator::nanoseconds();
#endif
}

class SharedMemory {
 public:
  explicit SharedMemory(size_t bytes) {
    const BesideCaptures beside;
    check(cudaHostAlloc(&memory_, bytes, cudaHostAllocMapped | cudaHostAllocPortable),
          "memory that host and device share");
  }
  SharedMemory(const SharedMemory&) = delete;
  ~SharedMemory() {
    const BesideCaptures beside;
    (void)cudaFreeHost(memory_);
  }
  char* start() const { return static_cast<char*>(memory_); }

 private:
  void* memory_ = nullptr;
};

// What steps on one stream share: a node is done with it before the next one's work begins. Captured graphs know the
// addresses, so memory stays as long as the stream, which is as long as the process; a larger piece is a new one.
struct Lane {
  std::mutex lock;
  std::map<std::pair<bool, size_t>, std::unique_ptr<SharedMemory>> memory;  // by `mailed`, and bytes, powers of two
  std::unique_ptr<SharedMemory> mailbox;

  static Lane& of(cudaStream_t stream) {
    static std::mutex lock;
    static auto* lanes = new std::map<cudaStream_t, Lane>;
    const std::lock_guard<std::mutex> guard(lock);
    return (*lanes)[stream];
  }
  // `mailed`: what mail is about, which the host may read for longer than a step.
  char* take(size_t bytes, bool mailed) {
    size_t rounded = 4096;
    while (rounded < bytes) rounded *= 2;
    std::unique_ptr<SharedMemory>& found = memory[{mailed, rounded}];
    if (!found) found = std::make_unique<SharedMemory>(rounded);
    return found->start();
  }
  // Where a kernel leaves mail for the host, and then whether it no longer waits for the answer; both 0 before.
  std::atomic<uint64_t>* mail() {
    if (!mailbox) {
      mailbox = std::make_unique<SharedMemory>(2 * sizeof(uint64_t));
      new (mailbox->start()) std::atomic<uint64_t>[ 2 ]{};
    }
    return reinterpret_cast<std::atomic<uint64_t>*>(mailbox->start());
  }
};

}  // namespace trigraph::TRIGRAPH_ISA
