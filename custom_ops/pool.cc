#include "pool.h"

#include <chrono>
#include <map>
#include <thread>

#if defined(__x86_64__) || defined(_M_X64)
#include <immintrin.h>
#endif

namespace trigraph {
namespace {

constexpr auto kSpin = std::chrono::microseconds(500);  // longer than a GPU needs from one layer to the next

void pause() {
#if defined(__x86_64__) || defined(_M_X64)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Whether `holds()` within the time that threads spin for.
template <class Condition>
bool soon(Condition holds) {
  const auto end = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < 64; ++i) {
      if (holds()) return true;
      pause();
    }
  } while (std::chrono::steady_clock::now() < end);
  return false;
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
    ++waiting_jobs_;
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

void Pool::lead() {
  for (;;) {
    (void)soon([this] { return waiting_jobs_.load(std::memory_order_relaxed) > 0; });
    Job* job = nullptr;
    {
      std::unique_lock<std::mutex> guard(lock_);
      queued_.wait(guard, [this] { return !jobs_.empty(); });
      job = jobs_.front();
      jobs_.pop_front();
      --waiting_jobs_;
    }
    failed_ = false;
    try {
      job->run(job->user, *this);
    } catch (const std::exception&) {
      failed_ = true;
    }
    job->failed = failed_.load();
    {
      const std::lock_guard<std::mutex> guard(lock_);
      job->pending.store(false, std::memory_order_release);
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
  while (inside_ > 0) pause();
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
