#include <algorithm>
#include <cmath>
#include <cstring>

#include "trial.h"

namespace gpu_kernels {
namespace {

constexpr size_t kLittle = 1 << 20;           // what stays in a cache anyway
constexpr size_t kCold = size_t{512} << 20;   // what calls read in turns: more than any cache holds
constexpr size_t kRows = size_t{2048} << 20;  // rows of the calls that take turns, at most
constexpr size_t kCopies = 32, kCalls = 64;

const OrtCustomOp* find(const Case& of) {
  const bool cached = of.op.rfind("Paged", 0) == 0;  // two kernels, by the type of the cache
  const size_t index = !cached ? 0 : of.op.rfind("PagedKVWrite", 0) ? 2 : 3;
  return find_operator(of.op, index, cached ? DType::f16 : of.inputs[0].type);
}

template <class Argument>
int64_t lead(const Argument& argument) {
  return argument.dims.empty() ? 0 : argument.dims[0];
}

// A call's; {0} where there is none.
std::vector<int64_t> dims_of(std::vector<int64_t> dims, const Call& call) {
  if (dims.empty()) return {0};
  if (dims[0] == -1) dims[0] = call.rows;
  if (dims[0] < -1) dims[0] = call.sequences() + (dims[0] == -3);
  return dims;
}

uint64_t fnv(const std::vector<char>& bytes, uint64_t hash) {
  for (const char byte : bytes) hash = (hash ^ static_cast<uint8_t>(byte)) * 1099511628211U;
  return hash;
}

bool finite(const std::vector<char>& bytes) {
  for (size_t at = 0; at + 4 <= bytes.size(); at += 4) {
    float x;
    std::memcpy(&x, &bytes[at], 4);
    if (!std::isfinite(x)) return false;
  }
  return true;
}

}  // namespace

Trial::Trial(const Case& of, void* stream) : case_(of), stream_(stream) {
  for (size_t i = 0; i < of.inputs.size(); ++i)
    first_.push_back(lead(of.inputs[i]) > 0 ? make_value(of.inputs[i], i << 40, {0, 1, 1}, memory_, stream) : Value{});
  now_ = first_;
  for (const Output& output : of.outputs)
    if (output.like >= 0) now_[output.like].data = memory_.reserve(now_[output.like].bytes());
}

// States as they were made, and a node for so many tokens: more than can wait are committed at once.
void Trial::prepare(int64_t tokens) {
  for (const Output& output : case_.outputs) {
    if (output.like < 0) continue;
    const Value& state = now_[output.like];
    copy(state.data, first_[output.like].data, state.bytes(), stream_);
  }
  Attributes attributes = case_.attributes;
  commits_ = tokens > kPending;
  if (const auto found = attributes.find("commit"); found != attributes.end()) found->second.number = commits_;
  node_ = std::make_unique<Node>(find(case_), attributes);
}

// The bytes of each output, and of the states after it.
Trial::Bytes Trial::run(const Call& call, bool states) {
  Memory memory;
  Values inputs = now_;
  add_rows(inputs, 0, call, memory);
  Values outputs = outputs_of(inputs, call, memory);
  node_->run(inputs, outputs, stream_);
  Bytes found;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const bool wanted = states || case_.outputs[i].like < 0;
    found.push_back(wanted ? read(outputs[i], stream_) : std::vector<char>{});
  }
  return found;
}

// What a row's sequence has is compared at its last row; of states, all.
bool Trial::same_row(const Bytes& together, const Bytes& alone, const Call& call) const {
  bool same = true;
  for (size_t i = 0; i < alone.size(); ++i) {
    const bool state = case_.outputs[i].like >= 0;
    const int64_t kind = lead(case_.outputs[i]);
    if ((kind == -2 && (call.first + 1) % call.tokens) || kind == -3) continue;
    const int64_t index = state ? 0 : kind == -2 ? call.first_sequence() : call.first;
    const char* expected = together[i].data() + static_cast<size_t>(index) * alone[i].size();
    same = same && !std::memcmp(alone[i].data(), expected, alone[i].size());
    if (case_.outputs[i].type == DType::f32) same = same && finite(alone[i]);
  }
  return same;
}

