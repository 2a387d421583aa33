// The calls that are tried: every operator at the shapes of a model.
#pragma once

#include <string>
#include <vector>

#include "host.h"

namespace gpu_kernels {

// What an input holds. Rows are numbered across the call, so that a row alone holds what it held among others.
enum class Fill {
  normal,    // about 0
  positive,  // 0.5 to 1.5
  negative,  // -1.5 to -0.5
  blocks,    // of the type that `text` names
  ids,       // below `number`
  number,    // `number` everywhere
  row,       // the row's own number: a slot
  starts,    // 0, 1, 2, ...: a sequence for each row
  pages      // a row's own ones, `number` of them
};

struct Input {
  DType type;
  std::vector<int64_t> dims;  // -1: rows
  Fill fill;
  double number = 0;
  std::string text = {};
};

// An output, or with `like` the state that comes out where it came in.
struct Output {
  DType type;
  std::vector<int64_t> dims;
  int like = -1;
};

struct Case {
  std::string name, op;
  Attributes attributes;
  std::vector<Input> inputs;
  std::vector<Output> outputs;
  double bytes;             // that a call of one row must read or write in the device's memory
  double bytes_of_row = 0;  // for each further row: experts, states and entries of its own
};

struct Model {
  const char* name;
  int64_t hidden, vocab, heads, kv_heads, head_dim, k_heads, v_heads, dim, ffn, experts, used, context;
};

const std::vector<Model>& models();
std::vector<Case> cases_of(const Model& model, int64_t most_rows);

}  // namespace gpu_kernels
