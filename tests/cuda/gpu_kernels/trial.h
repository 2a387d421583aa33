// A case on the device: its weights and states once, its rows for each call.
#pragma once

#include <functional>
#include <memory>

#include "data.h"

namespace gpu_kernels {

constexpr int64_t kSequences = 16;

class Trial {
 public:
  Trial(const Case& of, void* stream);
  // Whether rows together have the bits that they have alone, and all floats are finite. Of more rows than sequences,
  // some are compared, where rows don't depend on those before them.
  bool rows_alone(int64_t rows, int64_t tokens);
  // Of the bytes that the rows together had there.
  uint64_t hash() const { return hash_; }
  // Of a call with weights and states that no cache holds.
  double microseconds(int64_t rows, int64_t tokens);

 private:
  using Values = std::vector<Value>;
  using Bytes = std::vector<std::vector<char>>;

  void prepare(int64_t tokens);
  Bytes run(const Call& call, bool states);
  bool same_row(const Bytes& together, const Bytes& alone, const Call& call) const;
  Values copy_of(Memory& memory);
  void add_rows(Values& inputs, uint64_t seed, const Call& call, Memory& memory);
  Values outputs_of(const Values& inputs, const Call& call, Memory& memory) const;
  size_t bytes(bool rows, const Call& call) const;

  const Case& case_;
  void* stream_;
  Memory memory_;
  Values first_, now_;  // inputs without rows, as they were made; with the states that calls change
  std::unique_ptr<Node> node_;
  bool commits_ = false;
  uint64_t hash_ = 0;
};

// What calls 0, 1, 2, ... take: the median over replays of a graph of many, with no launch between them. `different`
// of them don't share what they read.
double median_microseconds(const std::function<void(uint64_t)>& call, uint64_t different, void* stream);
double seconds();

}  // namespace gpu_kernels
