// The operators as a graph sees them: index keys in pages, and the groups of positions that rows choose by them.
#pragma once

#include "../paged_attention/signature.h"

namespace trigraph::TRIGRAPH_ISA {

// Writes the keys of positions: of the last one of a group the pooled, normed and rotated key of all, of others the raw
// one.
template <class T>
struct PagedIndexWriteSignature {
  static constexpr DType kType = kCacheType<T>;
  static constexpr const char* kName = "PagedIndexWrite";
  static constexpr Argument kInputs[] = {{"k", DType::f32},         {"k_norm", DType::f32},
                                         {"past_index", kType},     {"cu_seqlens", DType::i32},
                                         {"past_lens", DType::i32}, {"page_table", DType::i32}};
  static constexpr Argument kOutputs[] = {{"present_index", kType}};
};

// The groups that each row sees, ascending, then -1.
template <class T>
struct PagedSelectSignature {
  static constexpr DType kType = kCacheType<T>;
  static constexpr const char* kName = "PagedSelect";
  static constexpr Argument kInputs[] = {{"q", DType::f32},         {"q_norm", DType::f32},
                                         {"index", kType},          {"cu_seqlens", DType::i32},
                                         {"past_lens", DType::i32}, {"page_table", DType::i32}};
  static constexpr Argument kOutputs[] = {{"groups", DType::i32}};
};

// How many heads queries [rows, heads * width] have.
inline int64_t query_heads(const Tensor& q, const CacheShape& shape) {
  q.expect({-1, -1});
  if (!q.dims[1] || q.dims[1] % shape.width)
    fail("input q has %lld columns, expected a multiple of %lld", static_cast<long long>(q.dims[1]),
         static_cast<long long>(shape.width));
  return q.dims[1] / shape.width;
}

// How many groups a row sees at most.
inline int64_t attribute_top(const KernelInfo& info) {
  const int64_t top = info.integer("top");
  if (top < 1) fail("attribute top is %lld, expected at least 1", static_cast<long long>(top));
  return top;
}

// An index [pages, page size, head] as a cache of one head.
inline CacheShape index_shape(const Tensor& index, int64_t group) {
  index.expect({-1, -1, -1});
  Tensor cache = index;
  cache.rank = 4, cache.dims[3] = index.dims[2], cache.dims[2] = 1;
  const CacheShape shape(cache, cache);
  if (group < 1 || shape.page_size % group)
    fail("attribute group is %lld, expected a divisor of the %lld positions of a page", static_cast<long long>(group),
         static_cast<long long>(shape.page_size));
  return shape;
}

}  // namespace trigraph::TRIGRAPH_ISA
