// Streams, events and captured graphs: what is put off, and what each waits for.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace fake_cuda {

using Work = std::function<void()>;

// A captured graph, how many kernels it has, and whether something has ended its capture before its time.
struct Graph {
  std::vector<Work> work;
  int kernels = 0;
  bool broken = false;
};

class Stream {
 public:
  explicit Stream(bool blocking, int device = 0) : blocking_(blocking), device_(device) {}
  bool blocking() const { return blocking_; }  // whether it and the legacy stream wait for each other
  int device() const { return device_; }
  uint64_t enqueued() const { return done_ + work_.size(); }
  void add(Work work) { work_.push_back(std::move(work)); }
  // Runs work until so much of it is done.
  void run_until(uint64_t number) {
    while (done_ < number && !work_.empty()) {
      const Work next = std::move(work_.front());
      work_.pop_front();
      ++done_;
      next();
    }
  }
  void run() { run_until(enqueued()); }

  std::unique_ptr<Graph> capture;  // while it is captured

 private:
  bool blocking_;
  int device_;
  uint64_t done_ = 0;
  std::deque<Work> work_;
};

}  // namespace fake_cuda

// An event, by CUDA's own name of it.
struct CUevent_st {
  int device;
  fake_cuda::Stream* stream = nullptr;
  uint64_t number = 0;  // of the work before it
};
