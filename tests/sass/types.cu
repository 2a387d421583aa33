// The loop over a weight row alone, for each common type and number of activation rows: so that test_sass.py can tell
// the loads of one type from another's.
#include "blocks/few_products.cuh"

namespace trigraph::TRIGRAPH_ISA {

template <class F, int M>
__global__ void __launch_bounds__(kFewThreads) meet_rows(const uint8_t* data, FewTask task, int64_t width, float* y) {
  const int64_t x_bytes = task.row_bytes;
  const int lane = threadIdx.x % task.lanes;
  constexpr Layout kLayout = kPlain<F> ? Layout::float32 : Layout::int8;
  few_rows<F, kLayout, M>(data + blockIdx.x * task.row_bytes, width, lane, task.lanes, shared_memory(), x_bytes,
                          nullptr, nullptr, 0, M, y, task.rows);
}

template <class F>
constexpr void (*kAll[])(const uint8_t*, FewTask, int64_t, float*) = {meet_rows<F, 1>, meet_rows<F, 2>, meet_rows<F, 4>,
                                                                      meet_rows<F, 8>};
template <class... F>
void use(Types<F...>) {
  for (const auto* kernels : {kAll<F>...})
    launch(kernels[0], 1, kFewThreads, 0, nullptr, nullptr, FewTask{}, 0, nullptr);
}
void use_all() { use(CommonTypes()); }

}  // namespace trigraph::TRIGRAPH_ISA
