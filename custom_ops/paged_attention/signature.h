// The operators as a graph sees them: inputs, attributes and the shapes of cache and queries, checked. One kernel for
// each type of the cache, float32, float16 or blocks of bytes, because ONNX Runtime infers an output's type from a
// fixed input type only.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <type_traits>
#include <vector>

#include "../kernel.h"
#include "angles.h"

namespace trigraph::TRIGRAPH_ISA {

// A byte of a cache whose heads are Q8_0 blocks: of 32 elements a scale in half, then codes.
struct Q8 {
  uint8_t byte;
};
constexpr int kQ8Width = 32, kQ8Bytes = 34;

template <class T>
constexpr DType kCacheType = std::is_same_v<T, float> ? DType::f32
                             : std::is_same_v<T, Q8>  ? DType::u8
                                                      : DType::f16;

// Quantised heads are rotated first, by blocks of a Hadamard matrix / sqrt(its size), which spreads outliers; scores do
// not change when queries turn as keys do, and the values' rotation is undone after attention (llama.cpp #21038).
// Sizes of the blocks: the largest power of two that divides a head, 64 at most for values.
inline int64_t key_rotation(int64_t width) { return std::min<int64_t>(1024, width & -width); }
inline int64_t value_rotation(int64_t width) { return std::min<int64_t>(64, width & -width); }

// A node with a cache of bytes says what they are.
template <class T>
void check_cache_type(const KernelInfo& info) {
  if constexpr (std::is_same_v<T, Q8>)
    if (const std::string type = info.text("type"); type != "Q8_0")
      fail("attribute type is %s, and a cache of bytes holds Q8_0", type.c_str());
}

template <class T>
struct PagedKVWriteSignature {
  static constexpr DType kType = kCacheType<T>;
  static constexpr const char* kName = "PagedKVWrite";
  static constexpr Argument kInputs[] = {
      {"k", DType::f32},         {"v", DType::f32},          {"k_norm", DType::f32},
      {"past_key", kType},       {"past_value", kType},      {"cu_seqlens", DType::i32},
      {"past_lens", DType::i32}, {"page_table", DType::i32}, {"positions", DType::i32, true}};
  static constexpr Argument kOutputs[] = {{"present_key", kType}, {"present_value", kType}};
};

template <class T>
struct PagedAttentionSignature {
  static constexpr DType kType = kCacheType<T>;
  static constexpr const char* kName = "PagedAttention";
  static constexpr Argument kInputs[] = {
      {"q_gate", DType::f32},     {"q_norm", DType::f32},          {"key", kType},
      {"value", kType},           {"cu_seqlens", DType::i32},      {"past_lens", DType::i32},
      {"page_table", DType::i32}, {"positions", DType::i32, true}, {"groups", DType::i32, true}};
  static constexpr Argument kOutputs[] = {{"y", DType::f32}};
};

// Where rows stand on each axis of rotary embedding. Any number will do: where a row lies in its sequence, and what it
// sees, is said elsewhere.
struct AxisPositions {
  const int32_t* data;  // [3, rows], or nullptr: each row's place in its sequence, on all axes
  int64_t rows;
};

struct RotaryAttributes {
  static constexpr int64_t kMostDims = 1024;
  int64_t dims;
  double theta;
  float eps;
  RopeScaling scaling;
  bool by_axis;  // as `sections` say
  RopeSections sections{};

  explicit RotaryAttributes(const KernelInfo& info)
      : dims(info.integer("rope_dims")), theta(info.real("rope_theta")), eps(info.real("eps")), scaling(read(info)) {
    if (dims < 0 || dims % 2 != 0 || dims > kMostDims)
      fail("attribute rope_dims is %lld, not an even number from 0 to %lld", static_cast<long long>(dims),
           static_cast<long long>(kMostDims));
    if (!(theta > 0) || std::isinf(theta)) fail("attribute rope_theta is %g, not above 0 and finite", theta);
    if (!(eps >= 0)) fail("attribute eps is %g, below 0", static_cast<double>(eps));
    read_sections(info.integers("rope_sections"));
  }

  static RopeScaling read(const KernelInfo& info) {
    const float factor = info.real("rope_factor", 1), magnitude = info.real("rope_magnitude", 1);
    const int64_t start = info.integer("rope_ramp_start", 0), end = info.integer("rope_ramp_end", 0);
    if (!(factor >= 1) || std::isinf(factor)) fail("attribute rope_factor is %g, not at least 1", factor);
    if (!(magnitude > 0) || std::isinf(magnitude)) fail("attribute rope_magnitude is %g, not above 0", magnitude);
    return {factor, static_cast<double>(start), static_cast<double>(end), magnitude};
  }

  void read_sections(const std::vector<int64_t>& given) {
    by_axis = !given.empty();
    if (!by_axis) return;
    if (given.size() != 3) fail("attribute rope_sections has %zu numbers, expected 3", given.size());
    int64_t pairs = 0;
    for (int64_t n : given) {
      if (n < 0 || n > dims / 2)
        fail("attribute rope_sections holds %lld, outside 0 to %lld pairs", static_cast<long long>(n),
             static_cast<long long>(dims / 2));
      pairs += n;
    }
    if (pairs != dims / 2)
      fail("attribute rope_sections adds up to %lld pairs, but rope_dims has %lld", static_cast<long long>(pairs),
           static_cast<long long>(dims / 2));
    sections = {static_cast<int32_t>(given[1]), static_cast<int32_t>(given[2])};
  }

