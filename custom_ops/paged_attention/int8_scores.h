// Scores of a cache of Q8_0 blocks, as products with int8 activations have it. The definition, which every instruction
// set and CUDA equal to the bit:
//
//   a query, normed, rotated and scaled, is rounded in blocks of 32 elements: scale = largest magnitude / 127, codes
//   x * (127 / largest magnitude) to nearest even; a block that is not finite has a scale of NaN, one whose largest
//   magnitude is at most 1e-36 counts as zero;
//   block b of query and key has the exact integer S = sum(code of the query * code of the key);
//   score = fma(scale of the query's block, d * float(S), score), in the order of blocks, from +0.
#pragma once

#include "split.h"

namespace trigraph::TRIGRAPH_ISA {

// Floats that a rounded query takes, in whole cache lines.
int64_t int8_query_floats(int64_t width);
// Rounds a query; `out` begins at a cache line.
void round_query(const float* q, int64_t width, float* out);
// scores[m][p], kSplit apart, of rounded queries [rows] with the heads at `entries` [positions]; further ones of a row
// may change. Memory is asked for the heads at entries + kAhead.
void int8_scores(const float* queries, int64_t rows, const Q8* const* entries, int64_t positions,
                 const CacheShape& cache, float* scores);

}  // namespace trigraph::TRIGRAPH_ISA
