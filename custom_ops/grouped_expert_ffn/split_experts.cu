// SplitExperts: the experts that the device has are computed there, the others by the CPU library at the same time.
// Each pair's row of products is the same wherever it is made, and the device sums them in slot order.
//
// A stream's order is all that the two sides need: a kernel hands rows and choices over in memory that both reach, a
// host function lets the host begin, the device makes its own rows, and another host function waits for the host's
// before the sum reads them where they are. Nothing is copied, and a captured graph replays all of it. In long steps of
// prompts the weights of the host's experts may go to the device instead, see streamed_experts.cuh.
#include <map>
#include <mutex>

#include "../cuda/shared_memory.cuh"
#include "signature.h"
#include "streamed_experts.cuh"

namespace trigraph::TRIGRAPH_ISA {
namespace {

constexpr int64_t kTokensAtOnce = 1024;  // a longer step runs in parts, so that shared memory stays bounded

// A part of a step on both sides.
struct Part {
  float* x;      // [tokens, width], of tokens that the host has something to do for
  float* rows;   // [tokens * k, width], of its pairs
  int64_t* ids;  // [tokens, k] of HostStep

  Part(Lane& lane, int64_t tokens, int64_t k, int64_t width) {
    const auto rounded = [](int64_t bytes) { return (bytes + 63) / 64 * 64; };
    const int64_t x_bytes = rounded(tokens * width * 4), ids_bytes = rounded(tokens * k * 8);
    char* memory = lane.take(static_cast<size_t>(x_bytes + ids_bytes + rounded(tokens * k * width * 4)));
    x = reinterpret_cast<float*>(memory);
    ids = reinterpret_cast<int64_t*>(memory + x_bytes);
    rows = reinterpret_cast<float*>(memory + x_bytes + ids_bytes);
  }
};

// What a token chose, and where the device has it.
struct Choices {
  const int64_t* ids;  // [tokens, k], which may be bad
  const int* slots;    // [experts]
  int k, experts;

  __device__ bool good(int64_t id) const { return id >= 0 && id < experts; }
  __device__ bool on_host(int64_t id) const { return good(id) && slots[id] < 0; }
};

// grid: [parts of a row, tokens].
__global__ void __launch_bounds__(kThreads) hand_over(const float* x, int width, const Choices choices,
                                                      int64_t first_token, const Part part, ErrorRecord* record) {
  const int64_t token = blockIdx.y, *ids = choices.ids + token * choices.k;
  const int column = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  bool any = false;
  for (int j = 0; j < choices.k; ++j) any |= choices.on_host(ids[j]);
  if (any && column < width) part.x[token * width + column] = x[token * width + column];
  if (blockIdx.x) return;
  for (int j = static_cast<int>(threadIdx.x); j < choices.k; j += kThreads)
    part.ids[token * choices.k + j] = !choices.good(ids[j])     ? kNoExpert
                                      : choices.on_host(ids[j]) ? ids[j]
                                                                : -1 - ids[j];
  if (threadIdx.x) return;
  for (int j = 0; j < choices.k; ++j)
    if (!choices.good(ids[j]))
      return report(record, Operator::grouped_expert_ffn, Reason::expert_id, ids[j], first_token + token, j,
                    choices.experts);
}

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
        threads_(static_cast<int>(info.integer("threads", 1))),
        places_(reinterpret_cast<const int*>(info.integer("places", 0))),  // NOLINT(performance-no-int-to-ptr)
        batch_bytes_(info.integer("batch_bytes", kBatchBytes)),
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
    struct Call {
      void* layer;
      HostStep step;
    };
    std::map<int64_t, Call> calls;  // by tokens; the address of one stays

    Layer() = default;
    Layer(const Layer&) = delete;
    ~Layer() {
      if (!made) return;
      (void)cudaStreamSynchronize(stream);  // what was enqueued may still call
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
    const dim3 grid(blocks_of(width, kThreads), static_cast<unsigned>(count));
    const Part part(lane, count, k, width);
    launch(hand_over, grid, kThreads, 0, stream, x, width, choices, first, part, error_record());
    Layer::Call& call = layer_.calls[count];
    call = {layer_.made, {part.x, part.ids, part.rows, count, k}};
    check(cudaLaunchHostFunc(stream, begin, &call), "a call of the host");
    const Arena::Memory plan_memory = arena_.take<int>(slots ? Plan::size(pairs, slots) : 0);
    const Arena::Memory products = arena_.take<float>(slots ? pairs * width : 0);
    const Plan plan(plan_memory.as<int>(), pairs, slots);
    if (slots) {
      launch(bucket, 1, kBucketThreads, 0, stream, choices.ids, pairs, k, all.experts, choices.slots, 0, first, plan,
             error_record());
      multiply(held(context, all, slots), {x, nullptr, count, k}, plan, 0, products.as<float>(), arena_, stream);
    }
    check(cudaLaunchHostFunc(stream, end, &call), "a call of the host");
    launch(sum_both, grid, kThreads, 0, stream, products.as<float>(), plan.sorted, plan.good, part.rows, choices,
           sum_of(context, all, first, y));
  }

  // All on the device.
  void run_on_device(const Context& context, const ExpertShapes& all, int64_t first, int64_t count, float* y) {
    const int64_t k = all.k, width = all.width, pairs = count * k, slots = SplitExpertsSignature::slots(context, all);
    const cudaStream_t stream = layer_.stream;
    const StreamedExperts streamed = on_host(context, all);
    const int64_t groups = 1 + streamed.batches(), largest = std::max(slots, streamed.batch_size());
    const Arena::Memory plan_memory = arena_.take<int>(Plan::size(pairs, largest, groups));
    const Arena::Memory products = arena_.take<float>(pairs * width);
    const Plan plan(plan_memory.as<int>(), pairs, largest, groups);
    launch(bucket, 1, kBucketThreads, 0, stream, context.input(1).as<int64_t>() + first * k, pairs, k, all.experts,
           context.input(8).as<int>(), streamed.batch_size(), first, plan, error_record());
    multiply(held(context, all, slots), streamed, *weights_, layer_.made,
             {context.input(0).as<float>() + first * width, nullptr, count, k}, plan, products.as<float>(), arena_,
             stream);
    launch(sum_slots, dim3(blocks_of(width, kThreads), static_cast<unsigned>(count)), kThreads, 0, stream,
           products.as<float>(), plan.sorted, sum_of(context, all, first, y), plan.good);
  }

  static void begin(void* user) {
    const auto* call = static_cast<Layer::Call*>(user);
    host->start(call->layer, call->step);
  }
  static void end(void* user) {
    if (!host->wait(static_cast<Layer::Call*>(user)->layer))
      report_from_host(Operator::grouped_expert_ffn, Reason::host_memory);
  }

  Arena arena_;
  int threads_;
  const int* places_;  // [experts] slots as in input `slots`, in the host's memory; nullptr: no weights are copied
  int64_t batch_bytes_;
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
