// ONNX's own operators, as far as our graphs have them (domain trigraph.cuda): so no step needs a kernel of ONNX
// Runtime's.
#include "kernel.h"

namespace trigraph::TRIGRAPH_ISA {
namespace {

constexpr int kThreads = 256;

// Changes the shape alone: the output is the input's own memory, unless it is a result of the graph.
template <class T, DType kType>
struct Reshape {
  static constexpr const char* kName = "Reshape";
  static constexpr Argument kInputs[] = {{"data", kType}, {"shape", DType::i64, false, true}};
  static constexpr Argument kOutputs[] = {{"reshaped", kType}};

  explicit Reshape(const KernelInfo&) {}

  void compute(const Context& context) const {
    const Tensor x = context.input(0), shape = context.input(1);
    shape.expect({-1});
    if (shape.dims[0] > kMaxRank)
      fail("input shape has %lld values, more than %d", as_printed(shape.dims[0]), kMaxRank);
    Tensor like = x;
    like.rank = static_cast<int>(shape.dims[0]);
    int free = -1;
    int64_t known = 1;
    for (int i = 0; i < like.rank; ++i) {
      like.dims[i] = shape.as<int64_t>()[i];
      if (like.dims[i] < 0)
        free = i;
      else
        known *= like.dims[i];
    }
    if (free >= 0) like.dims[free] = known ? x.size() / known : 0;
    if (like.size() != x.size())
      fail("input data has %lld values, which input shape does not divide", as_printed(x.size()));
    const Tensor y = context.output_like(0, like);
    if (y.data == x.data || !x.size()) return;
    check(cudaMemcpyAsync(y.data, x.data, static_cast<size_t>(x.size()) * sizeof(T), cudaMemcpyDeviceToDevice,
                          stream_of(context)),
          "a copy of rows");
  }

 private:
  static long long as_printed(int64_t value) { return static_cast<long long>(value); }
};

// grid: blocks of values.
template <class T>
__global__ void __launch_bounds__(kThreads) gather(const T* data, int64_t width, const int64_t* indices, int64_t taken,
                                                   int64_t count, ErrorRecord* record, T* y) {
  const int64_t at = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (at >= count) return;
  const int64_t row = at / taken, i = at % taken, index = indices[i];
  if (index < 0 || index >= width) return report(record, Operator::gather, Reason::gather_index, i, index, width);
  y[at] = data[row * width + index];
}

// Takes values of a vector, or columns of rows.
template <class T, DType kType>
struct Gather {
  static constexpr const char* kName = "Gather";
  static constexpr Argument kInputs[] = {{"data", kType}, {"indices", DType::i64}};
  static constexpr Argument kOutputs[] = {{"output", kType}};

  explicit Gather(const KernelInfo& info) : axis_(info.integer("axis", 0)) {}

  void compute(const Context& context) const {
    const Tensor data = context.input(0), indices = context.input(1);
    if (axis_ ? data.rank != 2 || indices.rank != 1 : data.rank != 1)
      fail("input data has %d dimensions, and attribute axis is %lld", data.rank, static_cast<long long>(axis_));
    const int64_t rows = axis_ ? data.dims[0] : 1, width = data.dims[axis_ ? 1 : 0], count = rows * indices.size();
    T* y = (axis_ ? context.output(0, {rows, indices.dims[0]}) : context.output_like(0, indices)).template as<T>();
    if (!count) return;
    launch(gather<T>, blocks_of(count, kThreads), kThreads, 0, stream_of(context), data.as<T>(), width,
           indices.as<int64_t>(), indices.size(), count, error_record(), y);
  }

