#include "pool.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <thread>

#if defined(__x86_64__) || defined(_M_X64)
#include <immintrin.h>
#endif

namespace trigraph {
namespace {

constexpr auto kSpin = std::chrono::microseconds(500);  // longer than a GPU needs from one layer to the next
constexpr auto kNap = std::chrono::microseconds(50);
constexpr int kTurns = 64;  // of a thread that spins, before it looks at the clock and lets others have its processor

// Whether `holds()` within the time that threads spin for.
template <class Condition>
bool soon(Condition holds) {
  const auto end = std::chrono::steady_clock::now() + kSpin;
  for (int turn = 1; !holds(); ++turn) {
    Pool::pause(turn);
    if (turn % kTurns == 0 && std::chrono::steady_clock::now() > end) return false;
  }
  return true;
}

}  // namespace

Pool& Pool::of(int threads) {
  static std::mutex lock;
  static auto* all = new std::map<int, Pool*>;
  const std::lock_guard<std::mutex> guard(lock);
  Pool*& pool = (*all)[threads];
  if (!pool) pool = new Pool(threads);
  return *pool;
}

void Pool::pause(int turn) {
#if defined(__x86_64__) || defined(_M_X64)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
  if (turn % kTurns == 0) std::this_thread::yield();
}

Pool::Pool(int threads) : helpers_(threads > 1 ? threads - 1 : 0) {
  std::thread([this] { lead(); }).detach();
  for (int i = 0; i < helpers_; ++i) std::thread([this] { help(); }).detach();
}

void Pool::start(Job& job) {
  job.failed = false;
  job.pending = true;
  {
    const std::lock_guard<std::mutex> guard(lock_);
    jobs_.push_back(&job);
  }
  queued_.notify_one();
}

bool Pool::wait(Job& job) {
  if (!soon([&] { return !job.pending.load(std::memory_order_acquire); })) {
    std::unique_lock<std::mutex> guard(lock_);
    ended_.wait(guard, [&] { return !job.pending; });
  }
  return !job.failed;
}

void Pool::open(const Mailbox& box) {
  {
    const std::lock_guard<std::mutex> guard(lock_);
    if (box_of(box.mail) == boxes_.end()) boxes_.push_back(box);
  }
  queued_.notify_one();
}

void Pool::close(const std::atomic<uint64_t>* mail) {
  const std::lock_guard<std::mutex> guard(lock_);
  if (const auto box = box_of(mail); box != boxes_.end()) boxes_.erase(box);
}

std::vector<Pool::Mailbox>::iterator Pool::box_of(const std::atomic<uint64_t>* mail) {
  return std::find_if(boxes_.begin(), boxes_.end(), [mail](const Mailbox& box) { return box.mail == mail; });
}

// Whether there is something to do. The lock is held.
bool Pool::find(Task& task) {
  for (const Mailbox& box : boxes_) {
    const uint64_t mail = box.mail->load(std::memory_order_acquire);
    if (mail == Mailbox::kAnswered || mail == Mailbox::kFailed) continue;
    task = {nullptr, box, mail};
    return true;
  }
  if (jobs_.empty()) return false;
  task = {jobs_.front(), {}, 0};
  jobs_.pop_front();
  return true;
}

void Pool::lead() {
  for (Task task{};;) {
    const auto found = [&] {
      const std::lock_guard<std::mutex> guard(lock_);
      return find(task);
    };
    if (!soon(found)) {
      std::unique_lock<std::mutex> guard(lock_);
      while (!find(task))
        if (boxes_.empty())
          queued_.wait(guard);
        else
          queued_.wait_for(guard, kNap);  // nothing wakes it for mail
    }
    failed_ = false;
    try {
      task.job ? task.job->run(task.job->user, *this) : task.box.answer(task.mail);
    } catch (const std::exception&) {
      failed_ = true;
    }
    if (!task.job) {
      task.box.mail->store(failed_ ? Mailbox::kFailed : Mailbox::kAnswered, std::memory_order_release);
      continue;
    }
    task.job->failed = failed_.load();
    {
      const std::lock_guard<std::mutex> guard(lock_);
      task.job->pending.store(false, std::memory_order_release);
    }
    ended_.notify_all();
  }
}

void Pool::share(int64_t count, void (*call)(void*, int64_t), void* body) {
  if (count <= 0) return;
  count_ = count, call_ = call, body_ = body, next_ = 0;
  open_ = ++shared_;
  if (asleep_ > 0) {
    {
      const std::lock_guard<std::mutex> guard(lock_);
    }
    opened_.notify_all();
  }
  work();
  open_ = 0;
  spin_until([this] { return inside_ == 0; });
}

void Pool::work() {
  for (int64_t i; (i = next_.fetch_add(1)) < count_;) {
    try {
      call_(body_, i);
    } catch (const std::exception&) {
      failed_ = true;
    }
  }
}

void Pool::help() {
  uint64_t done = 0;
  const auto is_open = [&] {
    const uint64_t open = open_;
    return open && open != done;
  };
  for (;;) {
    if (!soon(is_open)) {
      std::unique_lock<std::mutex> guard(lock_);
      ++asleep_;
      opened_.wait(guard, is_open);
      --asleep_;
    }
    ++inside_;
    if (const uint64_t open = open_; open && open != done) {
      work();
      done = open;
    }
    --inside_;
  }
}

}  // namespace trigraph
