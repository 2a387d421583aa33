// A function of another library: it takes handles that are made and given back, and fails for everything else.
#pragma once

#include <cstdint>

extern "C" intptr_t fake_cuda_stand_in(const char* name, void** first);

#define STAND_IN(name)                                                            \
  extern "C" __attribute__((visibility("default"))) intptr_t name(void** first) { \
    return fake_cuda_stand_in(#name, first);                                      \
  }
