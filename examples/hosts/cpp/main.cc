// A host of trigraph packages that uses the graphs' contract and nothing else of trigraph: greedy speculative decoding
// of several prompts in one batch. Prints the ids that follow each prompt, a line for each, and counts to stderr. A
// prompt may show images: IMAGE in its list of ids is the next file of --image.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <set>
#include <sstream>

#include "batch.h"
#include "options.h"
#include "session.h"

namespace {

constexpr int64_t kContractVersion = 9;
const std::set<std::string> kFeatures = {"images", "streams"};

// What a step returns: rows of the tokens that it chose and of hidden states.
struct Result {
  std::map<std::string, Handle<OrtValue>> values;
  const int64_t* tokens;
  const float* hidden;
};

class Host {
 public:
  explicit Host(const Options& options)
      : options_(options),
        prefill_(env(), options.package / "prefill.onnx", options.library, options.threads),
        verify_(env(), options.package / "verify.onnx", options.library, options.threads) {
    if (options.drafts > 0)
      draft_ = std::make_unique<Graph>(env(), options.package / "draft.onnx", options.library, options.threads);
    if (prefill_.version() != kContractVersion) throw std::runtime_error("the package follows another contract");
    std::istringstream features(prefill_.features());
    for (std::string name; std::getline(features, name, ',');)
      if (!kFeatures.count(name)) throw std::runtime_error("this host does not know the package's feature " + name);
    for (const Port& port : prefill_.inputs) {
      if (port.symbols[0] == "pages") page_size_ = port.dims[1];
      if (port.name == "prev_hidden") width_ = port.dims[1];  // of all residual streams
      if (port.name == "previous_ids" && options.text_start < 0)
        throw std::runtime_error(
            "the model has n-grams: give the manifest's config.streams.ngrams.eos by --text-start");
      if (port.name.find(".gates") != std::string::npos) max_pending_ = port.dims[1];
    }
    if (options.drafts < 0 || options.drafts >= max_pending_) throw std::runtime_error("--drafts is out of range");
    read_prompts();
    size_t longest = 0;
    for (const Prompt& prompt : prompts_) longest = std::max(longest, prompt.ids.size());
    const int64_t context = static_cast<int64_t>(longest) + options.tokens + max_pending_;
    pages_ = (context + page_size_ - 1) / page_size_;
    const int64_t texts = static_cast<int64_t>(options.prompts.size());
    for (const Port& port : prefill_.inputs) {
      if (port.name.rfind("past.", 0) != 0) continue;
      Dims dims = port.dims;
      dims[0] = port.symbols[0] == "pages" ? texts * pages_ : texts;
      // Kernels update state in place. Without them a step needs a second buffer to write to.
      for (int side = 0; side < (options.library.empty() ? 2 : 1); ++side)
        state_[port.name.substr(5)].emplace_back(port.type, dims);
    }
  }

  std::vector<Text> prefill() {
    std::vector<Text> texts(prompts_.size());
    for (size_t i = 0; i < texts.size(); ++i) {
      texts[i].prompt = &prompts_[i];
      texts[i].slot = static_cast<int32_t>(i);
      texts[i].before.assign(static_cast<size_t>(width_), 0.0f);
    }
    for (;;) {
      Batch batch;
      std::vector<Text*> members;
      for (Text& text : texts) {
        const Ids& prompt = text.prompt->ids;
        const auto start = prompt.begin() + text.length;
        const Ids piece(start, start + std::min<int64_t>(options_.chunk, prompt.end() - start));
        if (piece.empty()) continue;
        batch.show(text, piece.size(), width_);
        batch.add(text, piece, text.length, text.before);
        text.length += static_cast<int32_t>(piece.size());
        members.push_back(&text);
      }
      if (members.empty()) return texts;
      const Result result = run(prefill_, batch);
      for (size_t i = 0; i < members.size(); ++i) {
        members[i]->kept = {result.tokens[i]};
        members[i]->answer = members[i]->kept;
        members[i]->before = rows(result, i, 1);
      }
    }
  }

