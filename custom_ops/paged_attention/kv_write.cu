// PagedKVWrite on a device: normed and rotated keys, and values, of the step's tokens into their pages.
#include "device.cuh"

namespace trigraph::TRIGRAPH_ISA {
namespace {

constexpr int kThreads = 2 * kWarp;  // one warp for the key, one for the value

// grid: [rows, kv heads].
template <class T>
__global__ void __launch_bounds__(kThreads)
    write_entries(Ragged sequences, Rotation rotation, const float* k, const float* v, const float* norm, int width,
                  int stride, int key_rotation, int value_rotation, T* keys, T* values) {
  if (!sequences.holds()) return;
  float* head = reinterpret_cast<float*>(shared_memory());
  const int64_t row = blockIdx.x, heads = gridDim.y;
  const int s = sequences.sequence_of(row), lane = threadIdx.x % kWarp;
  const int64_t position = sequences.position_of(row, s);
  const int64_t from = (row * heads + blockIdx.y) * width;
  const int64_t to = (sequences.entry(s, position) * heads + blockIdx.y) * stride;
  if (threadIdx.x < kWarp) {
    norm_rotate(k + from, norm, rotation, position, width, 1.0f, head);
    write_head(head, width, key_rotation, keys + to);
  } else {
    head += width;
    for (int i = lane; i < width; i += kWarp) head[i] = v[from + i];
    __syncwarp();
    write_head(head, width, value_rotation, values + to);
  }
}

template <class T>
struct PagedKVWrite : PagedKVWriteSignature<T> {
  explicit PagedKVWrite(const KernelInfo& info) : rotary_(info) { check_cache_type<T>(info); }

  void compute(Context& context) const {
    const NewEntries in(context, rotary_);
    const CacheShape& cache = in.cache;
    const Ragged sequences(context.input(5), context.input(6), context.input(7), in.k.dims[0], cache, false,
                           Operator::paged_kv_write);
    const Tensor key = context.output_like(0, in.past_key), value = context.output_like(1, in.past_value);
    const cudaStream_t stream = stream_of(context);
    copy_other_buffer(in.past_key, key, sizeof(T), stream);
    copy_other_buffer(in.past_value, value, sizeof(T), stream);
    const dim3 grid(static_cast<unsigned>(in.k.dims[0]), static_cast<unsigned>(cache.heads));
    launch(write_entries<T>, grid, kThreads, static_cast<size_t>(2 * cache.width) * sizeof(float), stream, sequences,
           Rotation(rotary_), in.k.as<float>(), in.v.as<float>(), in.norm.as<float>(), cache.width, cache.stride,
           key_rotation(cache.width), value_rotation(cache.width), key.as<T>(), value.as<T>());
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

}  // namespace trigraph::TRIGRAPH_ISA
