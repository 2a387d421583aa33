// PagedKVWrite: normed and rotated keys, and values, of the step's tokens into their pages.
#include <algorithm>
#include <cstring>

#include "../kernel.h"
#include "../simd.h"
#include "entry.h"
#include "ragged.h"
#include "rotary.h"

namespace trigraph::TRIGRAPH_ISA {
namespace {

template <class T>
struct PagedKVWrite : PagedKVWriteSignature<T> {
  explicit PagedKVWrite(const KernelInfo& info) : rotary_(info) { check_cache_type<T>(info); }

  void compute(Context& context) const {
    const NewEntries in(context, rotary_);
    const CacheShape& cache = in.cache;
    const Sequences sequences(context.input(5), context.input(6), context.input(7), in.k.dims[0], cache, false);
    const AxisPositions positions = rotary_.positions(context.input(8), in.k.dims[0]);
    T* keys = context.output_like(0, in.past_key).as<T>();
    T* values = context.output_like(1, in.past_value).as<T>();
    copy_cache(context, cache, in.past_key.as<const T>(), keys, in.past_value.as<const T>(), values);
    const std::vector<Run> runs = sequences.runs(kRowsPerTask);
    context.parallel_for(static_cast<int64_t>(runs.size()), [&](int64_t task) {
      struct Memory;
      const Run& run = runs[task];
      const int64_t angle_size = rotary_.angle_size();
      auto* head = static_cast<float*>(scratch<Memory>((cache.width + run.count * angle_size) * sizeof(float)));
      float* angles = head + cache.width;
      rotary_.angles(run, positions, angles);
      for (int64_t i = 0; i < run.count; ++i) {
        const float *k = in.k.as<float>() + (run.row + i) * cache.columns(),
                    *v = in.v.as<float>() + (run.row + i) * cache.columns();
        const int64_t to = sequences.entry(run.sequence, run.position + i) * cache.entry();
        for (int64_t h = 0; h < cache.heads; ++h) {
          rotary_.apply(k + h * cache.width, in.norm.as<float>(), angles + i * angle_size, cache.width, 1.0f, head);
          write_head(head, cache.width, key_rotation(cache.width), keys + to + h * cache.stride);
          std::memcpy(head, v + h * cache.width, static_cast<size_t>(cache.width) * sizeof(float));
          write_head(head, cache.width, value_rotation(cache.width), values + to + h * cache.stride);
        }
      }
    });
  }

 private:
  // A host that binds other buffers than the past ones gets the whole cache in them.
  static void copy_cache(const Context& context, const CacheShape& cache, const T* past_key, T* key,
                         const T* past_value, T* value) {
    if (past_key == key && past_value == value) return;
    const int64_t page = cache.page_size * cache.entry();
    context.parallel_for(cache.pages, [&](int64_t i) {
      if (past_key != key) std::memcpy(key + i * page, past_key + i * page, page * sizeof(T));
      if (past_value != value) std::memcpy(value + i * page, past_value + i * page, page * sizeof(T));
    });
  }

  static constexpr int64_t kRowsPerTask = 16;
  Rotary rotary_;
};

}  // namespace

const OrtCustomOp* paged_kv_write_f16() {
  static const Op<PagedKVWrite<uint16_t>> op;
  return &op;
}
const OrtCustomOp* paged_kv_write_f32() {
  static const Op<PagedKVWrite<float>> op;
  return &op;
}
const OrtCustomOp* paged_kv_write_q8_0() {
  static const Op<PagedKVWrite<Q8>> op;
  return &op;
}

}  // namespace trigraph::TRIGRAPH_ISA