bool Trial::rows_alone(int64_t rows, int64_t tokens) {
  const bool with_state = std::any_of(case_.outputs.begin(), case_.outputs.end(), [](auto& o) { return o.like >= 0; });
  prepare(tokens);
  // Tokens that wait are a state of another form than those that were committed one by one.
  const bool states = with_state && (tokens == 1 || commits_ || !case_.attributes.count("commit"));
  const Bytes together = run({0, rows, tokens}, states);
  hash_ = 14695981039346656037U;
  for (const std::vector<char>& output : together) hash_ = fnv(output, hash_);
  prepare(tokens);
  bool same = true;
  const int64_t stride = with_state ? 1 : std::max<int64_t>(1, rows / kSequences);
  for (int64_t row = 0; row < rows; row = std::min(row + stride, std::max(row + 1, rows - 1))) {
    const Call call{row, 1, tokens};
    same = same_row(together, run(call, states && row + 1 == rows), call) && same;
  }
  return same;
}

double Trial::microseconds(int64_t rows, int64_t tokens) {
  Memory memory;
  prepare(tokens);
  const int64_t sequences = Call{0, rows, tokens}.sequences();
  const size_t held = bytes(false, {0, rows, tokens}), passed = bytes(true, {0, rows, tokens});
  uint64_t copies = 1, different = 1;
  if (held > kLittle) {
    const auto touched = static_cast<size_t>(bytes_moved(case_, rows, sequences)) + passed;
    copies = std::min(kCopies, kCold / held + 1);
    different = std::min({kCalls, std::max(copies, kCold / touched + 1), kRows / passed + 1});
    copies = std::min(copies, different);
  }
  std::vector<Values> held_by, inputs, outputs;
  for (uint64_t n = 0; n < copies; ++n) held_by.push_back(n ? copy_of(memory) : now_);
  for (uint64_t n = 0; n < different; ++n) {
    const auto turn = static_cast<int64_t>(n / copies) % (kSequences / sequences);
    inputs.push_back(held_by[n % copies]);
    const Call call{turn * rows, rows, tokens};
    add_rows(inputs[n], n, call, memory);
    outputs.push_back(outputs_of(inputs[n], call, memory));
  }
  return median_microseconds([&](uint64_t n) { node_->run(inputs[n % different], outputs[n % different], stream_); },
                             different, stream_);
}

Trial::Values Trial::copy_of(Memory& memory) {
  Values copied = now_;
  for (Value& value : copied) {
    if (!value.data) continue;
    const void* from = value.data;
    value.data = memory.reserve(value.bytes());
    copy(value.data, from, value.bytes(), stream_);
  }
  return copied;
}

void Trial::add_rows(Values& inputs, uint64_t seed, const Call& call, Memory& memory) {
  for (size_t i = 0; i < inputs.size(); ++i)
    if (lead(case_.inputs[i]) < 0)
      inputs[i] = make_value(case_.inputs[i], (i << 40) + (seed << 32), call, memory, stream_);
}

Trial::Values Trial::outputs_of(const Values& inputs, const Call& call, Memory& memory) const {
  Values outputs;
  for (const Output& output : case_.outputs) {
    if (output.like >= 0) {
      outputs.push_back(inputs[output.like]);
      continue;
    }
    Value value{output.type, dims_of(output.dims, call), nullptr};
    if (lead(output)) value.data = memory.reserve(value.bytes());
    outputs.push_back(value);
  }
  return outputs;
}

// Of the inputs without rows, or of a call's rows in and out.
size_t Trial::bytes(bool rows, const Call& call) const {
  size_t sum = 1;
  for (const Input& input : case_.inputs)
    if (lead(input) && rows == (lead(input) < 0)) sum += Value{input.type, dims_of(input.dims, call)}.bytes();
  for (const Output& output : case_.outputs)
    if (rows && lead(output)) sum += Value{output.type, dims_of(output.dims, call)}.bytes();
  return sum;
}

}  // namespace gpu_kernels
