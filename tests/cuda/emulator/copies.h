// Copies to shared memory that a thread has asked for. A block's are made at once, or as late as may be: when the
// thread waits for their group.
#pragma once

#include <algorithm>
#include <deque>

#include "threads.h"

namespace emulator {

struct Copies {
  struct Copy {
    char* to;
    const char* from;
    int bytes;  // of 16; the others are zero
  };
  std::deque<Copy> copies;
  std::deque<size_t> groups;  // copies of each that has ended
  size_t open = 0;            // of the one that has not

  bool late = true;

  // What a thread asked for and did not await is lost.
  void begin(bool are_late) { copies.clear(), groups.clear(), open = 0, late = are_late; }
  static void make(const Copy& copy) {
    for (int i = 0; i < 16; ++i) copy.to[i] = i < copy.bytes ? copy.from[i] : '\0';
  }
  void make_group() {
    for (; groups.front(); --groups.front(), copies.pop_front()) make(copies.front());
    groups.pop_front();
  }
};
inline Copies copies_of_thread[kMostThreads];

inline void copy_ahead(void* to, const void* from, int bytes) {
  Copies& own = copies_of_thread[current()];
  const Copies::Copy copy{static_cast<char*>(to), static_cast<const char*>(from), bytes};
  if (own.late)
    own.copies.push_back(copy), ++own.open;
  else
    Copies::make(copy);
}
inline void end_copies() {
  Copies& own = copies_of_thread[current()];
  own.groups.push_back(own.open), own.open = 0;
}
// Until so many groups at most are on their way.
inline void await_copies(int groups) {
  Copies& own = copies_of_thread[current()];
  while (own.groups.size() > static_cast<size_t>(groups)) own.make_group();
}

}  // namespace emulator
