// PagedIndexWrite on a device: a warp for each row.
#include "../paged_attention/heads.cuh"
#include "signature.h"

namespace trigraph::TRIGRAPH_ISA {
namespace {

constexpr int kRows = 4;  // of a block
constexpr int kThreads = kRows * kWarp;
constexpr int kBlocksEach = 8;    // of a multiprocessor: else the compiler saves registers, and spills
constexpr int kMostWidth = 1024;  // of a key

template <class T>
struct IndexEntries {
  Ragged sequences;
  Rotation rotation;
  const float *k, *norm;
  T* index;
  int width, group;

  // Writes the key of one row; `key` [width] is the warp's.
  __device__ void write(int64_t row, float* key) const {
    const int s = sequences.sequence_of(row), lane = threadIdx.x % kWarp;
    const int64_t position = sequences.position_of(row, s), entry = sequences.entry(s, position);
    if (entry < 0) return;
    const float* own = k + row * width;
    T* to = index + entry * width;
    const int before = static_cast<int>(position % group);  // of its group
    if (before < group - 1) {
      for (int i = lane; i < width; i += kWarp) narrow(own[i], to + i);
      return;
    }
    // The mean of the group's raw keys, in order: the earlier ones as they are stored, in the same page, or will be
    // where they are rows of the step.
    const int64_t in_step = row - sequences.starts[s];
    const float part = 1 / static_cast<float>(group);
    for (int i = lane; i < width; i += kWarp) {
      float sum = 0;
      for (int n = before; n; --n) {
        T stored;
        if (n <= in_step)
          narrow(own[i - n * width], &stored);
        else
          stored = to[i - n * width];
        sum = n == before ? widen(stored) : sum + widen(stored);
      }
      key[i] = (before ? sum + own[i] : own[i]) * part;
    }
    const auto turn = [&](int i) { return rotation.turn(i, static_cast<int>(position - before)); };
    norm_rotate(key, norm, rotation, turn, width, 1.0f, key);
    for (int i = lane; i < width; i += kWarp) narrow(key[i], to + i);
  }
};

// grid: kRows rows each.
template <class T>
__global__ void __launch_bounds__(kThreads, kBlocksEach) write_index(const __grid_constant__ IndexEntries<T> entries) {
  allow_next();
  await_previous();
  if (!entries.sequences.holds()) return;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int64_t row = int64_t{blockIdx.x} * kRows + warp;
  if (row < entries.sequences.rows)
    entries.write(row, reinterpret_cast<float*>(shared_memory()) + warp * entries.width);
}

template <class T>
struct PagedIndexWrite : PagedIndexWriteSignature<T> {
  explicit PagedIndexWrite(const KernelInfo& info) : rotary_(info), group_(info.integer("group")) {}

  void compute(const Context& context) const {
    const Tensor k = context.input(0), norm = context.input(1), past = context.input(2);
    const CacheShape shape = index_shape(past, group_);
    k.expect({-1, shape.width});
    rotary_.check(norm, shape.width);
    if (shape.width > kMostWidth)
      fail("input k has %lld columns; on a GPU they are at most %d", static_cast<long long>(shape.width), kMostWidth);
    const int64_t rows = k.dims[0];
    const Ragged sequences(context.input(3), context.input(4), context.input(5), rows, shape,
                           Operator::paged_index_write);
    const Tensor index = context.output_like(0, past);
    const cudaStream_t stream = stream_of(context);
    copy_other_buffer(past, index, sizeof(T), stream);
    if (!rows) return;
    if (!shape.pages) fail("input past_index has no pages");
    const IndexEntries<T> entries{
        sequences,     Rotation(rotary_, {nullptr, rows}), k.as<float>(),           norm.as<float>(),
        index.as<T>(), static_cast<int>(shape.width),      static_cast<int>(group_)};
    launch_step(rows, write_index<T>, blocks_of(rows, kRows), kThreads,
                static_cast<size_t>(kRows * shape.width) * sizeof(float), stream, entries);
  }

 private:
  RotaryAttributes rotary_;
  int64_t group_;
};

}  // namespace

const OrtCustomOp* paged_index_write_f16() {
  static const Op<Checked<PagedIndexWrite<__half>>> op;
  return &op;
}
const OrtCustomOp* paged_index_write_f32() {
  static const Op<Checked<PagedIndexWrite<float>>> op;
  return &op;
}

}  // namespace trigraph::TRIGRAPH_ISA
