// An operator's arguments as its signature declares them, and a tensor as a call brings it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <initializer_list>

#include "error.h"

namespace trigraph {

enum class DType : int { any = 0, f32 = 1, u8 = 2, i32 = 6, i64 = 7, f16 = 10, f64 = 11, bf16 = 16 };

struct Argument {
  const char* name;
  DType type;  // DType::any: checked by the kernel
  bool optional = false;
  bool on_host = false;  // in the host's memory, also where nodes are a GPU's
};

constexpr int kMaxRank = 6;

struct Tensor {
  const char* name = "";
  void* data = nullptr;
  DType type = DType::any;
  int rank = 0;
  int64_t dims[kMaxRank] = {};

  int64_t size() const {
    int64_t count = 1;
    for (int i = 0; i < rank; ++i) count *= dims[i];
    return count;
  }
  template <class T>
  T* as() const {
    return static_cast<T*>(data);
  }
  // Checks the shape; -1 matches any extent.
  void expect(std::initializer_list<int64_t> shape) const {
    bool same = rank == static_cast<int>(shape.size());
    int i = 0;
    if (same)
      for (int64_t d : shape) {
        same = same && (d < 0 || dims[i] == d);
        ++i;
      }
    if (same) return;
    char found[128], wanted[128];
    print(found, sizeof found, dims, rank);
    print(wanted, sizeof wanted, shape.begin(), static_cast<int>(shape.size()));
    fail("input %s has shape %s, expected %s", name, found, wanted);
  }

 private:
  static void print(char* out, size_t size, const int64_t* dims, int rank) {
    size_t n = std::snprintf(out, size, "[");
    for (int i = 0; i < rank && n < size; ++i)
      n += dims[i] < 0 ? std::snprintf(out + n, size - n, i ? ", *" : "*")
                       : std::snprintf(out + n, size - n, i ? ", %lld" : "%lld", static_cast<long long>(dims[i]));
    if (n < size) std::snprintf(out + n, size - n, "]");
  }
};

}  // namespace trigraph
