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

  // Both heads, the norm, and what turns pairs.
  size_t shared_bytes() const { return static_cast<size_t>(4 * cache.width) * sizeof(float); }

  // Where a row's entry is in the cache; the number of a page that is none of it, or -1.
  struct Place {
    int64_t entry;
    int sequence, bad;
  };
  // Finds the place of a row, and makes what its key is normed and turned with; the whole block calls.
  __device__ Place begin(int64_t row) const {
    Place place{0, sequences.sequence_of(row), -1};
    const int64_t position = sequences.position_of(row, place.sequence);
    place.entry = sequences.entry(place.sequence, position, place.bad);
    if (threadIdx.x < kWarp) {
      rotation.make_turns(rotation.at(row, position), turns());
      for (int i = static_cast<int>(threadIdx.x); i < cache.width; i += kWarp) own_norm()[i] = norm[i];
      __syncwarp();
    }
    return place;
  }
  // Writes the entry of one row and head; the whole block calls.
  __device__ void write(const Place& place, int64_t row, int64_t kv_head) const {
    if (place.bad >= 0) return sequences.tell_page(place.sequence, place.bad);
    float* head = reinterpret_cast<float*>(shared_memory());
    const int lane = threadIdx.x % kWarp, width = static_cast<int>(cache.width);
    const int64_t from = (row * cache.heads + kv_head) * width;
    const int64_t to = (place.entry * cache.heads + kv_head) * cache.stride;
    if (threadIdx.x < kWarp) {
      const auto turn = [&](int i) { return turns()[i]; };
      norm_rotate(k + from, own_norm(), rotation, turn, width, 1.0f, head);
      write_head(head, width, key_rotation, keys + to);
    } else if (threadIdx.x < kThreads) {
      head += width;
      for (int i = lane; i < width; i += kWarp) head[i] = v[from + i];
      __syncwarp();
      write_head(head, width, value_rotation, values + to);
    }
  }

 private:
  __device__ float* own_norm() const { return reinterpret_cast<float*>(shared_memory()) + 2 * cache.width; }
  __device__ float2* turns() const { return reinterpret_cast<float2*>(own_norm() + cache.width); }
};

// grid: [rows, kv heads].
template <class T>
__global__ void __launch_bounds__(kThreads, kBlocksEach) write_entries(Entries<T> entries) {
  allow_next();
  const bool can_be = entries.sequences.can_be();
  typename Entries<T>::Place place{};
  if (can_be) place = entries.begin(blockIdx.x);
  await_previous();
  if (!can_be) return entries.sequences.tell();
  entries.write(place, blockIdx.x, blockIdx.y);
}

// grid: [rows, kv heads, and one more for the last rows].
template <class T>
__global__ void __launch_bounds__(kCopyThreads, kBlocksEach* kThreads / kCopyThreads)
    write_and_take_last(const __grid_constant__ Entries<T> entries, const __grid_constant__ Last last) {
  allow_next();
  const bool can_be = entries.sequences.can_be(), writes = blockIdx.y < entries.cache.heads;
  typename Entries<T>::Place place{};
  if (can_be && writes) place = entries.begin(blockIdx.x);
  await_previous();
  if (!can_be) return entries.sequences.tell();
  if (writes)
    entries.write(place, blockIdx.x, blockIdx.y);
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
  explicit PagedKVWrite(const KernelInfo& info) : rotary_(info), given_(info.integer(kGiven, 0)) {
    check_cache_type<T>(info);
  }

  void compute(Context& context) const {
    const Entries<T> entries = entries_of<T>(context, rotary_);
    const dim3 grid(static_cast<unsigned>(entries.sequences.rows), static_cast<unsigned>(entries.cache.heads));
    launch_step(given_ ? entries.sequences.rows : kEarlyRows + 1, write_entries<T>, grid, kThreads,
                entries.shared_bytes(), stream_of(context), entries);
  }

 private:
  RotaryAttributes rotary_;
  bool given_;
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

  explicit PagedKVWriteLastRows(const KernelInfo& info) : rotary_(info), given_(info.integer(kGiven, 0)) {
    check_cache_type<T>(info);
  }

  void compute(Context& context) const {
    const Entries<T> entries = entries_of<T>(context, rotary_);
    const Last last = last_of(context, context.input(5), context.input(6), context.input(9), context.input(10), 2);
    if (!last.starts.rows) fail("input x has no rows");
    const dim3 grid(static_cast<unsigned>(last.starts.rows), static_cast<unsigned>(entries.cache.heads + 1));
    launch_step(given_ ? entries.sequences.rows : kEarlyRows + 1, write_and_take_last<T>, grid, kCopyThreads,
                entries.shared_bytes(), stream_of(context), entries, last);
  }

 private:
  RotaryAttributes rotary_;
  bool given_;
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
