// PagedKVWrite on a device: normed and rotated keys, and values, of the step's tokens into their pages; and the same
// with LastRows in one launch.
#include "../rows/sequences.cuh"
#include "heads.cuh"

namespace trigraph::TRIGRAPH_ISA {
namespace {

constexpr int kThreads = 2 * kWarp;  // one warp for the key, one for the value
constexpr int kCopyThreads = 256;    // of a block that copies rows
constexpr int kBlocksEach = 16;      // of a multiprocessor: else the compiler saves registers, and spills

template <class T>
struct Entries {
  Ragged sequences;
  Rotation rotation;
  const float *k, *v, *norm;
  CacheShape cache;
  int key_rotation, value_rotation;
  T *keys, *values;

  size_t shared_bytes() const { return static_cast<size_t>(2 * cache.width) * sizeof(float); }

  // Writes the entry of one row and head; the whole block calls.
  __device__ void write(int64_t row, int64_t kv_head) const {
    float* head = reinterpret_cast<float*>(shared_memory());
    const int s = sequences.sequence_of(row), lane = threadIdx.x % kWarp, width = static_cast<int>(cache.width);
    const int64_t position = sequences.position_of(row, s);
    const int64_t from = (row * cache.heads + kv_head) * width;
    const int64_t entry = sequences.entry(s, position), to = (entry * cache.heads + kv_head) * cache.stride;
    if (entry < 0) return;
    if (threadIdx.x < kWarp) {
      norm_rotate(k + from, norm, rotation, rotation.at(row, position), width, 1.0f, head);
      write_head(head, width, key_rotation, keys + to);
    } else if (threadIdx.x < kThreads) {
      head += width;
      for (int i = lane; i < width; i += kWarp) head[i] = v[from + i];
      __syncwarp();
      write_head(head, width, value_rotation, values + to);
    }
  }
};

// grid: [rows, kv heads].
template <class T>
__global__ void __launch_bounds__(kThreads, kBlocksEach) write_entries(Entries<T> entries) {
  allow_next();
  await_previous();
  if (entries.sequences.holds()) entries.write(blockIdx.x, blockIdx.y);
}

// grid: [rows, kv heads, and one more for the last rows].
template <class T>
__global__ void __launch_bounds__(kCopyThreads, kBlocksEach* kThreads / kCopyThreads)
    write_and_take_last(const __grid_constant__ Entries<T> entries, const __grid_constant__ Last last) {
  allow_next();
  await_previous();
  if (!entries.sequences.holds()) return;
  if (blockIdx.y < entries.cache.heads)
    entries.write(blockIdx.x, blockIdx.y);
  else if (static_cast<int>(blockIdx.x) < last.starts.sequences)
    last.take(blockIdx.x);
}

// The operator's inputs and outputs, checked, and the copies of a cache that comes out in another buffer.
template <class T>
Entries<T> entries_of(const Context& context, const RotaryAttributes& rotary) {
  const NewEntries in(context, rotary);
  const CacheShape& cache = in.cache;
  const Ragged sequences(context.input(5), context.input(6), context.input(7), in.k.dims[0], cache,
                         Operator::paged_kv_write);
  const AxisPositions positions = rotary.positions(context.input(8), in.k.dims[0]);
  const Tensor key = context.output_like(0, in.past_key), value = context.output_like(1, in.past_value);
  copy_other_buffer(in.past_key, key, sizeof(T), stream_of(context));
  copy_other_buffer(in.past_value, value, sizeof(T), stream_of(context));
  return {sequences,
          Rotation(rotary, positions),
          in.k.as<float>(),
          in.v.as<float>(),
          in.norm.as<float>(),
          cache,
          static_cast<int>(key_rotation(cache.width)),
          static_cast<int>(value_rotation(cache.width)),
          key.as<T>(),
          value.as<T>()};
}

template <class T>
struct PagedKVWrite : PagedKVWriteSignature<T> {
  explicit PagedKVWrite(const KernelInfo& info) : rotary_(info) { check_cache_type<T>(info); }

  void compute(Context& context) const {
    const Entries<T> entries = entries_of<T>(context, rotary_);
    const dim3 grid(static_cast<unsigned>(entries.sequences.rows), static_cast<unsigned>(entries.cache.heads));
    launch_step(entries.sequences.rows, write_entries<T>, grid, kThreads, entries.shared_bytes(), stream_of(context),
                entries);
  }

 private:
  RotaryAttributes rotary_;
};

// PagedKVWrite, and LastRows of the same step.
template <class T>
struct PagedKVWriteLastRows {
  static constexpr DType kType = kCacheType<T>;
  static constexpr const char* kName = "PagedKVWriteLastRows";
  static constexpr Argument kInputs[] = {
      {"k", DType::f32},         {"v", DType::f32},          {"k_norm", DType::f32},
      {"past_key", kType},       {"past_value", kType},      {"cu_seqlens", DType::i32},
      {"past_lens", DType::i32}, {"page_table", DType::i32}, {"positions", DType::i32, true},
      {"x", DType::f32},         {"also", DType::f32, true}};
  static constexpr Argument kOutputs[] = {{"present_key", kType},          {"present_value", kType},
                                          {"last_cu_seqlens", DType::i32}, {"last_past_lens", DType::i32},
                                          {"last_x", DType::f32},          {"last_also", DType::f32, true}};

  explicit PagedKVWriteLastRows(const KernelInfo& info) : rotary_(info) { check_cache_type<T>(info); }

  void compute(Context& context) const {
    const Entries<T> entries = entries_of<T>(context, rotary_);
    const Last last = last_of(context, context.input(5), context.input(6), context.input(9), context.input(10), 2);
    if (!last.starts.rows) fail("input x has no rows");
    const dim3 grid(static_cast<unsigned>(last.starts.rows), static_cast<unsigned>(entries.cache.heads + 1));
    launch_step(entries.sequences.rows, write_and_take_last<T>, grid, kCopyThreads, entries.shared_bytes(),
                stream_of(context), entries, last);
  }

 private:
  RotaryAttributes rotary_;
};

}  // namespace

const OrtCustomOp* paged_kv_write_f16() {
  static const Op<Checked<PagedKVWrite<__half>>> op;
  return &op;
}
const OrtCustomOp* paged_kv_write_f32() {
  static const Op<Checked<PagedKVWrite<float>>> op;
  return &op;
}

const OrtCustomOp* paged_kv_write_q8_0() {
  static const Op<Checked<PagedKVWrite<Q8>>> op;
  return &op;
}
const OrtCustomOp* paged_kv_write_last_rows_f16() {
  static const Op<Checked<PagedKVWriteLastRows<__half>>> op;
  return &op;
}
const OrtCustomOp* paged_kv_write_last_rows_f32() {
  static const Op<Checked<PagedKVWriteLastRows<float>>> op;
  return &op;
}

const OrtCustomOp* paged_kv_write_last_rows_q8_0() {
  static const Op<Checked<PagedKVWriteLastRows<Q8>>> op;
  return &op;
}

}  // namespace trigraph::TRIGRAPH_ISA
