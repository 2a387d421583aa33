// The sequences of a step and where their positions lie in the paged cache: cu_seqlens, past_lens and page_table,
// checked.
#pragma once

#include <algorithm>
#include <vector>

#include "signature.h"

namespace trigraph::TRIGRAPH_ISA {

// Consecutive rows of one sequence.
struct Run {
  int64_t sequence, row, count, position;  // row and position of the first one
};

class Sequences {
 public:
  // `rows` is what cu_seqlens must add up to. Page ids are checked for the positions that the step touches: its own, or
  // all from 0 on when `whole`; what stands in the rest of the table is not looked at.
  Sequences(const Tensor& cu_seqlens, const Tensor& past_lens, const Tensor& page_table, int64_t rows,
            const CacheShape& cache, bool whole)
      : page_size_(cache.page_size) {
    cu_seqlens.expect({-1});
    if (cu_seqlens.dims[0] < 1) fail("input %s is empty", cu_seqlens.name);
    count_ = cu_seqlens.dims[0] - 1;
    past_lens.expect({count_});
    page_table.expect({count_, -1});
    columns_ = page_table.dims[1];
    starts_ = cu_seqlens.as<const int32_t>();
    past_ = past_lens.as<const int32_t>();
    table_ = page_table.as<const int32_t>();
    if (starts_[0] != 0) fail("input %s starts at %d, not at 0", cu_seqlens.name, starts_[0]);
    for (int64_t s = 0; s < count_; ++s) {
      const auto index = static_cast<long long>(s);
      if (starts_[s + 1] <= starts_[s])
        fail("input %s goes from %d to %d: sequence %lld has no rows", cu_seqlens.name, starts_[s], starts_[s + 1],
             index);
      if (past_[s] < 0) fail("input %s[%lld] is %d, below 0", past_lens.name, index, past_[s]);
    }
    if (starts_[count_] != rows)
      fail("input %s ends at %d, but there are %lld rows", cu_seqlens.name, starts_[count_],
           static_cast<long long>(rows));
    for (int64_t s = 0; s < count_; ++s) check_pages(page_table, s, whole ? 0 : past_[s], cache.pages);
  }

  int64_t longest() const {
    int64_t most = 0;
    for (int64_t s = 0; s < count_; ++s) most = std::max(most, length(s));
    return most;
  }
  // All rows, in order, in runs of at most `most`.
  std::vector<Run> runs(int64_t most) const {
    std::vector<Run> all;
    for (int64_t s = 0; s < count_; ++s)
      for (int64_t i = 0; i < length(s); i += most)
        all.push_back({s, starts_[s] + i, std::min(most, length(s) - i), past_[s] + i});
    return all;
  }
  // The position of a sequence's first row, and of its last one.
  int64_t first_position(int64_t s) const { return past_[s]; }
  int64_t last_position(int64_t s) const { return past_[s] + length(s) - 1; }
  int64_t page_size() const { return page_size_; }
  // Index of a position's entry in the cache seen as [pages * page size] entries.
  int64_t entry(int64_t s, int64_t position) const {
    return table_[s * columns_ + position / page_size_] * page_size_ + position % page_size_;
  }

 private:
  int64_t length(int64_t s) const { return int64_t{starts_[s + 1]} - starts_[s]; }

  void check_pages(const Tensor& page_table, int64_t s, int64_t first, int64_t pages) const {
    const int64_t last = last_position(s);
    const auto index = static_cast<long long>(s);
    if (last / page_size_ >= columns_)
      fail("input %s has %lld columns of %lld positions, too few for position %lld of sequence %lld", page_table.name,
           static_cast<long long>(columns_), static_cast<long long>(page_size_), static_cast<long long>(last), index);
    for (int64_t p = first / page_size_; p <= last / page_size_; ++p) {
      const int32_t id = table_[s * columns_ + p];
      if (id < 0 || id >= pages)
        fail("input %s[%lld][%lld] is page %d, outside [0, %lld)", page_table.name, index, static_cast<long long>(p),
             id, static_cast<long long>(pages));
    }
  }

  int64_t count_ = 0, columns_ = 0, page_size_;
  const int32_t *starts_ = nullptr, *past_ = nullptr, *table_ = nullptr;
};

}  // namespace trigraph::TRIGRAPH_ISA
