// First contact with a GPU: every kernel at the shapes of real models, without ONNX Runtime and Python.
//
//     gpu_kernels [--bits] [MODEL ...]      one JSON document; exit status 1 when bits differ; --bits: no times
//
// For 1, 4 and 16 rows: whether each row has the bits that it has alone, then microseconds, and GB/s of what a call
// must read and write, as a fraction of what a copy on the device reaches. Run it under compute-sanitizer too.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "../../custom_ops/cuda/device.cuh"
#include "data.h"

using namespace gpu_kernels;

namespace {

constexpr int64_t kRows[] = {1, 4, 16}, kMostRows = 16;
constexpr size_t kLittle = 1 << 20;          // weights that stay in a cache anyway
constexpr size_t kCold = size_t{512} << 20;  // weights that are read in turns: more than any cache holds

double seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// A case on the device: its weights and states once, its rows for each call.
class Trial {
 public:
  Trial(const Case& of, void* stream) : case_(of), stream_(stream), node_(find(of), of.attributes) {
    for (size_t i = 0; i < of.inputs.size(); ++i)
      shared_.push_back(of.inputs[i].dims[0] < 0 ? Value{} : make_value(of.inputs[i], i << 40, 0, 0, memory_, stream));
    for (const Output& output : of.outputs) {
      if (output.like < 0) continue;
      Value state = shared_[output.like];
      state.data = memory_.reserve(state.bytes());
      states_.push_back(state);
    }
  }

  // The bytes of each output of rows `first` to `first + rows`; states are those after it.
  std::vector<std::vector<char>> run(int64_t first, int64_t rows, bool fresh) {
    Memory memory;
    if (fresh) reset();
    std::vector<Value> inputs = inputs_of(first, rows, 0, memory), outputs = outputs_of(rows, inputs, memory);
    node_.run(inputs, outputs, stream_);
    std::vector<std::vector<char>> found;
    for (const Value& output : outputs) found.push_back(read(output, stream_));
    return found;
  }

  // Whether rows together have the bits that they have alone, and all floats are finite.
  bool rows_alone(int64_t rows) {
    const auto together = run(0, rows, true);
    bool same = true;
    for (int64_t row = 0; row < rows; ++row) {
      const auto alone = run(row, 1, row == 0);
      for (size_t i = 0; i < alone.size(); ++i) {
        const bool state = case_.outputs[i].like >= 0;
        const char* expected = together[i].data() + (state ? 0 : row * static_cast<int64_t>(alone[i].size()));
        if (!state || row + 1 == rows) same = same && !std::memcmp(alone[i].data(), expected, alone[i].size());
        if (case_.outputs[i].type == DType::f32) same = same && finite(alone[i]);
      }
    }
    return same;
  }

  // Of a call, the mean over many, with weights that no cache holds.
  double microseconds(int64_t rows) {
    Memory memory;
    reset();
    size_t weights = 1;
    for (size_t i = 0; i < shared_.size(); ++i)
      if (case_.inputs[i].fill == Fill::blocks) weights += shared_[i].bytes();
    const auto copies = static_cast<uint64_t>(weights < kLittle ? 1 : std::min<size_t>(32, kCold / weights + 1));
    std::vector<std::vector<Value>> inputs, outputs;
    for (uint64_t n = 0; n < copies; ++n) {
      inputs.push_back(inputs_of(0, rows, n, memory));
      for (size_t i = 0; i < shared_.size(); ++i) {
        if (case_.inputs[i].fill != Fill::blocks || !n) continue;
        inputs[n][i].data = memory.reserve(shared_[i].bytes());
        copy(inputs[n][i].data, shared_[i].data, shared_[i].bytes(), stream_);
      }
      outputs.push_back(outputs_of(rows, inputs[n], memory));
    }
    const auto call = [&](uint64_t n) { node_.run(inputs[n % copies], outputs[n % copies], stream_); };
    for (uint64_t n = 0; n < copies; ++n) call(n);
    wait(stream_);
    uint64_t calls = 0;
    const double started = seconds();
    for (uint64_t together = 1; seconds() - started < 0.05; together *= 2) {
      for (uint64_t i = 0; i < together; ++i) call(calls++);
      wait(stream_);
    }
    return 1e6 * (seconds() - started) / static_cast<double>(calls);
  }

