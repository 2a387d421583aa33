// Valgrind's view of memory (-DTRIGRAPH_VALGRIND): what a block or a call finds there counts as never written.
#pragma once

#include <cstddef>

#if defined(TRIGRAPH_VALGRIND)
#include <valgrind/memcheck.h>
#endif

namespace emulator::uninitialised {

#if defined(TRIGRAPH_VALGRIND)
inline void mark(void* memory, size_t bytes) { VALGRIND_MAKE_MEM_UNDEFINED(memory, bytes); }
inline void add_stack(char* stack, size_t bytes) { VALGRIND_STACK_REGISTER(stack, stack + bytes); }
#else
inline void mark(void*, size_t) {}
inline void add_stack(char*, size_t) {}
#endif

}  // namespace emulator::uninitialised
