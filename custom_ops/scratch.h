// Memory of operators that is kept from call to call.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <vector>

namespace trigraph {

// Whether scratch memory is watched (TRIGRAPH_CHECK_SCRATCH, which the tests set): it starts as NaN in each use, lies
// between red zones, and a write into these ends the process. AddressSanitizer watches it by itself.
inline bool scratch_is_checked() {
#if defined(__SANITIZE_ADDRESS__)
  return false;
#else
  static const bool checked = std::getenv("TRIGRAPH_CHECK_SCRATCH") != nullptr;
  return checked;
#endif
}

// 64-byte aligned buffers, one for each tag.
class Scratch {
 public:
  Scratch() = default;
  Scratch(Scratch&&) = delete;
  ~Scratch() { check(); }

  void* take(size_t tag, size_t bytes) {
    if (tag >= buffers_.size()) buffers_.resize(tag + 1);
    Buffer& buffer = buffers_[tag];
    const size_t zone = scratch_is_checked() ? kZone : 0;
    if (zone) buffer.check();
#if defined(__SANITIZE_ADDRESS__)
    buffer.capacity = 0;  // exactly as large as asked for, so that a step past its end is seen
#endif
    if (!buffer.memory || buffer.capacity < bytes) {
      buffer = {};
      buffer.memory.reset(static_cast<char*>(::operator new(bytes + 2 * zone, std::align_val_t{64})));
      buffer.capacity = bytes;
    }
    if (zone) buffer.prepare(bytes);
    return buffer.memory.get() + zone;
  }

  // What was written beside the buffers since they were taken.
  void check() const {
    if (!scratch_is_checked()) return;
    for (const Buffer& buffer : buffers_) buffer.check();
  }

 private:
  static constexpr size_t kZone = 64;
  static constexpr char kRed = 0x5a;

  struct Free {
    void operator()(char* p) const { ::operator delete(p, std::align_val_t{64}); }
  };
  struct Buffer {
    std::unique_ptr<char, Free> memory;
    size_t capacity = 0, used = 0;

    void prepare(size_t bytes) {
      used = bytes;
      std::memset(memory.get(), kRed, kZone);
      std::memset(memory.get() + kZone, 0xff, bytes);
      std::memset(memory.get() + kZone + bytes, kRed, kZone);
    }
    void check() const {
      if (!memory) return;
      const char *before = memory.get(), *behind = before + kZone + used;
      for (size_t i = 0; i < kZone; ++i) {
        if (before[i] == kRed && behind[i] == kRed) continue;
        std::fprintf(stderr, "trigraph: an operator wrote %s its scratch memory\n",
                     before[i] == kRed ? "behind" : "before");
        std::abort();
      }
    }
  };
  std::vector<Buffer> buffers_;
};

// Gives the calling thread the scratch of the operator that it computes, until it is destroyed: what the last operator
// of any thread left. Threads come and go, and one that calls a step may never call another; a pool's threads keep
// their own.
class ScratchLoan {
 public:
  ScratchLoan() : outer_(current()) {
    Idle& idle = idle_ones();
    const std::lock_guard<std::mutex> lock(idle.mutex);
    if (idle.list.empty()) {
      idle.list.reserve(++idle.made);  // so that giving back never allocates
      lent_ = std::make_unique<Scratch>();
    } else {
      lent_ = std::move(idle.list.back());
      idle.list.pop_back();
    }
    current() = lent_.get();
  }
  ~ScratchLoan() {
    lent_->check();
    current() = outer_;
    Idle& idle = idle_ones();
    const std::lock_guard<std::mutex> lock(idle.mutex);
    idle.list.push_back(std::move(lent_));
  }
  ScratchLoan(const ScratchLoan&) = delete;

  // The scratch that the calling thread has on loan, or its own.
  static Scratch& here() {
    thread_local Scratch own;
    return current() ? *current() : own;
  }

 private:
  static Scratch*& current() {
    thread_local Scratch* lent = nullptr;
    return lent;
  }
  struct Idle {
    std::mutex mutex;
    std::vector<std::unique_ptr<Scratch>> list;  // the one used last at its end
    size_t made = 0;
  };
  static Idle& idle_ones() {
    static auto* all = new Idle;  // outlives every thread
    return *all;
  }

  Scratch* outer_;
  std::unique_ptr<Scratch> lent_;
};

inline size_t next_scratch_tag() {
  static std::atomic<size_t> count{0};
  return count++;
}

// 64-byte aligned scratch of the calling thread. One live use per Tag and thread; body functions of parallel_for may
// write into the caller's buffer, or take their own.
template <class Tag>
void* scratch(size_t bytes) {
  static const size_t tag = next_scratch_tag();
  return ScratchLoan::here().take(tag, bytes);
}

}  // namespace trigraph
