// The order of a sum over the D rows of a state: in four bands of D / 4 rows, each from zero and in ascending order,
// that are joined as (0 + 1) + (2 + 3). A device makes the bands at the same time.
#pragma once

namespace trigraph::TRIGRAPH_ISA {

constexpr int kBands = 4;

}  // namespace trigraph::TRIGRAPH_ISA
