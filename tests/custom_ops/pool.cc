// What custom_ops/pool.h does with jobs and mail from several threads; prints what is wrong first.
#include "pool.h"

#include <chrono>
#include <cstdio>
#include <ctime>
#include <new>
#include <thread>
#include <vector>

using trigraph::Pool;

namespace {

constexpr int kThreads = 3, kSteps = 40, kLayers = 5;
constexpr int64_t kTasks = 40;

// A layer of a step: as a GPU asks for it, and as the pool computes it.
struct Layer {
  Pool* pool;
  std::atomic<uint64_t>* mail;
  bool last, fails;
  std::vector<int64_t> rows;
};

// The second half of the tasks wait for what the first half make.
void compute(Layer& layer) {
  if (layer.last) layer.pool->close(layer.mail);
  layer.rows.assign(2 * kTasks, 0);
  std::atomic<int64_t> made{0};
  layer.pool->parallel_for(2 * kTasks, [&](int64_t i) {
    if (i < kTasks) {
      if (layer.fails && i == kTasks / 2) throw std::bad_alloc();
      layer.rows[static_cast<size_t>(i)] = i + 1;
      ++made;
      return;
    }
    Pool::spin_until([&] { return made == kTasks || layer.pool->failed(); });
    if (made == kTasks) layer.rows[static_cast<size_t>(i)] = layer.rows[static_cast<size_t>(i - kTasks)];
  });
}

int64_t sum_of(const std::vector<int64_t>& rows) {
  int64_t sum = 0;
  for (const int64_t row : rows) sum += row;
  return sum;
}

// Steps of a GPU, in which a layer fails now and then. The box opens ahead of the first mail, or behind it.
const char* steps(Pool& pool, int seed) {
  std::atomic<uint64_t> mail{0};
  const Pool::Mailbox box{&mail, [](uint64_t layer) { compute(*reinterpret_cast<Layer*>(layer)); }};
  for (int step = 0; step < kSteps; ++step)
    for (int i = 0; i < kLayers; ++i) {
      Layer layer{&pool, &mail, i == kLayers - 1, (step + i) % 7 == seed, {}};
      if (i == 0 && step % 2) pool.open(box);
      mail.store(reinterpret_cast<uint64_t>(&layer), std::memory_order_release);
      if (i == 0 && step % 2 == 0) pool.open(box);
      if (step % 20 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));  // all threads sleep
      Pool::spin_until([&] { return mail.load(std::memory_order_acquire) <= Pool::Mailbox::kFailed; });
      if ((mail == Pool::Mailbox::kFailed) != layer.fails) return "a layer's failure";
      if (!layer.fails && sum_of(layer.rows) != kTasks * (kTasks + 1)) return "a layer's rows";
      mail = 0;
    }
  return nullptr;
}

const char* jobs(Pool& pool) {
  for (int i = 0; i < kSteps; ++i) {
    std::atomic<int64_t> done{0};
    Pool::Job job;
    job.user = &done;
    job.run = [](void* user, const Pool& pool) {
      pool.parallel_for(kTasks, [&](int64_t) { ++*static_cast<std::atomic<int64_t>*>(user); });
    };
    pool.start(job);
    if (!pool.wait(job) || done != kTasks) return "a job";
  }
  return nullptr;
}

// Processor time of all threads while nothing is wanted.
const char* idle() {
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  const std::clock_t start = std::clock();
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  return std::clock() - start > CLOCKS_PER_SEC / 50 ? "threads that do not sleep" : nullptr;
}

}  // namespace

int main() {
  Pool& pool = Pool::of(kThreads);
  const char* wrong[4] = {};
  std::thread others[] = {std::thread([&] { wrong[0] = steps(pool, 3); }), std::thread([&] { wrong[1] = jobs(pool); })};
  wrong[2] = steps(pool, 5);
  for (std::thread& other : others) other.join();
  wrong[3] = idle();
  for (const char* what : wrong)
    if (what) std::printf("wrong: %s\n", what);
  return wrong[0] || wrong[1] || wrong[2] || wrong[3];
}
