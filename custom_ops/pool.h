// Threads of our own, for work that no session's pool can do: what a GPU asks the host for in the midst of a step.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <type_traits>
#include <vector>

namespace trigraph {

// A first thread does jobs in the order in which they come, and the others help it in each. All of them spin for a
// while before they sleep, as the next layer's job comes soon, and yield to whoever else has use for their processors.
class Pool {
 public:
  // What somebody wants done, and waits for. Its memory is the caller's, until `wait` returns.
  struct Job {
    void (*run)(void* user, const Pool& pool);
    void* user;
    std::atomic<bool> pending{false}, failed{false};
  };
  // Where a GPU leaves mail, one piece at a time, and waits until `kAnswered` or `kFailed` is there in its place.
  struct Mailbox {
    static constexpr uint64_t kAnswered = 0, kFailed = 1;
    std::atomic<uint64_t>* mail;
    void (*answer)(uint64_t mail);
  };

  // One for the process and this number of threads, which lives as long as the process.
  static Pool& of(int threads);

  void start(Job& job);
  // Returns when the job is done: whether it was.
  bool wait(Job& job);

  // From now on the first thread looks for mail, and sleeps but for moments, until it is closed. What is open stays so.
  void open(const Mailbox& box);
  void close(const std::atomic<uint64_t>* mail);

  // body(i) for all i in [0, count), by the thread of a job and its helpers; what is thrown becomes a job that failed.
  // They begin in order, so a body may wait for an earlier one, as long as nothing has failed.
  template <class Body>
  void parallel_for(int64_t count, Body&& body) const {
    if (count == 1) return body(int64_t{0});
    using Function = std::remove_reference_t<Body>;
    const_cast<Pool*>(this)->share(
        count, [](void* function, int64_t i) { (*static_cast<Function*>(function))(i); },
        const_cast<void*>(static_cast<const void*>(&body)));
  }
  bool failed() const { return failed_.load(std::memory_order_relaxed); }

  // Returns when holds(), which another thread is about to bring about.
  template <class Condition>
  static void spin_until(Condition holds) {
    for (int turn = 1; !holds(); ++turn) pause(turn);
  }
  // Some tens of cycles; now and then the processor is another thread's for once.
  static void pause(int turn);

 private:
  // What the first thread does next: a job, or mail.
  struct Task {
    Job* job;
    Mailbox box;
    uint64_t mail;
  };

  explicit Pool(int threads);
  void lead();
  bool find(Task& task);
  std::vector<Mailbox>::iterator box_of(const std::atomic<uint64_t>* mail);
  void help();
  void share(int64_t count, void (*call)(void*, int64_t), void* body);
  void work();

  int helpers_;
  std::mutex lock_;
  std::condition_variable queued_, opened_, ended_;
  std::deque<Job*> jobs_;
  std::vector<Mailbox> boxes_;

  // What is shared at present. A helper counts itself in before it looks whether it is still open, and the first thread
  // closes before it waits for those who are in: so nobody reads what is being changed.
  std::atomic<uint64_t> open_{0};  // a number that no work before had; 0: nothing is
  std::atomic<int> inside_{0}, asleep_{0};
  std::atomic<int64_t> next_{0};
  std::atomic<bool> failed_{false};
  uint64_t shared_ = 0;
  int64_t count_ = 0;
  void (*call_)(void*, int64_t) = nullptr;
  void* body_ = nullptr;
};

}  // namespace trigraph
