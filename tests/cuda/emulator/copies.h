// A thread's asynchronous copies to shared memory. A block's are made at once, or as late as may be: what they copy is
// read, and comes, when the thread waits for their group, and before, what lies there is no number.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "uninitialised.h"

namespace emulator {

struct Copies {
  struct Copy {
    char* to;
    const char* from;
    int bytes, size;  // zeros follow what is copied
  };
  std::vector<Copy> begun;
  std::vector<size_t> groups;  // where they end in `begun`
  bool late = true;

  static void make(const Copy& copy) {
    std::memset(copy.to + copy.bytes, 0, static_cast<size_t>(copy.size - copy.bytes));
    std::memcpy(copy.to, copy.from, static_cast<size_t>(copy.bytes));
  }
  void ask(const Copy& copy) {
    if (!late) return make(copy);
    std::memset(copy.to, 0xff, static_cast<size_t>(copy.size));
    uninitialised::mark(copy.to, static_cast<size_t>(copy.size));
    begun.push_back(copy);
  }
  void end() { groups.push_back(begun.size()); }
  // Until at most so many groups have not come.
  void await(size_t left) {
    if (groups.size() <= left) return;
    const size_t ended = groups.size() - left, count = groups[ended - 1];
    for (size_t i = 0; i < count; ++i) make(begun[i]);
    begun.erase(begun.begin(), begun.begin() + static_cast<ptrdiff_t>(count));
    groups.erase(groups.begin(), groups.begin() + static_cast<ptrdiff_t>(ended));
    for (size_t& end : groups) end -= count;
  }
  // What a thread asked for and did not await is lost.
  void begin(bool are_late) { begun.clear(), groups.clear(), late = are_late; }
};

}  // namespace emulator
