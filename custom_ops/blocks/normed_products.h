// Products of the norms of a few rows, and a choice of experts by one of them, in one launch.
#pragma once

#include "../rms_norm/device.h"
#include "../router/device.cuh"
#include "few_products.h"

namespace trigraph::TRIGRAPH_ISA {

// Whether so many rows of `width` and `other_width` fit into a block. `quantised`: whether some weight meets int8.
bool normed_fit(int64_t width, int64_t other_width, int64_t m, bool quantised);

// For weights of CommonTypes alone; the rows of `tasks` are norm.y, which is written too. The logits of `routing` are
// the output of task number `router`, or there is none: -1. `counter`: one, see cuda/last_block.cuh.
void normed_products(const FewTasks& tasks, const Norm& norm, int router, const Routing& routing, unsigned* counter,
                     cudaStream_t stream);

}  // namespace trigraph::TRIGRAPH_ISA
