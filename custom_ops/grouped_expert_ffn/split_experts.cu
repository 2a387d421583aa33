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
#include "host_experts.h"
#include "signature.h"
#include "streamed_experts.cuh"

namespace trigraph::TRIGRAPH_ISA {
namespace {

constexpr int64_t kTokensAtOnce = 1024;  // a longer step runs in parts, so that shared memory stays bounded

const HostExperts* host = nullptr;

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
__global__ void __launch_bounds__(kThreads) sum_both(const float* products, const int* sorted, const int* used,
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
      if (!on_host && !*used) return;  // another token's id is bad
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
        staged_bytes_(info.integer("staged_bytes", kStagedBytes)),
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
    for (int64_t t = 0; t < all.tokens; t += kTokensAtOnce)
      run(context, all, t, std::min(kTokensAtOnce, all.tokens - t), lane, y.as<float>());
  }

 private:
  // The host's side; what captured graphs have of it lives as long as the session.
  struct Layer {
    void* made = nullptr;
    cudaStream_t stream = nullptr;
    struct Call {
      void* layer;
      HostStep step;
      double byte_rows;  // bytes of an expert times its rows, of all on the host, about; 0: not timed
      std::chrono::steady_clock::time_point start{};
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

  void run(const Context& context, const ExpertShapes& all, int64_t first, int64_t count, Lane& lane, float* y) {
    const int64_t k = all.k, width = all.width, pairs = count * k, slots = SplitExpertsSignature::slots(context, all);
    const float* x = context.input(0).as<float>() + first * width;
    const Choices choices{context.input(1).as<int64_t>() + first * k, context.input(8).as<int>(), static_cast<int>(k),
                          static_cast<int>(all.experts)};
    const cudaStream_t stream = layer_.stream;
    const dim3 grid(blocks_of(width, kThreads), static_cast<unsigned>(count));
    using Side = StreamRule::Side;
    const std::vector<int> on_host = numbers_on_host(count < kManyTokens ? 0 : all.experts);
    const double rows_each = static_cast<double>(pairs) / static_cast<double>(all.experts);
    const Side side = on_host.empty() ? Side::host : StreamRule::of_machine().side(rows_each);
    const Arena::Memory streamed = arena_.take<float>(side == Side::host ? 0 : pairs * width);
    const float* host_rows = streamed.as<float>();
    Layer::Call* call = nullptr;
    if (side == Side::host) {
      const Part part(lane, count, k, width);
      host_rows = part.rows;
      launch(hand_over, grid, kThreads, 0, stream, x, width, choices, first, part, error_record());
      call = &layer_.calls[count];
      *call = {layer_.made,
               {part.x, part.ids, part.rows, count, k},
               rows_each * static_cast<double>(on_host.size()) * static_cast<double>(expert_bytes(context))};
      check(cudaLaunchHostFunc(stream, begin, call), "a call of the host");
    } else {
      const ExpertStacks whole =
          kernels_.stacks(context.input(3), context.input(4), context.input(5), all.experts, width, all.ffn);
      StreamedExperts(whole, on_host, staged_bytes_, arena_, stream)
          .multiply({x, nullptr, count, k}, choices.ids, all.experts, first, side == Side::device_timed,
                    streamed.as<float>());
    }
    const Arena::Memory plan_memory = arena_.take<int>(slots ? Plan::size(pairs, slots) : 0);
    const Arena::Memory products = arena_.take<float>(slots ? pairs * width : 0);
    const Plan plan(plan_memory.as<int>(), pairs, slots);
    if (slots) {
      launch(bucket, 1, kBucketThreads, 0, stream, choices.ids, pairs, k, all.experts, choices.slots, first, plan,
             error_record());
      const ExpertStacks stacks =
          kernels_.stacks(context.input(9), context.input(10), context.input(11), slots, width, all.ffn);
      multiply(stacks, {x, nullptr, count, k}, plan, products.as<float>(), arena_, stream);
    }
    if (call) check(cudaLaunchHostFunc(stream, end, call), "a call of the host");
    const Tensor shared = context.input(6), shared_gate = context.input(7);
    const SlotSum sum{static_cast<int>(k),
                      width,
                      context.input(2).as<float>() + first * k,
                      shared.rank ? shared.as<float>() + first * width : nullptr,
                      shared.rank ? shared_gate.as<float>() + first : nullptr,
                      y + first * width};
    launch(sum_both, grid, kThreads, 0, stream, products.as<float>(), plan.sorted, plan.used, host_rows, choices, sum);
  }

  // Experts of the host, in long steps.
  std::vector<int> numbers_on_host(int64_t experts) const {
    std::vector<int> numbers;
    for (int i = 0; places_ && i < experts; ++i)
      if (places_[i] < 0) numbers.push_back(i);
    return numbers;
  }
  static int64_t expert_bytes(const Context& context) {
    int64_t bytes = 0;
    for (const int input : {3, 4, 5})
      if (const Tensor stack = context.input(input); stack.rank) bytes += stack.dims[1] * stack.dims[2];
    return bytes;
  }

  static void begin(void* user) {
    auto* call = static_cast<Layer::Call*>(user);
    call->start = std::chrono::steady_clock::now();
    host->start(call->layer, call->step);
  }
  static void end(void* user) {
    auto* call = static_cast<Layer::Call*>(user);
    if (!host->wait(call->layer)) report_from_host(Operator::grouped_expert_ffn, Reason::host_memory);
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - call->start;
    if (call->byte_rows > 0) StreamRule::of_machine().host_took(taken.count(), call->byte_rows);
  }

  Arena arena_;
  int threads_;
  const int* places_;  // [experts] slots as in input `slots`, in the host's memory; nullptr: no weights are streamed
  int64_t staged_bytes_;
  ExpertKernels kernels_;
  std::string activations_, gate_type_, up_type_, down_type_;
  Layer layer_;
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
