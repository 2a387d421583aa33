// How fast threads read memory: the yardstick that `trigraph bench` lays against steps, in turns with them.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

#include "affinity.h"
#include "ort_api.h"

namespace trigraph {
namespace {

constexpr size_t kPiece = 1 << 17;  // words that a thread claims at once, 1 MB: no thread ends much later than another

uint64_t sum_of(const uint64_t* words, size_t count) {
  uint64_t sums[8] = {};
  for (size_t i = 0; i + 8 <= count; i += 8) {
    __builtin_prefetch(words + i + 512);
    for (int j = 0; j < 8; ++j) sums[j] += words[i + j];
  }
  uint64_t total = 0;
  for (uint64_t sum : sums) total += sum;
  return total;
}

}  // namespace
}  // namespace trigraph

// Seconds that `threads` threads, the caller among them, take to read `count` words once. Time starts when all of them
// are awake, and no thread sleeps before the last one has read: as in a step that follows another.
extern "C" TRIGRAPH_EXPORT double trigraph_read_seconds(const uint64_t* words, size_t count, int threads) {
  using Clock = std::chrono::steady_clock;
  std::atomic<int> awake{0}, finished{0};
  std::atomic<size_t> claimed{0};
  std::atomic<uint64_t> total{0};  // so that the compiler keeps the reads
  auto meet = [threads](std::atomic<int>& arrived) {
    for (++arrived; arrived < threads;) std::this_thread::yield();
  };
  auto read = [&] {
    meet(awake);
    Clock::time_point start = Clock::now();
    for (size_t first; (first = claimed.fetch_add(trigraph::kPiece)) < count;)
      total += trigraph::sum_of(words + first, std::min(trigraph::kPiece, count - first));
    meet(finished);
    return std::chrono::duration<double>(Clock::now() - start).count();
  };
  std::vector<std::thread> helpers;
  for (int i = 1; i < threads; ++i)
    helpers.emplace_back([&read, caller = std::this_thread::get_id(), processor = trigraph::claim_processor()] {
      trigraph::keep_off(caller, processor);
      read();
    });
  double seconds = read();
  for (std::thread& helper : helpers) helper.join();
  return seconds;
}
