// Weights of K types in the order of blocks/cpu/common/interleaved.h.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <system_error>
#include <thread>

#include "../../ort_api.h"

#if defined(__linux__)
#include <sched.h>
#elif defined(_WIN32)
#define NOMINMAX
#include <windows.h>
#endif

namespace {

// `count` groups of `rows` plain rows, each of `blocks` super-blocks of `bytes` bytes.
struct Groups {
  int64_t count, rows, blocks, bytes;

  int64_t size() const { return rows * blocks * bytes; }  // of a group
};

void repack(const uint8_t* plain, const Groups& groups, uint8_t* out) {
  constexpr int64_t kWord = 4;
  const auto [count, rows, blocks, bytes] = groups;
  const int64_t stride = blocks * bytes;
  for (int64_t g = 0; g < count; ++g, plain += rows * stride)
    for (int64_t b = 0; b < blocks; ++b) {
      const uint8_t* p = plain + b * bytes;
      int64_t at = 0;
      for (; at + kWord <= bytes; at += kWord)
        for (int64_t r = 0; r < rows; ++r, out += kWord) std::memcpy(out, p + r * stride + at, kWord);
      for (int64_t r = 0; r < rows; ++r, out += bytes - at)
        std::memcpy(out, p + r * stride + at, static_cast<size_t>(bytes - at));
    }
}

// Lets this thread have only what others leave of the processors.
void run_when_idle() {
#if defined(__linux__)
  const sched_param priority{};
  sched_setscheduler(0, SCHED_IDLE, &priority);
#elif defined(_WIN32)
  SetThreadPriority(GetCurrentThread(), THREAD_PRIORITY_IDLE);
#endif
}

// Works a third of the time, so that steps keep most of the memory's bandwidth. Whether it came to the end.
bool repack_in_pieces(const uint8_t* plain, const Groups& groups, uint8_t* out, const std::atomic<int32_t>& stop) {
  using Clock = std::chrono::steady_clock;
  constexpr int64_t kPiece = 4 << 20;                      // bytes
  constexpr Clock::duration kMost = std::chrono::milliseconds(4);  // for a piece; others ran meanwhile if it took longer
  const int64_t step = std::max<int64_t>(1, kPiece / groups.size());
  for (int64_t first = 0; first < groups.count; first += step) {
    if (stop.load(std::memory_order_relaxed)) return false;
    const auto begun = Clock::now();
    Groups piece = groups;
    piece.count = std::min(step, groups.count - first);
    repack(plain + first * groups.size(), piece, out + first * groups.size());
    std::this_thread::sleep_for(2 * std::min(kMost, Clock::now() - begun));
  }
  return true;
}

}  // namespace

// `groups` groups of `rows` plain rows, each of `blocks` super-blocks of `bytes` bytes, from `plain` to `out`.
extern "C" TRIGRAPH_EXPORT void trigraph_repack(const uint8_t* plain, int64_t groups, int64_t rows, int64_t blocks,
                                                int64_t bytes, uint8_t* out) {
  repack(plain, {groups, rows, blocks, bytes}, out);
}

// The same by a thread that takes what others leave, until `stop` is not 0. Returns 1 when it came to the end.
extern "C" TRIGRAPH_EXPORT int32_t trigraph_repack_idle(const uint8_t* plain, int64_t groups, int64_t rows,
                                                        int64_t blocks, int64_t bytes, uint8_t* out,
                                                        const std::atomic<int32_t>* stop) {
  bool done = false;
  try {
    std::thread([&] {
      run_when_idle();
      done = repack_in_pieces(plain, {groups, rows, blocks, bytes}, out, *stop);
    }).join();
  } catch (const std::system_error&) {  // no thread can be had
  }
  return done;
}
