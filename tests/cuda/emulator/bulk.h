// Bulk copies to shared memory, and the barriers that they complete.
#pragma once

#include "threads.h"

namespace emulator {

// A barrier for bulk copies, which are there at once: below, the bytes that are still to come, above, complete rounds.
inline void expect_bytes(uint64_t& state, int bytes) {
  const races::Unwatched unwatched;
  if (uint32_t(state)) die("bytes are expected ahead of those before");
  state += uint32_t(bytes);
}
inline void copy_bytes(uint64_t& state, void* to, const void* from, int bytes) {
  if ((reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from) | unsigned(bytes)) % 16)
    die("a bulk copy that is not of whole 16 bytes");
  std::memcpy(to, from, size_t(bytes));
  races::release(&state);
  const races::Unwatched unwatched;
  if (uint32_t(state) < uint32_t(bytes)) die("a bulk copy of more bytes than are expected");
  state -= uint32_t(bytes);
  if (!uint32_t(state)) state += uint64_t{1} << 32;
}
inline void await_bytes(uint64_t& state, int round) {
  {
    const races::Unwatched unwatched;
    while (int(state >> 32) <= round) yield(0, block.size.x);
    if (int(state >> 32) > round + 1) die("a round of bulk copies was missed");
  }
  races::acquire(&state);
}

}  // namespace emulator
