// Memory that host and device share, for what the host does in the midst of a step.
#pragma once

#include <map>
#include <memory>
#include <mutex>

#include "platform.cuh"

namespace trigraph::TRIGRAPH_ISA {

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
  std::map<size_t, std::unique_ptr<SharedMemory>> memory;  // by bytes, powers of two

  static Lane& of(cudaStream_t stream) {
    static std::mutex lock;
    static auto* lanes = new std::map<cudaStream_t, Lane>;
    const std::lock_guard<std::mutex> guard(lock);
    return (*lanes)[stream];
  }
  char* take(size_t bytes) {
    size_t rounded = 4096;
    while (rounded < bytes) rounded *= 2;
    std::unique_ptr<SharedMemory>& found = memory[rounded];
    if (!found) found = std::make_unique<SharedMemory>(rounded);
    return found->start();
  }
};

}  // namespace trigraph::TRIGRAPH_ISA
