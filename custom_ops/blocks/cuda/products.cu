#include "many_products.cuh"

namespace trigraph::TRIGRAPH_ISA {
namespace {

template <class F, Layout kLayout>
int lanes_of(int64_t width) {
  if (kLayout == Layout::float32) return kWarp;
  int chains = kChains;
  while (chains > 1 && chains / 2 >= width / kStep<F>) chains /= 2;  // narrow rows share a warp
  return chains * kShare<F>;
}

// Where a row that is prepared has the form for type F.
template <class F, Layout kLayout>
int64_t form_offset(int64_t width) {
  return kLayout == Layout::int8 && F::kBlock != kSuper ? Int8Row::bytes(width) : 0;
}

template <class F, Layout kLayout>
Weights weights_of(const uint8_t* w, int64_t stride, int64_t n, int64_t row_bytes, int64_t width) {
  return {w, stride, n, row_bytes, width, lanes_of<F, kLayout>(width)};
}

template <class F, Layout kLayout>
void product(const uint8_t* w, int64_t n, int64_t row_bytes, int64_t width, const void* x, int64_t m, float* y,
             cudaStream_t stream) {
  const Weights weights = weights_of<F, kLayout>(w, 0, n, row_bytes, width);
  const char* rows = static_cast<const char*>(x) + form_offset<F, kLayout>(width);
  const int64_t x_bytes = prepared_bytes(kLayout, width);
  const auto parts = [m](int64_t most) {
    return static_cast<unsigned>(std::min<int64_t>(65535, (m + most - 1) / most));
  };
  const auto kernel = m == 1 ? products<F, kLayout, 2> : products<F, kLayout, kMostRows>;
  const dim3 grid(blocks_of(n, kThreads / weights.lanes), 1, parts(m == 1 ? 2 : kMostRows));
  launch(kernel, grid, kThreads, 0, stream, weights, rows, x_bytes, Buckets{}, m, y, nullptr, nullptr);
}

template <class F, Layout kLayout>
void grouped(const uint8_t* w, const uint8_t* second, int64_t stride, int64_t n, int64_t row_bytes, int64_t width,
             const void* x, const Buckets& buckets, int64_t max_buckets, int64_t pairs, float* y, float* second_y,
             cudaStream_t stream) {
  const Weights weights = weights_of<F, kLayout>(w, stride, n, row_bytes, width);
  const auto grid = [&](int64_t columns, unsigned parts) {
    return dim3(blocks_of(n, columns), static_cast<unsigned>(max_buckets), second ? 2 * parts : parts);
  };
  const char* rows = static_cast<const char*>(x) + form_offset<F, kLayout>(width);
  const int64_t x_bytes = prepared_bytes(kLayout, width);
  const bool few = pairs <= max_buckets;  // rows in most buckets: one or two
  const auto kernel = few ? products<F, kLayout, 2> : products<F, kLayout, kMostRows>;
  launch(kernel, grid(kThreads / weights.lanes, few ? 1 : 2), kThreads, 0, stream, weights, rows, x_bytes, buckets, 0,
         y, second, second_y);
}

// A block for a part of a row.
template <class F>
__global__ void unpack_rows(const uint8_t* table, int64_t count, int64_t row_bytes, int64_t width, const int64_t* ids,
                            float* y, ErrorRecord* record) {
  const int64_t row = blockIdx.x, at = int64_t{blockIdx.y} * kThreads + threadIdx.x, id = ids[row];
  if (id < 0 || id >= count) {
    if (at == 0) report(record, Operator::block_gather, Reason::gather_id, row, id, count);
    return;
  }
  if (at < width) y[row * width + at] = weight_at<F>(table + id * row_bytes, at);
}

template <class F>
void unpack(const uint8_t* table, int64_t count, int64_t row_bytes, int64_t width, const int64_t* ids, int64_t rows,
            float* y, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(rows), std::max(1u, blocks_of(width, kThreads)));
  launch(unpack_rows<F>, grid, kThreads, 0, stream, table, count, row_bytes, width, ids, y, error_record());
}

template <class F>
void few_of_type(const FewTasks& tasks, cudaStream_t stream) {
  launch_few(tasks, stream, Types<F>());
}

template <class F>
void many_of_type(const ManyTasks& tasks, const Buckets& buckets, int64_t max_buckets, int64_t rows,
                  cudaStream_t stream) {
  launch_many(tasks, buckets, max_buckets, rows, stream, Types<F>());
}

template <class F, Layout kLayout>
constexpr ProductKernel make_kernel() {
  constexpr int common = number_of<F>(CommonTypes());
  void (*few)(const FewTasks&, cudaStream_t) = nullptr;
  ManyProducts many = nullptr;
  if constexpr (common >= 0 && (kLayout == Layout::int8 || kPlain<F>))
    few = few_common, many = many_common;
  else if constexpr (kLayout == Layout::int8)
    few = few_of_type<F>, many = many_of_type<F>;
  return {{F::kName, F::kDType, F::kBlock, F::kBytes},
          kLayout,
          kLayout == Layout::float32 ? kNoForm
          : F::kBlock == kSuper      ? kBySupers
                                     : kByRuns,
          kPlain<F> ? kAlign<F> : 16,  // of copies
          few,
          many,
          common < 0 ? 0 : common,
          product<F, kLayout>,
          grouped<F, kLayout>,
          unpack<F>,
          lanes_of<F, kLayout>};
}

template <Layout kLayout, class... F>
const ProductKernel* find(const std::string& type, Types<F...>) {
  static constexpr ProductKernel all[] = {make_kernel<F, kLayout>()...};
  for (const ProductKernel& kernel : all)
    if (type == kernel.type) return &kernel;
  return nullptr;
}

}  // namespace

const ProductKernel& product_kernel(const std::string& type, const std::string& activations) {
  check_activations(activations);
  const ProductKernel* kernel = find<Layout::float32>(type, PlainTypes());
  if (!kernel)
    kernel = activations == "int8" ? find<Layout::int8>(type, BlockTypes()) : find<Layout::float32>(type, BlockTypes());
  if (kernel) return *kernel;
  fail_type(type);
}

}  // namespace trigraph::TRIGRAPH_ISA
