// Asks the system for memory that is to be read soon.
#pragma once

#include <cstdint>

#if defined(__unix__) || defined(__APPLE__)
#include <sys/mman.h>
#include <unistd.h>
#endif

namespace trigraph {

// Has a mapped file's disk read what is missing while the caller goes on: many such reads overlap, where each would
// otherwise wait for the one before it. With other memory it does nothing.
inline void ask_ahead(const uint8_t* from, int64_t bytes) {
#if defined(__unix__) || defined(__APPLE__)
  static const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto start = reinterpret_cast<uintptr_t>(from), first = start / page * page;
  madvise(reinterpret_cast<void*>(first), start - first + static_cast<size_t>(bytes), MADV_WILLNEED);
#else
  static_cast<void>(from), static_cast<void>(bytes);
#endif
}

}  // namespace trigraph
