// The calls that are tried: every operator at the shapes of a model.
#pragma once

#include <string>
#include <vector>

#include "host.h"

namespace gpu_kernels {

// Rows of a call: `tokens` of each sequence, or one alone, which is then the next token of its sequence. Rows and
// sequences are numbered from the first of all calls, so that a row alone holds what it held among others.
struct Call {
  int64_t first, rows, tokens;
  int64_t sequences() const { return rows > tokens ? rows / tokens : 1; }
  int64_t first_sequence() const { return first / tokens; }
  int64_t own_tokens() const { return rows / sequences(); }
};

// What an input holds.
enum class Fill {
  normal,    // about 0
  positive,  // 0.5 to 1.5
  negative,  // -1.5 to -0.5
  blocks,    // of the type that `text` names
  prepared,  // rows of int8
  ids,       // below `number`
  number,    // `number` everywhere
  starts,    // of the sequences, and their end
  slot,      // the sequence's own number
  past,      // tokens before the call's: `number` with it
  accepted,  // of the tokens that wait, at most `number`: the one before a row alone
  pages,     // the sequence's own ones
  groups     // ascending, about `number` apart
};

struct Input {
  DType type;
  std::vector<int64_t> dims;  // -1: rows, -2: sequences; none: absent
  Fill fill;
  double number = 0;
  std::string text = {};
};

// An output, or with `like` the state that comes out where it came in.
struct Output {
  DType type;
  std::vector<int64_t> dims;  // -1: rows, -2: sequences, -3: one more; none: absent, or a state's
  int like = -1;
};

struct Case {
  std::string name, op;
  Attributes attributes;
  std::vector<Input> inputs;
  std::vector<Output> outputs;
  double bytes;                  // that a call of one row moves
  double bytes_of_sequence = 0;  // for each further one: state and entries
  double most_bytes = 0;         // where a row picks its weights: all of them
};

struct Model {
  const char* name;
  int64_t hidden, vocab, heads, kv_heads, head_dim, k_heads, v_heads, dim, ffn, experts, used, context;
};

constexpr int64_t kPending = 8;  // tokens of a sequence that can wait to be committed

const std::vector<Model>& models();
std::vector<Case> cases_of(const Model& model, int64_t sequences);
// What a call must read and write in the device's memory.
double bytes_moved(const Case& of, int64_t rows, int64_t sequences);

// What cases are made of.
struct Matrix {
  const char* type;
  int64_t rows;
};
Input weight(const std::string& type, int64_t rows, int64_t width, int64_t experts = 0);
Case products(const std::string& name, int64_t width, const std::vector<Matrix>& matrices);
std::vector<Matrix> delta_rule_matrices(const Model& m), attention_matrices(const Model& m),
    ffn_matrices(const Model& m);
std::vector<Input> cache(const Model& m, int64_t sequences);
Attributes rotary();
Case attention(const Model& m, int64_t sequences);
Case entries(const Model& m, int64_t sequences);
Case experts(const Model& m);
void add_stream_cases(const Model& m, int64_t sequences, std::vector<Case>& all);
void add_fused_cases(const Model& m, int64_t sequences, std::vector<Case>& all);

}  // namespace gpu_kernels
