// SplitExperts: the experts that the device has are computed there, the others by the CPU library at the same time.
// Each pair's row of products is the same wherever it is made, and the device sums them in slot order.
//
// The two sides talk by a word in memory that both reach: a kernel hands rows and choices over and leaves the address
// of a HostStep there, where a thread of the CPU's looks for it; the device makes its own rows; then a kernel waits for
// the host's answer, and the sum reads the host's rows where they are. Nothing is copied. That the thread looks is what
// a host function has it do, ahead of the first layer of a captured graph, until it has found the last one. Steps that
// are not captured may take the host seconds, after which a GPU with a display ends a kernel: for them, host functions
// wait. In long steps of prompts the weights of the host's experts may go to the device instead, see
// streamed_experts.cuh.
#include <chrono>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "host_part.cuh"
#include "signature.h"
#include "streamed_experts.cuh"

namespace trigraph::TRIGRAPH_ISA {
namespace {

// grid: [parts of a row, tokens]. Where a pair's row is: at its sorted index among the device's, or at its own among
// the host's.
__global__ void __launch_bounds__(kThreads) sum_both(const float* products, const int* sorted, const int* good,
                                                     const float* rows, const Choices choices, SlotSum sum) {
  constexpr int kTogether = 8;  // that are waited for together
  const int64_t column = int64_t{blockIdx.x} * kThreads + threadIdx.x, first = int64_t{blockIdx.y} * choices.k;
  if (column >= sum.width) return;
  float total = 0;
  for (int start = 0; start < choices.k; start += kTogether) {
    float weight[kTogether], product[kTogether];
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      if (start + i >= choices.k) break;
      const int64_t pair = first + start + i, id = choices.ids[pair];
      if (!choices.good(id)) return;
      const bool on_host = choices.slots[id] < 0;
      if (!on_host && !*good) return;  // another token's id is bad
      weight[i] = sum.weights[pair];
      product[i] = (on_host ? rows + pair * sum.width : products + sorted[pair] * sum.width)[column];
    }
#pragma unroll
    for (int i = 0; i < kTogether; ++i)
      if (start + i < choices.k) total = fmaf(weight[i], product[i], total);
  }
  sum.finish(total, blockIdx.y, column);
}

struct SplitExperts : SplitExpertsSignature {
  explicit SplitExperts(const KernelInfo& info)
      : arena_(info),
        done_(1),
        threads_(static_cast<int>(info.integer("threads", 1))),
        places_(reinterpret_cast<const int*>(info.integer("places", 0))),  // NOLINT(performance-no-int-to-ptr)
        batch_bytes_(info.integer("batch_bytes", kBatchBytes)),
        begins_(info.integer("begins", 0) != 0),
        ends_(info.integer("ends", 0) != 0),
        kernels_(info) {
    if (!host) fail("the CPU library's experts are not known");
    activations_ = info.text("activations", "float32");
    gate_type_ = info.text("gate_type"), up_type_ = info.text("up_type", ""), down_type_ = info.text("down_type");
  }

  void compute(const Context& context) {
    const ExpertShapes all = shapes(context, !up_type_.empty());
    if (all.experts > kMostExperts)
      fail("input gate has %lld experts; on a GPU there are at most %d", static_cast<long long>(all.experts),
           kMostExperts);
    const Tensor y = context.output(0, {all.tokens, all.width});
    const cudaStream_t stream = stream_of(context);
    Lane& lane = Lane::of(stream);
    const std::lock_guard<std::mutex> guard(lane.lock);
    layer_.stream = stream;
    if (!layer_.made) make_layer(context, all);
    const bool copied = copies(context, all);
    const int64_t most = copied ? kTokensOfAPlan : kTokensAtOnce;
    for (int64_t t = 0; t < all.tokens; t += most) {
      const int64_t count = std::min(most, all.tokens - t);
      copied ? run_on_device(context, all, t, count, y.as<float>()) : run(context, all, t, count, lane, y.as<float>());
    }
  }

 private:
  // The host's side; what captured graphs have of it lives as long as the session.
  struct Layer {
    void* made = nullptr;
    cudaStream_t stream = nullptr;
    std::map<std::pair<int64_t, bool>, HostStep> steps;  // by tokens, and whether it is the last; addresses stay