 private:
  static const OrtCustomOp* find(const Case& of) {
    const bool cached = of.op.rfind("Paged", 0) == 0;  // two kernels, by the type of the cache
    return find_operator(of.op,
                         of.op == "PagedAttention" ? 2
                         : cached                  ? 3
                                                   : 0,
                         cached ? DType::f16 : of.inputs[0].type);
  }
  static bool finite(const std::vector<char>& bytes) {
    for (size_t at = 0; at + 4 <= bytes.size(); at += 4) {
      float x;
      std::memcpy(&x, &bytes[at], 4);
      if (!std::isfinite(x)) return false;
    }
    return true;
  }
  void reset() {
    size_t state = 0;
    for (const Output& output : case_.outputs)
      if (output.like >= 0)
        copy(states_[state].data, shared_[output.like].data, states_[state].bytes(), stream_), ++state;
  }
  std::vector<Value> inputs_of(int64_t first, int64_t rows, uint64_t seed, Memory& memory) {
    std::vector<Value> inputs = shared_;
    for (size_t i = 0; i < inputs.size(); ++i)
      if (case_.inputs[i].dims[0] < 0)
        inputs[i] = make_value(case_.inputs[i], (i << 40) + (seed << 32), first, rows, memory, stream_);
    size_t state = 0;
    for (const Output& output : case_.outputs)
      if (output.like >= 0) inputs[output.like] = states_[state++];
    return inputs;
  }
  std::vector<Value> outputs_of(int64_t rows, const std::vector<Value>& inputs, Memory& memory) {
    std::vector<Value> outputs;
    for (const Output& output : case_.outputs) {
      if (output.like >= 0) {
        outputs.push_back(inputs[output.like]);
        continue;
      }
      Value value{output.type, output.dims, nullptr};
      value.dims[0] = rows;
      value.data = memory.reserve(value.bytes());
      outputs.push_back(value);
    }
    return outputs;
  }

  const Case& case_;
  void* stream_;
  Node node_;
  Memory memory_;
  std::vector<Value> shared_, states_;  // by input, and of the outputs that are states
};

double copy_rate(void* stream) {
  Memory memory;
  char* bytes = static_cast<char*>(memory.reserve(kCold));
  double best = 0;
  for (int i = 0; i < 4; ++i) {
    const double started = seconds();
    copy(bytes + kCold / 2, bytes, kCold / 2, stream);
    wait(stream);
    best = std::max(best, static_cast<double>(kCold) / (seconds() - started));
  }
  return best;
}

bool run_model(const Model& model, double rate, bool timed, void* stream, bool last) {
  bool right = true;
  std::printf(" {\"model\": \"%s\", \"kernels\": [\n", model.name);
  const std::vector<Case> cases = cases_of(model, kMostRows);
  for (const Case& of : cases) {
    Trial trial(of, stream);
    for (const int64_t rows : kRows) {
      const bool same = trial.rows_alone(rows);
      right = right && same;
      std::printf("  {\"kernel\": \"%s\", \"rows\": %lld, \"bits\": %s", of.name.c_str(), static_cast<long long>(rows),
                  same ? "true" : "false");
      if (timed) {
        const double time = trial.microseconds(rows);
        const double moved = (of.bytes + static_cast<double>(rows - 1) * of.bytes_of_row) / time * 1e6;
        std::printf(", \"us\": %.2f, \"gb_s\": %.1f, \"of_copies\": %.3f", time, moved / 1e9, moved / rate);
      }
      std::printf("}%s\n", &of == &cases.back() && rows == kMostRows ? "]}" : ",");
      std::fflush(stdout);
    }
  }
  if (!last) std::printf(" ,\n");
  return right;
}

}  // namespace

int main(int count, char** names) try {
  std::vector<std::string> given(names + 1, names + count);
  const auto flag = std::find(given.begin(), given.end(), "--bits");
  const bool timed = flag == given.end();
  if (!timed) given.erase(flag);
  std::vector<const Model*> wanted;
  for (const Model& model : models()) {
    const bool named = std::find(given.begin(), given.end(), model.name) != given.end();
    if (named || (given.empty() && std::strcmp(model.name, "small") != 0)) wanted.push_back(&model);
  }
  if (wanted.empty()) trigraph::fail("no model has that name");
  cudaStream_t stream = nullptr;
  trigraph::cuda::check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "a stream");
  const double rate = copy_rate(stream);
  std::printf("{\"copy_gb_s\": %.1f, \"models\": [\n", rate / 1e9);
  bool right = true;
  for (const Model* model : wanted) right = run_model(*model, rate, timed, stream, model == wanted.back()) && right;
  std::printf("], \"right\": %s}\n", right ? "true" : "false");
  return right ? 0 : 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "gpu_kernels: %s\n", error.what());
  return 1;
}
