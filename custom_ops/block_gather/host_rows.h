// How the library of a GPU has rows read of a table that stays in the host's memory, in the midst of a step: a C
// function, which the host program hands from the CPU library to it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace trigraph {

struct HostRows {
  const uint8_t* table;
  size_t row_bytes;
  const int64_t* ids;  // [count], all of them rows of the table
  int64_t count;
  uint8_t* out;  // [count, row_bytes]
  int threads;   // of the CPU library's own
};

// False for want of memory.
using ReadHostRows = bool (*)(const HostRows* rows);

}  // namespace trigraph
