// Activation rows as the loops of Q8_0 take them: AVX2 and AVX-512.
#pragma once

#include <new>

#include "../../../scratch.h"
#include "activations.h"

namespace trigraph::TRIGRAPH_ISA {

struct Q8Supers;

// The super-blocks of M rows of x, each as a Super, those of all rows together. A row of half a super-block comes
// twice.
template <class Super, int M>
const Super* q8_supers(const void* const* x, int64_t width) {
  const int64_t count = supers(width);
  auto* all = static_cast<Super*>(scratch<Q8Supers>(static_cast<size_t>(M * count) * sizeof(Super)));
  Super* next = all;
  for (int64_t s = 0; s < count; ++s)
    for (int i = 0; i < M; ++i) {
      const Int8Blocks& own = static_cast<const Int8Blocks*>(x[i])[s];
      new (next++) Super(width < kSuper ? repeated(own) : own);
    }
  return all;
}

}  // namespace trigraph::TRIGRAPH_ISA
