// Random tensors on the device, the same ones in every run.
#pragma once

#include "cases.h"

namespace gpu_kernels {

// Device memory that goes with its owner.
class Memory {
 public:
  Memory() = default;
  Memory(const Memory&) = delete;
  ~Memory();
  void* reserve(size_t bytes);

 private:
  std::vector<void*> all_;
};

// An input of a call.
Value make_value(const Input& input, uint64_t seed, const Call& call, Memory& memory, void* stream);
void copy(void* to, const void* from, size_t bytes, void* stream);
void wait(void* stream);
std::vector<char> read(const Value& value, void* stream);

}  // namespace gpu_kernels
