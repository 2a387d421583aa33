// First contact with a GPU: every kernel at the shapes of real models, without ONNX Runtime and Python.
//
//     gpu_kernels [--bits] [--only TEXT]... [--rows N,N,...] [MODEL ...]
//
// Models for checkers: small and odd. One JSON document; exit status 1 when bits differ. --bits: no times; --only:
// kernels whose name contains TEXT. For each number of rows, first as sequences of one token and then, where a kernel
// knows sequences, as the tokens of one (more than 16 rows are always one): whether each row has the bits that it has
// alone, a hash of all of them, then microseconds, and GB/s of what a call must read and write, as a fraction of what a
// copy on the device reaches. Run it under compute-sanitizer too.
#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "../../../custom_ops/cuda/platform.cuh"
#include "trial.h"

using namespace gpu_kernels;

namespace {

struct Options {
  bool timed = true;
  std::vector<std::string> only, models;
  std::vector<int64_t> rows;

  bool wants(const Case& of) const {
    const auto contained = [&](const std::string& text) { return of.name.find(text) != std::string::npos; };
    return only.empty() || std::any_of(only.begin(), only.end(), contained);
  }
  bool wants(const Model& model) const {
    if (models.empty()) return model.context > 512;
    return std::find(models.begin(), models.end(), model.name) != models.end();
  }
};

std::vector<int64_t> numbers(const std::string& text) {
  std::vector<int64_t> all;
  for (const char* at = text.c_str(); *at;) {
    char* end = nullptr;
    all.push_back(std::strtoll(at, &end, 10));
    if (end == at || all.back() < 1 || all.back() > 4096 || (*end && *end != ','))
      trigraph::fail("--rows takes numbers from 1 to 4096 with commas between, not %s", text.c_str());
    at = *end ? end + 1 : end;
  }
  return all;
}

Options parse(int count, char** words) {
  Options options;
  std::string rows = "1,4,8,16";
  for (int i = 1; i < count; ++i) {
    const std::string word = words[i];
    const bool valued = word == "--only" || word == "--rows";
    if (valued && ++i == count) trigraph::fail("%s needs a value", word.c_str());
    if (word == "--bits")
      options.timed = false;
    else if (word == "--only")
      options.only.emplace_back(words[i]);
    else if (word == "--rows")
      rows = words[i];
    else
      options.models.push_back(word);
  }
  options.rows = numbers(rows);
  for (const std::string& name : options.models) {
    const auto called = [&](const Model& model) { return name == model.name; };
    if (std::none_of(models().begin(), models().end(), called)) trigraph::fail("no model is called %s", name.c_str());
  }
  return options;
}

double copy_rate(void* stream) {
  constexpr size_t kBytes = size_t{256} << 20;
  Memory memory;
  char* bytes = static_cast<char*>(memory.reserve(2 * kBytes));
  trigraph::cuda::check(cudaMemsetAsync(bytes, 0, 2 * kBytes, static_cast<cudaStream_t>(stream)), "zeros");
  wait(stream);
  double best = 0;
  for (int i = 0; i < 4; ++i) {
    const double started = seconds();
    copy(bytes + kBytes, bytes, kBytes, stream);
    wait(stream);
    best = std::max(best, 2 * kBytes / (seconds() - started));
  }
  return best;
}

// A number of rows as sequences: {rows, tokens of each}.
std::vector<std::pair<int64_t, int64_t>> shapes(const Case& of, const std::vector<int64_t>& rows) {
  const bool sequences = std::any_of(of.inputs.begin(), of.inputs.end(),
                                     [](const Input& input) { return !input.dims.empty() && input.dims[0] == -2; });
  std::vector<std::pair<int64_t, int64_t>> all;
  for (const int64_t count : rows) {
    if (count <= kSequences) all.emplace_back(count, 1);
    if (count > kSequences || (sequences && count > 1)) all.emplace_back(count, count);
  }
  return all;
}

class Report {
 public:
  Report(const Options& options, double rate, void* stream) : options_(options), rate_(rate), stream_(stream) {}

  bool run(const Model& model) {
    bool right = true;
    std::printf("%s{\"model\": \"%s\", \"kernels\": [", models_++ ? ",\n" : "", model.name);
    const char* before = "\n";
    for (const Case& of : cases_of(model, kSequences)) {
      if (!options_.wants(of)) continue;
      Trial trial(of, stream_);
      for (const auto& [rows, tokens] : shapes(of, options_.rows)) {
        std::printf("%s", before);
        right = row(of, trial, rows, tokens) && right;
        before = ",\n", any_ = true;
      }
    }
    std::printf("]}");
    return right;
  }
  bool any() const { return any_; }

 private:
  bool row(const Case& of, Trial& trial, int64_t rows, int64_t tokens) {
    const bool same = trial.rows_alone(rows, tokens);
    const int64_t sequences = rows / tokens;
    std::printf(" {\"kernel\": \"%s\", \"rows\": %lld, \"sequences\": %lld, \"bits\": %s, \"hash\": \"%016llx\"",
                of.name.c_str(), static_cast<long long>(rows), static_cast<long long>(sequences),
                same ? "true" : "false", static_cast<unsigned long long>(trial.hash()));
    if (options_.timed) {
      const double time = trial.microseconds(rows, tokens), moved = bytes_moved(of, rows, sequences) / time * 1e6;
      std::printf(", \"us\": %.2f, \"gb_s\": %.1f, \"of_copies\": %.3f", time, moved / 1e9, moved / rate_);
    }
    std::printf("}");
    std::fflush(stdout);
    return same;
  }

  const Options& options_;
  double rate_;
  void* stream_;
  int models_ = 0;
  bool any_ = false;
};

}  // namespace

int main(int count, char** words) try {
  const Options options = parse(count, words);
  cudaStream_t stream = nullptr;
  trigraph::cuda::check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "a stream");
  const double rate = copy_rate(stream);
  std::printf("{\"copy_gb_s\": %.1f, \"models\": [\n", rate / 1e9);
  Report report(options, rate, stream);
  bool right = true;
  for (const Model& model : models())
    if (options.wants(model)) right = report.run(model) && right;
  if (!report.any()) trigraph::fail("no kernel is called so");
  std::printf("], \"right\": %s}\n", right ? "true" : "false");
  return right ? 0 : 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "gpu_kernels: %s\n", error.what());
  return 1;
}
