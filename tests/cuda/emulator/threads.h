// The threads of a block as fibers that run in turns: where they change, at barriers and in what lanes of a warp
// exchange, and what memory holds before they write it.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>

#include "copies.h"
#include "early.h"
#include "races.h"
#include "stacks.h"
#include "uninitialised.h"

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

namespace emulator {

constexpr size_t kStack = 64 << 10;
constexpr int kWarp = 32;
constexpr unsigned kMostThreads = 1024;
constexpr int kMostWords = 6;  // that a lane gives at once

struct Fiber {
  Stack stack;
  unsigned index = 0;
  bool done = false, awaited = true;  // awaited: the launches before
  void* watched = nullptr;
  Copies copies;
  std::unique_ptr<char[]> memory;
};

using Words = uint32_t[kMostWords][kWarp];
struct Warp {
  Words given[2];
  int size = 0, arrived = 0;
  unsigned generation = 0;
  char met = 0;  // as the block's
};

constexpr size_t kMostShared = 98 << 10;  // of the 99 KB that the smallest devices give a block, variables beside it
constexpr size_t kMostSharedOf90 = 226 << 10;  // of the 227 KB of sm_90
constexpr size_t kBehindShared = 4 << 10;      // what no block may write

// The block that runs; kernels of two sessions take turns.
struct Block {
  Fiber fibers[kMostThreads];
  Warp warps[kMostThreads / kWarp];
  unsigned made = 0;  // fibers
  const std::function<void()>* body = nullptr;
  dim3 grid, size, index;
  unsigned current = 0, live = 0, arrived = 0, generation = 0, idle = 0;
  unsigned launch = 0, in_flight = 1;  // the one that runs; those from in_flight on may still run beside it
  unsigned dice = 1;
  bool descending = false;  // the order of turns
  int votes = 0, verdict = 0;
  Stack scheduler;
  void* scheduler_watched = nullptr;
  char started = 0, ended = 0, met = 0;  // what orders threads: the block's begin and end, and barriers
  alignas(16) char shared[kMostSharedOf90 + kBehindShared];
};
inline Block block;  // NOLINT(bugprone-throwing-static-initialization): a program without memory may end
inline std::mutex running;

[[noreturn]] inline void die(const char* what) {
  std::fprintf(stderr, "CUDA emulator: %s\n", what);
  std::abort();
}

// A number that a test may set.
inline int64_t setting(const char* name, int64_t otherwise) noexcept {
  const char* text = std::getenv(name);
  return text ? std::strtoll(text, nullptr, 10) : otherwise;
}

// Shared memory that a block may ask for.
inline size_t most_shared() noexcept {
  const bool small = setting("TRIGRAPH_EMULATED_MULTIPROCESSORS", 0) != 0;
  return static_cast<size_t>(
      setting("TRIGRAPH_EMULATED_SHARED_BYTES", static_cast<int64_t>(small ? kMostShared : kMostSharedOf90)));
}

inline void poison(void* memory, size_t bytes) {
  std::memset(memory, 0xff, bytes);
  uninitialised::mark(memory, bytes);
}
inline char* shared_memory() { return block.shared; }

// The thread that runs.
#if defined(__SANITIZE_THREAD__)
__attribute__((no_sanitize_thread, noinline))
#endif
inline unsigned current() {
  return block.current;
}

[[gnu::always_inline]] inline void resume(Stack& left, Fiber& fiber) {
  block.current = fiber.index;
  races::enter(fiber.watched);
  change_stack(&left, &fiber.stack);
}

inline void copy_ahead(void* to, const void* from, int bytes, int size) {
  if (reinterpret_cast<uintptr_t>(to) % size || reinterpret_cast<uintptr_t>(from) % size)
    die("a copy to shared memory is not aligned");
  if (bytes < 0 || bytes > size) die("a copy to shared memory has less than no bytes, or more than it may");
  early::read(from, static_cast<size_t>(bytes));
  block.fibers[current()].copies.ask({static_cast<char*>(to), static_cast<const char*>(from), bytes, size});
}
inline void end_copies() { block.fibers[current()].copies.end(); }
inline void await_copies(int groups) { block.fibers[current()].copies.await(static_cast<size_t>(groups)); }

// A thread of a launch that may begin early must await those before. Another launch begins when they have ended.
inline void begin_thread(bool early) {
  const races::Unwatched unwatched;
  block.fibers[current()].awaited = !early;
  if (!early) block.in_flight = block.launch;
}
inline void await_previous() { block.fibers[current()].awaited = true; }
inline void end_thread() {
  if (!block.fibers[current()].awaited) die("a thread of an early launch has not awaited those before");
}

// The next of `count` threads, from `first` on, that has not ended.
inline Fiber& following(const Fiber& fiber, unsigned first, unsigned count) {
  unsigned n = fiber.index - first;
  do {
    if (block.descending)
      n = (n ? n : count) - 1;
    else if (++n == count)
      n = 0;
  } while (block.fibers[first + n].done);
  return block.fibers[first + n];
}

// Lets the next of those threads run.
[[gnu::always_inline]] inline void yield(unsigned first, unsigned count) {
  if (++block.idle > 3 * block.size.x) die("all threads wait: a barrier or shuffle is not reached by some");
  Fiber& self = block.fibers[block.current];
  Fiber& next = following(self, first, count);
  if (&next != &self) resume(self.stack, next);
}

// A fiber is thread after thread, of one block after the other.
inline void live() {
  for (;;) {
    races::acquire(&block.started);
    (*block.body)();
    races::release(&block.ended);
    races::look_away();
    Fiber& self = block.fibers[block.current];
    self.done = true;
    block.idle = 0;
    --block.live;
    if (block.live && block.live == block.arrived) die("a thread ended before a barrier that others wait at");
    if (block.live) {
      resume(self.stack, following(self, 0, block.size.x));
    } else {
      races::enter(block.scheduler_watched);
      change_stack(&self.stack, &block.scheduler);
    }
    races::look_again();
  }
}

inline void make_fiber(unsigned index) {
  Fiber& fiber = block.fibers[index];
  fiber.index = index;
  fiber.watched = races::make_fiber();
  fiber.memory.reset(new char[kStack]);
  uninitialised::add_stack(fiber.memory.get(), kStack);
  // Stacks of a warp begin at different lines of a page, or the cache would hold a few of them only.
  const size_t end = reinterpret_cast<size_t>(fiber.memory.get() + kStack) % 4096 + index % kWarp * 128;
  make_stack(fiber.stack, fiber.memory.get(), kStack - end, live);
}

inline int wait_for_block(int vote) {
  const races::Unwatched unwatched;
  const unsigned generation = block.generation;
  block.votes |= vote;
  if (++block.arrived == block.live) {
    block.verdict = block.votes;
    block.votes = 0;
    block.arrived = 0;
    block.idle = 0;
    ++block.generation;
  }
  while (block.generation == generation) yield(0, block.size.x);
  return block.verdict;
}

inline int barrier(int vote) {
  races::release(&block.met);
  const int verdict = wait_for_block(vote);
  races::acquire(&block.met);
  return verdict;
}

// What every lane of the warp gives in the same call, until this one gives again. It orders no memory.
template <int n>
[[gnu::always_inline]] inline const Words& exchange(const uint32_t (&words)[n]) {
  static_assert(n <= kMostWords);
  const unsigned lane = block.current % kWarp, first = block.current - lane;
  Warp& warp = block.warps[block.current / kWarp];
  const unsigned generation = warp.generation;
  Words& given = warp.given[generation & 1];
  for (int i = 0; i < n; ++i) given[i][lane] = words[i];
  if (++warp.arrived == warp.size) {
    warp.arrived = 0;
    block.idle = 0;
    ++warp.generation;
  }
  // Its own warp's threads first, whose stacks are in the cache.
  while (warp.generation == generation) yield(first, static_cast<unsigned>(warp.size));
  return given;
}

// The values that some lanes give in the same call.
template <class T, int n>
[[gnu::always_inline]] inline void shuffle(T value, const int (&sources)[n], T (&found)[n]) {
  const races::Unwatched unwatched;
  uint32_t words[sizeof value / 4];
  std::memcpy(words, &value, sizeof value);
  const int lanes = block.warps[block.current / kWarp].size;
  const Words& given = exchange(words);
  for (int k = 0; k < n; ++k) {
    if (sources[k] < 0 || sources[k] >= lanes) die("a shuffle reads a lane that is not there");
    for (size_t i = 0; i < sizeof value / 4; ++i) words[i] = given[i][sources[k]];
    std::memcpy(&found[k], words, sizeof value);
  }
}
template <class T>
[[gnu::always_inline]] inline T shuffle(T value, int source) {
  T found[1];
  shuffle(value, {source}, found);
  return found[0];
}

inline void require_whole_warp() {
  if (block.warps[block.current / kWarp].size != kWarp) die("a part of a warp calls what whole ones must");
}

// d += A B by a warp's tensor cores: A is 16 x 16 halves, B 16 halves x 8. Who gives and has what: half_dots and
// run_dots (custom_ops/blocks/cuda/tensor_cores.cuh).
template <class A, class B, int halves>
void multiply(const uint32_t* a, const uint32_t* b, int* d) {
  const races::Unwatched unwatched;
  require_whole_warp();
  uint32_t words[3 * halves];
  std::memcpy(words, a, 8 * halves);
  std::memcpy(words + 2 * halves, b, 4 * halves);
  const Words& given = exchange(words);
  const unsigned lane = block.current % kWarp, g = lane / 4, t = lane % 4;
  for (int half = 0; half < halves; ++half)
    for (int i = 0; i < 4; ++i) {
      const auto* row = reinterpret_cast<const A*>(&given[2 * half + i / 2][4 * g]);
      const auto* column = reinterpret_cast<const B*>(&given[2 * halves + half][4 * (2 * t + i % 2)]);
      int sum = 0;
      for (int k = 0; k < 16; ++k) sum += row[k] * column[k];
      d[i] += sum;
    }
}

// Phases of so many arrivals each: custom_ops/cuda/mbarrier.cuh.
class Phases {
 public:
  void begin(unsigned arrivals) { arrivals_ = left_ = arrivals, over_ = 0; }
  void arrive() {
    const races::Unwatched unwatched;
    races::release(met_ + over_ % 2);
    if (--left_) return;
    left_ = arrivals_, ++over_;
    block.idle = 0;
  }
  void await(unsigned parity) {
    const races::Unwatched unwatched;
    while (over_ % 2 == parity) yield(0, block.size.x);
    races::acquire(met_ + parity);
  }

 private:
  unsigned arrivals_, left_, over_;
  char met_[2];  // who arrives and who waits in phases of a parity
};

inline void warp_barrier() {
  char& met = block.warps[current() / kWarp].met;
  races::release(&met);
  shuffle(0, 0);
  races::acquire(&met);
}

}  // namespace emulator
