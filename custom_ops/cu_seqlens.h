// cu_seqlens, checked: where the rows of each sequence of a step start.
#pragma once

#include "kernel.h"

namespace trigraph::TRIGRAPH_ISA {

// Sequence s has the rows start[s] to start[s + 1], at least one.
struct SequenceStarts {
  const int32_t* start;
  int64_t count;

  SequenceStarts(const Tensor& cu_seqlens, int64_t rows)
      : start(cu_seqlens.as<const int32_t>()), count(cu_seqlens.dims[0] - 1) {
    cu_seqlens.expect({-1});
    if (count < 0) fail("input %s is empty", cu_seqlens.name);
    if (start[0] != 0) fail("input %s starts at %d, not at 0", cu_seqlens.name, start[0]);
    for (int64_t s = 0; s < count; ++s)
      if (start[s + 1] <= start[s])
        fail("input %s goes from %d to %d: sequence %lld has no rows", cu_seqlens.name, start[s], start[s + 1],
             static_cast<long long>(s));
    if (start[count] != rows)
      fail("input %s ends at %d, but there are %lld rows", cu_seqlens.name, start[count], static_cast<long long>(rows));
  }
};

}  // namespace trigraph::TRIGRAPH_ISA