  // Drafts, verifies, and keeps what the model would have chosen itself.
  void round(const std::vector<Text*>& texts) {
    const std::vector<Ids> guesses = draft(texts);
    Batch batch;
    for (size_t i = 0; i < texts.size(); ++i) {
      Ids tokens{texts[i]->kept.back()};
      tokens.insert(tokens.end(), guesses[i].begin(), guesses[i].end());
      batch.add(*texts[i], tokens, texts[i]->length, {});
    }
    const Result result = run(verify_, batch);
    for (size_t i = 0; i < texts.size(); ++i) {
      Text& text = *texts[i];
      const size_t first = static_cast<size_t>(batch.cu_seqlens[i]);
      text.kept.clear();
      for (size_t row = 0; row <= guesses[i].size(); ++row) {
        text.kept.push_back(result.tokens[first + row]);
        if (row == guesses[i].size() || text.kept.back() != guesses[i][row]) break;
      }
      text.before = rows(result, first, text.kept.size());
      text.accepted = static_cast<int32_t>(text.kept.size());
      text.length += text.accepted;
      text.answer.insert(text.answer.end(), text.kept.begin(), text.kept.end());
      drafted += guesses[i].size();
      agreed += text.kept.size() - 1;
    }
    ++rounds;
  }

  size_t rounds = 0, drafted = 0, agreed = 0;
  uint64_t bits = 0xcbf29ce484222325;  // FNV-1a of the logits and hidden rows of all steps

 private:
  static OrtEnv* env() {
    static Handle<OrtEnv> env(nullptr, ort().ReleaseEnv);
    if (!env) {
      OrtEnv* made = nullptr;
      check(ort().CreateEnv(ORT_LOGGING_LEVEL_FATAL, "trigraph host", &made));  // errors come back as statuses
      env.reset(made);
    }
    return env.get();
  }

  void read_prompts() {
    auto file = options_.images.begin();
    std::unique_ptr<Tower> tower;
    for (const std::string& text : options_.prompts) {
      std::istringstream list(text);
      Prompt& prompt = prompts_.emplace_back();
      for (std::string id; std::getline(list, id, ',');) {
        if (id != "IMAGE") {
          prompt.add(std::stoll(id));
          continue;
        }
        if (file == options_.images.end()) throw std::runtime_error("a prompt has no image: give one with --image");
        if (!tower) tower = std::make_unique<Tower>(env(), options_.package, options_.library, options_.threads);
        prompt.add(tower->see(read_ppm(*file++)));
      }
      if (prompt.ids.empty()) throw std::runtime_error("a prompt is empty");
    }
    if (file != options_.images.end()) throw std::runtime_error("an image has no place: write IMAGE into a prompt");
  }

  std::vector<Ids> draft(const std::vector<Text*>& texts) {
    std::vector<Ids> guesses(texts.size());
    std::vector<std::vector<float>> hidden(texts.size());
    for (int depth = 0; depth < options_.drafts; ++depth) {
      Batch batch;
      for (size_t i = 0; i < texts.size(); ++i) {
        const Text& text = *texts[i];
        // The first run also rebuilds the head's entries of the tokens kept last, from their true hidden states.
        if (depth == 0)
          batch.add(text, text.kept, text.length + 1 - static_cast<int32_t>(text.kept.size()), text.before);
        else
          batch.add(text, {guesses[i].back()}, text.length + depth, hidden[i]);
      }
      const Result result = run(*draft_, batch);
      for (size_t i = 0; i < texts.size(); ++i) {
        guesses[i].push_back(result.tokens[i]);
        hidden[i] = rows(result, i, 1);
      }
    }
    return guesses;
  }

