// ThreadSanitizer's view of a block (-fsanitize=thread): each thread is a fiber of its own, and nothing but the
// barriers orders what they read and write. Blocks are ordered one after the other: what two of them race for is not
// seen.
#pragma once

#include <cstddef>

namespace emulator::races {

#if defined(__SANITIZE_THREAD__) && !defined(TRIGRAPH_EARLY)
extern "C" {
void* __tsan_get_current_fiber();
void* __tsan_create_fiber(unsigned flags);
void __tsan_switch_to_fiber(void* fiber, unsigned flags);
void __tsan_acquire(void* order);
void __tsan_release(void* order);
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
}

inline void* own_fiber() { return __tsan_get_current_fiber(); }
inline void* make_fiber() { return __tsan_create_fiber(0); }
inline void enter(void* fiber) { __tsan_switch_to_fiber(fiber, 1); }  // 1: the switch orders nothing
inline void acquire(void* order) { __tsan_acquire(order); }
inline void release(void* order) { __tsan_release(order); }
inline void look_away() {
  AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
  AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
}
inline void look_again() {
  AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
  AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
}
#else
inline void* own_fiber() { return nullptr; }
inline void* make_fiber() { return nullptr; }
inline void enter(void*) {}
inline void acquire(void*) {}
inline void release(void*) {}
inline void look_away() {}
inline void look_again() {}
#endif

// The emulator's own accounts, which its fibers share.
struct Unwatched {
  Unwatched() { look_away(); }
  Unwatched(const Unwatched&) = delete;
  ~Unwatched() { look_again(); }
};

}  // namespace emulator::races
