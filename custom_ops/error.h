// What a kernel throws: it becomes an ONNX Runtime status.
#pragma once

#include <cstdarg>
#include <cstdio>
#include <exception>

namespace trigraph {

struct Error : std::exception {
  char text[512];
  const char* what() const noexcept override { return text; }
};

#if defined(__GNUC__)
[[noreturn]] inline void fail(const char* format, ...) __attribute__((format(printf, 1, 2)));
#endif
[[noreturn]] inline void fail(const char* format, ...) {
  Error error;
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(error.text, sizeof error.text, format, arguments);
  va_end(arguments);
  throw error;
}

}  // namespace trigraph
