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

// A captured graph, and how many kernels it has.
struct Graph {
  std::vector<Work> work;
  int kernels = 0;
};

class Stream {
 public:
  explicit Stream(bool blocking) : blocking_(blocking) {}
  bool blocking() const { return blocking_; }  // whether it and the legacy stream wait for each other
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
  uint64_t done_ = 0;
  std::deque<Work> work_;
};

}  // namespace fake_cuda

// An event, by CUDA's own name of it.
struct CUevent_st {
  fake_cuda::Stream* stream = nullptr;
  uint64_t number = 0;  // of the work before it
};