  // The input `positions` of a step with so many rows, or what stands for it.
  AxisPositions positions(const Tensor& given, int64_t rows) const {
    const bool absent = !given.rank;
    if (absent && by_axis) fail("input %s is missing, which attribute rope_sections needs", given.name);
    if (absent) return {nullptr, rows};
    if (!by_axis) fail("attribute rope_sections is missing, which input %s needs", given.name);
    given.expect({3, rows});
    return {given.as<int32_t>(), rows};
  }

  // Checks the norm weight, and that the head is wide enough to rotate.
  void check(const Tensor& norm, int64_t width) const {
    norm.expect({width});
    if (dims > width)
      fail("attribute rope_dims is %lld, more than the head dimension %lld", static_cast<long long>(dims),
           static_cast<long long>(width));
  }
};

// Geometry of a cache [pages, page size, kv heads, head], keys and values alike.
struct CacheShape {
  int64_t pages, page_size, heads, width;
  int64_t stride;  // elements of the tensor that hold a head: its width, or the bytes of its blocks

  CacheShape(const Tensor& key, const Tensor& value) {
    key.expect({-1, -1, -1, -1});
    value.expect({key.dims[0], key.dims[1], key.dims[2], key.dims[3]});
    pages = key.dims[0], page_size = key.dims[1], heads = key.dims[2], width = stride = key.dims[3];
    if (page_size < 1) fail("input %s has an empty page", key.name);
    if (heads < 1) fail("input %s has no heads", key.name);
    if (key.type == DType::u8) {
      if (stride < kQ8Bytes || stride % kQ8Bytes != 0)
        fail("input %s has %lld bytes a head, not a multiple of %d", key.name, static_cast<long long>(stride),
             kQ8Bytes);
      width = stride / kQ8Bytes * kQ8Width;
    }
    if (width < 16 || width % 16 != 0)
      fail("input %s has head dimension %lld, not a multiple of 16", key.name, static_cast<long long>(width));
  }
  int64_t columns() const { return heads * width; }  // of the rows of keys or values to write
  int64_t entry() const { return heads * stride; }   // elements of one position
};

// The inputs of a PagedKVWrite but for the sequences, checked.
struct NewEntries {
  Tensor k, v, norm, past_key, past_value;
  CacheShape cache;

  NewEntries(const Context& context, const RotaryAttributes& rotary)
      : k(context.input(0)),
        v(context.input(1)),
        norm(context.input(2)),
        past_key(context.input(3)),
        past_value(context.input(4)),
        cache(past_key, past_value) {
    k.expect({-1, cache.columns()});
    v.expect({k.dims[0], cache.columns()});
    rotary.check(norm, cache.width);
  }
};

// The input `groups` of a step, for groups of so many positions, checked but for its values.
inline void check_groups(const Tensor& groups, int64_t rows, int64_t size, int64_t page_size) {
  groups.expect({rows, -1});
  if (groups.dims[1] < 1) fail("input %s has no columns", groups.name);
  if (size < 1 || page_size % size)
    fail("attribute group is %lld, expected a divisor of the %lld positions of a page", static_cast<long long>(size),
         static_cast<long long>(page_size));
}

// What rows of a PagedAttention see and have beside a query, but for lists of groups.
struct SightAttributes {
  static constexpr int64_t kMostWindow = 1 << 30;
  bool gated;      // a head of q_gate has a gate behind its query
  bool causal;     // rows see positions up to their own; else up to their sequence's last one
  int64_t window;  // positions up to its own that a row sees; 0: all

  explicit SightAttributes(const KernelInfo& info)
      : gated(info.integer("gate", 1)), causal(info.integer("causal", 1)), window(info.integer("window", 0)) {
    if (window < 0 || window > kMostWindow)
      fail("attribute window is %lld, outside 0 to %lld", static_cast<long long>(window),
           static_cast<long long>(kMostWindow));
  }
  bool plain() const { return causal && !window; }
  int64_t parts() const { return gated ? 2 : 1; }  // of a head of q_gate
  // The first position that the row at a position sees.
  TRIGRAPH_EVERYWHERE int64_t first_seen(int64_t position) const {
    return window && position >= window ? position - window + 1 : 0;
  }

  void check(const Tensor& groups) const {
    if (groups.rank && !plain()) fail("input %s is for rows that see all positions up to their own", groups.name);
  }
  // Query heads of a kv head, by the columns of q_gate.
  int64_t query_group(const Tensor& q_gate, const CacheShape& cache) const {
    q_gate.expect({-1, -1});
    const int64_t columns = q_gate.dims[1], per_group = parts() * cache.columns();
    if (columns < per_group || columns % per_group != 0)
      fail("input %s has %lld columns, not a multiple of %lld x %lld kv heads x %lld dimensions", q_gate.name,
           static_cast<long long>(columns), static_cast<long long>(parts()), static_cast<long long>(cache.heads),
           static_cast<long long>(cache.width));
    return columns / per_group;
  }
};

}  // namespace trigraph::TRIGRAPH_ISA