 private:
  int64_t axis_;
};

// grid: rows.
__global__ void __launch_bounds__(kThreads)
    scatter_rows(const float* x, const int64_t* places, int64_t count, const float* rows, int64_t width,
                 ErrorRecord* record, float* y) {
  __shared__ int found;
  const int64_t row = blockIdx.x;
  if (threadIdx.x == 0) found = -1;
  __syncthreads();
  bool bad = false;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) {
    if (places[i] == row) atomicMax(&found, i);
    if (places[i] >= 0 && places[i] < gridDim.x) continue;
    bad = true;
    report(record, Operator::scatter_nd, Reason::gather_index, i, places[i], gridDim.x);
  }
  if (__syncthreads_or(bad)) return;
  const float* from = found < 0 ? x + row * width : rows + found * width;
  for (int64_t i = threadIdx.x; i < width; i += kThreads) y[row * width + i] = from[i];
}

// Puts rows in the place of some: of equal places the last one counts.
struct ScatterND {
  static constexpr const char* kName = "ScatterND";
  static constexpr Argument kInputs[] = {{"data", DType::f32}, {"indices", DType::i64}, {"updates", DType::f32}};
  static constexpr Argument kOutputs[] = {{"output", DType::f32}};

  explicit ScatterND(const KernelInfo&) {}

  void compute(const Context& context) const {
    const Tensor x = context.input(0), places = context.input(1), rows = context.input(2);
    x.expect({-1, -1});
    places.expect({-1, 1});
    rows.expect({places.dims[0], x.dims[1]});
    const Tensor y = context.output_like(0, x);
    if (!x.size()) return;
    launch(scatter_rows, static_cast<unsigned>(x.dims[0]), kThreads, 0, stream_of(context), x.as<float>(),
           places.as<int64_t>(), places.dims[0], rows.as<float>(), x.dims[1], error_record(), y.as<float>());
  }
};

struct Mul {
  static constexpr const char* kName = "Mul";
  static __device__ float of(float x, float other) { return x * other; }
};
struct Div {
  static constexpr const char* kName = "Div";
  static __device__ float of(float x, float other) { return x / other; }
};
struct Tanh {
  static constexpr const char* kName = "Tanh";
  static __device__ float of(float x, float) { return tanhf(x); }
};

// grid: blocks of values. `other`: nullptr, one value, or as many.
template <class Function>
__global__ void __launch_bounds__(kThreads)
    each_value(const float* x, const float* other, bool single, int64_t count, float* y) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < count) y[i] = Function::of(x[i], other ? other[single ? 0 : i] : 0.0f);
}

template <class Function>
struct Elementwise {
  static constexpr const char* kName = Function::kName;
  static constexpr Argument kInputs[] = {{"a", DType::f32}, {"b", DType::f32, true}};
  static constexpr Argument kOutputs[] = {{"c", DType::f32}};

  explicit Elementwise(const KernelInfo&) {}

  void compute(const Context& context) const {
    const Tensor x = context.input(0), other = context.input(1);
    const int64_t count = x.size(), values = other.data ? other.size() : 1;
    if (values != 1 && values != count)
      fail("input b has %lld values, expected 1 or %lld", static_cast<long long>(values),
           static_cast<long long>(count));
    const Tensor y = context.output_like(0, x);
    if (!count) return;
    launch(each_value<Function>, blocks_of(count, kThreads), kThreads, 0, stream_of(context), x.as<float>(),
           other.as<float>(), values == 1, count, y.as<float>());
  }
};

template <class Kernel>
const OrtCustomOp* op() {
  static const Op<Checked<Kernel>> made;
  return &made;
}

// Whose output is its input.
template <class Kernel>
const OrtCustomOp* op_in_place() {
  struct InPlace : Op<Checked<Kernel>> {
    InPlace() {
      this->GetAliasMap = [](int** inputs, int** outputs) {
        static int first = 0;
        *inputs = *outputs = &first;
        return size_t{1};
      };
      this->ReleaseAliasMap = [](int*, int*) {};
    }
  };
  static const InPlace made;
  return &made;
}

}  // namespace

std::vector<const OrtCustomOp*> standard_operators() {
  return {op_in_place<Reshape<float, DType::f32>>(),
          op_in_place<Reshape<int64_t, DType::i64>>(),
          op<Gather<float, DType::f32>>(),
          op<Gather<int64_t, DType::i64>>(),
          op<ScatterND>(),
          op<Elementwise<Mul>>(),
          op<Elementwise<Div>>(),
          op<Elementwise<Tanh>>()};
}

}  // namespace trigraph::TRIGRAPH_ISA
