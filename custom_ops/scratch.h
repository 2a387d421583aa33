// Memory of a thread that is kept from call to call.
#pragma once

#include <cstddef>
#include <memory>
#include <new>

namespace trigraph {

// 64-byte aligned scratch of the calling thread, kept between calls. One live use per Tag and thread; body functions of
// parallel_for may write into the caller's buffer, or take their own.
template <class Tag>
void* scratch(size_t bytes) {
  struct Free {
    void operator()(char* p) const { ::operator delete(p, std::align_val_t{64}); }
  };
  thread_local std::unique_ptr<char, Free> buffer;
  thread_local size_t capacity = 0;
#if defined(__SANITIZE_ADDRESS__)
  capacity = 0;  // exactly as large as asked for, so that a step past its end is seen
#endif
  if (capacity < bytes) {
    buffer.reset();
    capacity = 0;
    buffer.reset(static_cast<char*>(::operator new(bytes, std::align_val_t{64})));
    capacity = bytes;
  }
  return buffer.get();
}

}  // namespace trigraph
