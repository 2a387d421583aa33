// Keeps threads of a pool off the processor of the thread that they help.
//
// Linux may wake a pool's thread on the processor of its caller and leave the two there, taking turns tick by tick,
// while another processor idles: seen on virtual machines whose processors share no cache in the kernel's eyes, where
// it doubles the time of a step.
#pragma once

#if defined(__linux__)
#include <sched.h>
#endif

namespace trigraph {

#if defined(__linux__)

// The processor that the calling thread runs on.
inline int current_processor() { return sched_getcpu(); }

// Called by a thread of the pool: moves it when it runs on `processor`, for as long as it is not found on another
// caller's. A set of processors that somebody else gave the thread is narrowed, never widened; one that equals the set
// chosen here is taken for it.
inline void keep_off(int processor) {
  thread_local cpu_set_t allowed{}, narrowed{};
  if (processor < 0 || sched_getcpu() != processor) return;
  cpu_set_t current{};
  if (sched_getaffinity(0, sizeof current, &current) != 0) return;  // more processors than the set has room for
  if (!CPU_EQUAL(&current, &narrowed)) allowed = current;
  narrowed = allowed;
  CPU_CLR(processor, &narrowed);
  if (CPU_COUNT(&narrowed) > 0) sched_setaffinity(0, sizeof narrowed, &narrowed);
}

#else

inline int current_processor() { return -1; }
inline void keep_off(int) {}

#endif

}  // namespace trigraph
