// A check of launches that may begin early (-DEARLY=ON): ahead of await_previous they write no device memory, and read
// none that a launch in flight writes. The compiler tells of each access, by early.cc.
#pragma once

#include <cstddef>

namespace emulator::early {

#if defined(TRIGRAPH_EARLY)
// What a thread asks to be copied is read from then on.
void read(const void* memory, size_t bytes);
#else
inline void read(const void*, size_t) {}
#endif

}  // namespace emulator::early