    Layer() = default;
    Layer(const Layer&) = delete;
    ~Layer() {
      if (!made) return;
      (void)cudaStreamSynchronize(stream);                // what was enqueued may still call
      for (auto& [shape, step] : steps) answered(&step);  // one that was given up
      host->drop(made);
    }
  };

  void make_layer(const Context& context, const ExpertShapes& all) {
    const HostExpertsSpec spec{gate_type_.c_str(),
                               down_type_.c_str(),
                               up_type_.c_str(),
                               activations_.c_str(),
                               context.input(3),
                               context.input(4),
                               context.input(5),
                               all.experts,
                               all.width,
                               all.ffn,
                               threads_};
    char problem[512] = "";
    layer_.made = host->make(spec, problem, sizeof problem);
    if (!layer_.made) fail("%s", problem);
  }

  // Whether the weights of the host's experts go to the device: as measured, or as TRIGRAPH_STREAM_EXPERTS has it.
  bool copies(const Context& context, const ExpertShapes& all) {
    if (all.tokens < kManyTokens) return false;
    numbers_ = numbers_on_host(all.experts);
    const char* forced = std::getenv("TRIGRAPH_STREAM_EXPERTS");
    if (numbers_.empty() || (forced && *forced != '1')) return false;
    if (!weights_) weights_ = WeightStream::of(layer_.stream);
    const double pairs = static_cast<double>(std::min(all.tokens, kTokensOfAPlan) * all.k);
    return forced ||
           weights_->pays(on_host(context, all).batch(0), layer_.made, pairs / static_cast<double>(all.experts));
  }
  StreamedExperts on_host(const Context& context, const ExpertShapes& all) const {
    return {kernels_.stacks(context.input(3), context.input(4), context.input(5), all.experts, all.width, all.ffn),
            numbers_, batch_bytes_};
  }
  std::vector<int> numbers_on_host(int64_t experts) const {
    std::vector<int> numbers;
    for (int i = 0; places_ && i < experts; ++i)
      if (places_[i] < 0) numbers.push_back(i);
    return numbers;
  }

  // The experts that the device has; of none where it has no slots.
  ExpertStacks held(const Context& context, const ExpertShapes& all, int64_t slots) const {
    const int first = slots ? 9 : 3;
    ExpertStacks found = kernels_.stacks(context.input(first), context.input(first + 1), context.input(first + 2),
                                         slots ? slots : all.experts, all.width, all.ffn);
    found.experts = slots;
    return found;
  }
  static SlotSum sum_of(const Context& context, const ExpertShapes& all, int64_t first, float* y) {
    const Tensor shared = context.input(6), shared_gate = context.input(7);
    return {static_cast<int>(all.k),
            all.width,
            context.input(2).as<float>() + first * all.k,
            shared.rank ? shared.as<float>() + first * all.width : nullptr,
            shared.rank ? shared_gate.as<float>() + first : nullptr,
            y + first * all.width};
  }

  // On both sides.
  void run(const Context& context, const ExpertShapes& all, int64_t first, int64_t count, Lane& lane, float* y) {
    const int64_t k = all.k, width = all.width, pairs = count * k, slots = SplitExpertsSignature::slots(context, all);
    const float* x = context.input(0).as<float>() + first * width;
    const Choices choices{context.input(1).as<int64_t>() + first * k, context.input(8).as<int>(), static_cast<int>(k),
                          static_cast<int>(all.experts)};
    const cudaStream_t stream = layer_.stream;
    const Part part(lane, count, k, width);
    const Arena::Memory plan_memory = arena_.take<int>(slots ? Plan::size(pairs, slots) : 0);
    const Arena::Memory products = arena_.take<float>(slots ? pairs * width : 0);
    const ExpertStacks stacks = held(context, all, slots);
    const Plan plan(plan_memory.as<int>(), pairs, slots, stacks.bucket_rows(pairs, all.experts));

    const bool calls = by_calls() || !captured();  // each layer is alone: if it fails, nobody looks for others
    const bool last = calls || (ends_ && first + count == all.tokens);
    HostStep& step = layer_.steps[{count, last}];
    step = {part.x, part.ids, part.rows, count, k, layer_.made, lane.mail(), last};
    auto* mail = reinterpret_cast<uint64_t*>(step.mail);
    if (calls || (begins_ && !first)) call(open, step);
    launch(hand_over, blocks_of(count, kHandTokens), kHandThreads, 0, stream, x, width, choices, count, first, part,
           mail, reinterpret_cast<uint64_t>(&step), done_.at(0), error_record());
    const auto await = [&] {
      if (calls) call(answered, step);
      launch(await_host, 1, 1, 0, stream, mail, error_record());
    };
    try {
      if (slots) {
        launch(bucket, 1, kBucketThreads, 0, stream, choices.ids, pairs, k, all.experts, choices.slots, 0, first, plan,
               error_record());
        multiply(stacks, {x, nullptr, count, k}, plan, 0, products.as<float>(), arena_, stream);
      }
    } catch (const std::exception&) {
      await();  // before other mail lies there
      throw;
    }
    await();
    launch(sum_both, dim3(blocks_of(width, kThreads), static_cast<unsigned>(count)), kThreads, 0, stream,
           products.as<float>(), plan.sorted, plan.good, part.rows, choices, sum_of(context, all, first, y));
  }

