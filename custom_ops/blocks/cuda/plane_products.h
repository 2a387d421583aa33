// Products of prompts with weights as planes of bytes: another way than wide_products.cuh, for the tensor cores of
// sm_90.
#pragma once

#include "many_products.h"

namespace trigraph::TRIGRAPH_ISA {

// Whether so many rows without buckets meet weights so: with TRIGRAPH_PLANES=1, where the device can.
bool takes_planes(const ManyTasks& tasks, int64_t rows);
// Whether weights of that type, a number among CommonTypes, can be met so.
bool has_planes(int type);
// For such weights alone, in blocks of wide_columns.
void many_planes(const ManyTasks& tasks, int64_t rows, cudaStream_t stream);

}  // namespace trigraph::TRIGRAPH_ISA