  Result run(Graph& graph, const Batch& batch) {
    const int64_t tokens = static_cast<int64_t>(batch.ids.size());
    const int64_t sequences = static_cast<int64_t>(batch.slots.size());
    const auto i32 = ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32;
    std::vector<int32_t> table;
    for (int32_t slot : batch.slots)
      for (int64_t page = 0; page < pages_; ++page) table.push_back(static_cast<int32_t>(slot * pages_ + page));

    std::map<std::string, Tensor> inputs;
    inputs.try_emplace("input_ids", ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64, Dims{tokens}, batch.ids);
    inputs.try_emplace("cu_seqlens", i32, Dims{sequences + 1}, batch.cu_seqlens);
    inputs.try_emplace("past_lens", i32, Dims{sequences}, batch.past_lens);
    inputs.try_emplace("accepted", i32, Dims{sequences}, batch.accepted);
    inputs.try_emplace("slots_in", i32, Dims{sequences}, batch.slots);
    inputs.try_emplace("slots_out", i32, Dims{sequences}, batch.slots);
    Ids previous = batch.previous;
    for (int64_t& id : previous) id = id < 0 ? options_.text_start : id;
    inputs.try_emplace("previous_ids", ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64, Dims{sequences, 2}, previous);
    inputs.try_emplace("page_table", i32, Dims{sequences, pages_}, table);
    const int64_t hidden_rows = static_cast<int64_t>(batch.hidden.size()) / width_;
    inputs.try_emplace("prev_hidden", ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, Dims{hidden_rows, width_}, batch.hidden);

    // Of packages that read images.
    inputs.try_emplace("positions", i32, Dims{3, tokens}, batch.positions(false));
    inputs.try_emplace("last_positions", i32, Dims{3, sequences}, batch.positions(true));
    const int64_t shown = static_cast<int64_t>(batch.image_places.size());
    inputs.try_emplace("image_rows", ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, Dims{shown, width_}, batch.image_rows);
    inputs.try_emplace("image_places", ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64, Dims{shown, 1}, batch.image_places);

    std::map<std::string, const OrtValue*> values;
    std::map<std::string, OrtValue*> targets;
    for (const auto& [name, tensor] : inputs) values[name] = tensor.value();
    std::set<std::string> written;
    for (const Port& port : graph.outputs)
      if (port.name.rfind("present.", 0) == 0) written.insert(port.name.substr(8));
    for (const std::string& name : written) {
      values["past." + name] = state_.at(name).front().value();
      targets["present." + name] = state_.at(name).back().value();
    }
    Result result{graph.run(values, targets), nullptr, nullptr};
    for (const std::string& name : written) std::reverse(state_.at(name).begin(), state_.at(name).end());
    result.tokens = data<int64_t>(result.values.at("tokens"));
    result.hidden = data<float>(result.values.at("hidden"));
    if (options_.bits) add_bits(graph, result, &graph == &verify_ ? tokens : sequences);
    return result;
  }

  void add_bits(const Graph& graph, const Result& result, int64_t rows) {
    for (const Port& port : graph.outputs) {
      if (port.name != "logits" && port.name != "hidden") continue;
      const auto* bytes = data<unsigned char>(result.values.at(port.name));
      const size_t count = static_cast<size_t>(rows * port.dims[1]) * sizeof(float);
      for (size_t i = 0; i < count; ++i) bits = (bits ^ bytes[i]) * 0x100000001b3;
    }
  }

  std::vector<float> rows(const Result& result, size_t first, size_t count) const {
    const float* start = result.hidden + first * static_cast<size_t>(width_);
    return {start, start + count * static_cast<size_t>(width_)};
  }

  Options options_;
  std::vector<Prompt> prompts_;
  Graph prefill_, verify_;
  std::unique_ptr<Graph> draft_;
  std::map<std::string, std::vector<Tensor>> state_;
  int64_t page_size_ = 0, width_ = 0, max_pending_ = 0, pages_ = 0;
};

}  // namespace

int main(int count, char** arguments) try {
  const Options options = parse(count, arguments);
  const size_t wanted = static_cast<size_t>(options.tokens);
  Host host(options);
  std::vector<Text> texts = host.prefill();
  for (;;) {
    std::vector<Text*> unfinished;
    for (Text& text : texts)
      if (text.answer.size() < wanted) unfinished.push_back(&text);
    if (unfinished.empty()) break;
    host.round(unfinished);
  }
  for (const Text& text : texts) {
    for (size_t i = 0; i < wanted; ++i) std::printf(i ? " %lld" : "%lld", static_cast<long long>(text.answer[i]));
    std::printf("\n");
  }
  std::fprintf(stderr, "%zu rounds, %zu of %zu drafts accepted\n", host.rounds, host.agreed, host.drafted);
  if (options.bits) std::fprintf(stderr, "bits %016llx\n", static_cast<unsigned long long>(host.bits));
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "error: %s\n", error.what());
  return 1;
}