  // All on the device.
  void run_on_device(const Context& context, const ExpertShapes& all, int64_t first, int64_t count, float* y) {
    const int64_t k = all.k, width = all.width, pairs = count * k, slots = SplitExpertsSignature::slots(context, all);
    const cudaStream_t stream = layer_.stream;
    const StreamedExperts streamed = on_host(context, all);
    const int64_t groups = 1 + streamed.batches(), largest = std::max(slots, streamed.batch_size());
    const Arena::Memory plan_memory = arena_.take<int>(Plan::size(pairs, largest, groups));
    const Arena::Memory products = arena_.take<float>(pairs * width);
    const ExpertStacks stacks = held(context, all, slots);
    const Plan plan(plan_memory.as<int>(), pairs, largest, stacks.bucket_rows(pairs, all.experts), groups);
    launch(bucket, 1, kBucketThreads, 0, stream, context.input(1).as<int64_t>() + first * k, pairs, k, all.experts,
           context.input(8).as<int>(), streamed.batch_size(), first, plan, error_record());
    multiply(stacks, streamed, *weights_, layer_.made,
             {context.input(0).as<float>() + first * width, nullptr, count, k}, plan, products.as<float>(), arena_,
             stream);
    launch(sum_slots, dim3(blocks_of(width, kThreads), static_cast<unsigned>(count)), kThreads, 0, stream,
           products.as<float>(), plan.sorted, sum_of(context, all, first, y), plan.good);
  }

  bool captured() const {
    cudaStreamCaptureStatus status{};
    check(cudaStreamIsCapturing(layer_.stream, &status), "whether a step is captured");
    return status != cudaStreamCaptureStatusNone;
  }
  // Whether functions of the host begin and end each layer of captured steps too, to compare with kernels that wait.
  static bool by_calls() {
    static const bool set = std::getenv("TRIGRAPH_HOST_CALLS") != nullptr;
    return set;
  }
  void call(void (*function)(void*), HostStep& step) const {
    check(cudaLaunchHostFunc(layer_.stream, function, &step), "a call of the host");
  }
  static void open(void* step) { host->open(*static_cast<HostStep*>(step)); }
  // Returns when the host has answered.
  static void answered(void* step) {
    constexpr int kTurns = 1000;  // until it sleeps
    for (int turn = 0; *static_cast<HostStep*>(step)->mail > kHostFailed; ++turn)
      turn < kTurns ? std::this_thread::yield() : std::this_thread::sleep_for(std::chrono::microseconds(50));
  }

  Arena arena_;
  Counters done_;
  int threads_;
  const int* places_;  // [experts] slots as in input `slots`, in the host's memory; nullptr: no weights are copied
  int64_t batch_bytes_;
  bool begins_, ends_;  // the first and the last of a graph's nodes
  ExpertKernels kernels_;
  std::string activations_, gate_type_, up_type_, down_type_;
  Layer layer_;
  std::shared_ptr<WeightStream> weights_;  // where some have been copied
  std::vector<int> numbers_;               // the host's experts in a long step
};

}  // namespace

const OrtCustomOp* split_experts() {
  static const Op<Checked<SplitExperts>> op;
  return &op;
}

}  // namespace trigraph::TRIGRAPH_ISA

// The CPU library's `trigraph_host_experts`: before a session is opened that has nodes for it.
extern "C" TRIGRAPH_EXPORT void trigraph_use_host_experts(const trigraph::HostExperts* functions) {
  trigraph::TRIGRAPH_ISA::host = functions;
}
