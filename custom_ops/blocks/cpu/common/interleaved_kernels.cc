#include "../row_kernel.h"
#if defined(TRIGRAPH_ISA_avx2) || defined(TRIGRAPH_ISA_avx512)
#include "../dispatch.h"

namespace trigraph::TRIGRAPH_ISA {

template <class F>
void interleaved_panels(const uint8_t* w, int64_t n, int64_t row_bytes, int64_t width, const void* const* x, int64_t m,
                        float* const* y) {
  int8_panels<F>(Interleaved{w}, n, row_bytes, width, x, m, y);
}

template <class F>
void interleaved_product(const uint8_t* w, int64_t n, int64_t row_bytes, int64_t width, const void* const* x, int64_t m,
                         float* const* y) {
  static constexpr Product kKernels[] = {interleaved_panels<F>,   interleaved_lanes<F, 1>, interleaved_lanes<F, 2>,
                                         interleaved_lanes<F, 3>, interleaved_lanes<F, 4>, interleaved_lanes<F, 5>,
                                         interleaved_lanes<F, 6>, interleaved_lanes<F, 7>, interleaved_lanes<F, 8>};
  multiply(kKernels, kMany<F>, w, n, row_bytes, width, x, m, y);
}

template <class F>
constexpr RowKernel interleaved(const char* type) {
  return {{type, F::kDType, F::kBlock, F::kBytes, kRowLanes},
          int8_bytes<Int8Of<F>>,
          prepare_int8<Int8Of<F>>,
          interleaved_product<F>,
          nullptr};
}
const RowKernel* find_interleaved_kernel(const std::string& type) {
  static constexpr RowKernel kKernels[] = {interleaved<Q4_K>(TRIGRAPH_INTERLEAVED(Q4_K)),
                                           interleaved<Q5_K>(TRIGRAPH_INTERLEAVED(Q5_K)),
                                           interleaved<Q6_K>(TRIGRAPH_INTERLEAVED(Q6_K)),
                                           interleaved<Levels<IQ3_XXS>>(TRIGRAPH_INTERLEAVED(IQ3_XXS)),
                                           interleaved<Levels<IQ3_S>>(TRIGRAPH_INTERLEAVED(IQ3_S)),
                                           interleaved<Levels<IQ2_XXS>>(TRIGRAPH_INTERLEAVED(IQ2_XXS)),
                                           interleaved<Levels<IQ2_XS>>(TRIGRAPH_INTERLEAVED(IQ2_XS)),
                                           interleaved<Levels<IQ2_S>>(TRIGRAPH_INTERLEAVED(IQ2_S))};
  return find(kKernels, type);
}

}  // namespace trigraph::TRIGRAPH_ISA
#else

namespace trigraph::TRIGRAPH_ISA {

const RowKernel* find_interleaved_kernel(const std::string&) { return nullptr; }

}  // namespace trigraph::TRIGRAPH_ISA
#endif
