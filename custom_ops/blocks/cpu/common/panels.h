// int8 products by panels, panel_kernels.cc: AVX2 and AVX-512.
#pragma once

#include "interleaved.h"

namespace trigraph::TRIGRAPH_ISA {

// Types that go by panels whenever a RowLoop does not take them: few files have them, and to find their codes takes
// longer than the products.
template <class F>
constexpr bool kRare = is_one_of<F>(Types<IQ3_S, IQ3_XXS, IQ2_S, IQ2_XS, IQ2_XXS, IQ1_M, IQ1_S, TQ2_0, TQ1_0>());
// Types of which many rows do.
template <class F>
constexpr bool kManyByPanels = is_one_of<F>(RareTypes()) && !std::is_same_v<F, Q4_0>;

// Products of weights as in a file (At is const uint8_t*) or interleaved, with up to kGroup activation rows.
template <class F, class At>
void int8_panels(At w, int64_t n, int64_t row_bytes, int64_t width, const void* const* x, int64_t m, float* const* y);

}  // namespace trigraph::TRIGRAPH_ISA
