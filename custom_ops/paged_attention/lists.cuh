// The positions that rows of attention see, on a device, by number: all up to their own, those of a list of groups, or
// what attributes say.
#pragma once

#include "heads.cuh"

namespace trigraph::TRIGRAPH_ISA {

// A row that ends more groups than a list holds sees those of its list, and the positions behind the last whole group.
struct Lists {
  const int32_t* groups = nullptr;  // [rows, top], ascending; nullptr: there are none
  int top = 0, size = 0;            // size: positions of a group
  bool causal = true;
  int window = 0;  // 0: none

  // The first position that the row at a position sees; number 0 is that of its sequence's first row.
  __device__ int first_seen(int position) const { return window && position >= window ? position - window + 1 : 0; }

  __device__ int whole(int position) const { return (position + 1) / size; }
  // How many positions the row at a position sees.
  __device__ int seen(int position) const {
    if (!groups || whole(position) <= top) return position + 1;
    return top * size + (position + 1 - whole(position) * size);
  }
  // At most.
  __host__ __device__ int most_seen() const { return top * size + size - 1; }
  // The one of them with a number. Where an entry of the list cannot be, it is `bad`.
  __device__ int place(int64_t row, int position, int number, int& bad) const {
    if (!groups || whole(position) <= top) return number;
    if (number >= top * size) return whole(position) * size + number - top * size;
    const int n = number / size;
    const int32_t *own = groups + row * top + n, group = *own;
    if (group >= 0 && group < whole(position) && (!n || own[-1] < group)) return group * size + number - n * size;
    bad = n;
    return number;
  }
  __device__ void tell(const Ragged& sequences, int64_t row, int position, int bad) const {
    report(sequences.record, sequences.op, Reason::group, row, bad, groups[row * top + bad], whole(position));
  }
};

}  // namespace trigraph::TRIGRAPH_ISA
