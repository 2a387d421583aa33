// GroupedExpertFFN on a device, and MixtureOfExperts, which also makes the shared expert's output. The products of a
// token are summed in slot order, so its bits never depend on its companions.
#include "../block_matmul/weights.h"
#include "../cuda/kernel.h"
#include "../cuda/last_block.cuh"
#include "few_experts.h"
#include "grouped_products.cuh"
#include "signature.h"

namespace trigraph::TRIGRAPH_ISA {
namespace {

constexpr int64_t kTokensAtOnce = 4096;  // a longer step runs in parts, so that scratch memory stays bounded

// The tokens of a part of a step, a row of each for every token.
struct Tokens {
  const float* x;
  const char* prepared;  // the same as int8, or nullptr
  const int64_t* ids;    // nullptr: those that `routing` chooses
  int64_t first, count;  // of the step
  SlotSum sum;
  const float *shared_hidden, *shared_up;  // nullptr: the shared expert's output is there
  Routing routing;
};

// What both operators do with the experts that tokens chose.
class Experts {
 public:
  explicit Experts(const KernelInfo& info) : kernels_(info), arena_(info), counters_(FewExperts::kCounters) {}

 protected:
  // What makes a shared expert's output: silu(hidden) * up [tokens, columns of `down`].
  struct SharedDown {
    const Weight* down = nullptr;
    const float *hidden = nullptr, *up = nullptr;
  };

  // `shared` [tokens, width]: the shared expert's output, or nullptr where there is none or `made` says how it is made.
  // `prepared`: rows of x as int8, or nullptr. `routing`: what chooses the experts, unless there are ids.
  void compute(const Context& context, const ExpertShapes& shapes, const float* shared, const float* shared_gate,
               const SharedDown& made, const char* prepared, const Routing& routing) const {
    if (shapes.experts > kMostExperts)
      fail("input gate has %lld experts; on a GPU there are at most %d", static_cast<long long>(shapes.experts),
           kMostExperts);
    const ExpertStacks stacks =
        kernels_.stacks(context.input(3), context.input(4), context.input(5), shapes.experts, shapes.width, shapes.ffn);
    const Tensor x = context.input(0), given = context.input(1), weights = context.input(2);
    const int64_t* ids = routing.logits ? nullptr : given.as<int64_t>();
    const Tensor y = context.output(0, {shapes.tokens, shapes.width});
    const int64_t shared_ffn = made.down ? made.down->width : 0;
    const cudaStream_t stream = stream_of(context);
    for (int64_t t = 0; t < shapes.tokens; t += kTokensAtOnce) {
      const auto part = [t](auto* rows, int64_t width) { return rows ? rows + t * width : nullptr; };
      Tokens tokens{x.as<float>() + t * shapes.width,
                    part(prepared, prepared_bytes(Layout::int8, shapes.width)),
                    part(ids, shapes.k),
                    t,
                    std::min(kTokensAtOnce, shapes.tokens - t),
                    {static_cast<int>(shapes.k), shapes.width, part(ids ? weights.as<float>() : nullptr, shapes.k),
                     part(shared, shapes.width), part(shared_gate, 1), y.as<float>() + t * shapes.width},
                    part(made.hidden, shared_ffn),
                    part(made.up, shared_ffn),
                    routing};
      tokens.routing.logits = part(routing.logits, shapes.experts);
      run(shapes, stacks, tokens, made.down, stream);
    }
  }

  bool has_up() const { return kernels_.up != nullptr; }

 private:
  // In one launch.
  void run_few(const ExpertShapes& shapes, const ExpertStacks& stacks, const Tokens& tokens, const Weight* shared_down,
               cudaStream_t stream) const {
    const Arena::Memory hidden = arena_.take<float>(tokens.count * shapes.k * shapes.ffn);
    FewExperts few{tokens.ids,
                   static_cast<int>(tokens.count),
                   static_cast<int>(shapes.k),
                   static_cast<int>(shapes.experts),
                   tokens.first,
                   static_cast<int>(shapes.width),
                   static_cast<int>(shapes.ffn),
                   tokens.x,
                   tokens.prepared,
                   stacks.gate.few(shapes.ffn, shapes.experts),
                   stacks.up.few(shapes.ffn, shapes.experts),
                   stacks.down.few(shapes.width, shapes.experts),
                   {},
                   tokens.shared_hidden,
                   tokens.shared_up,
                   hidden.as<float>(),
                   tokens.sum,
                   tokens.routing,
                   counters_.at(0),
                   error_record()};
    if (const Weight* w = tokens.shared_hidden ? shared_down : nullptr)
      few.shared = {w->kernel, w->data, w->data + shapes.width * w->row_bytes, w->width, w->row_bytes, 0};
    few.launch(stream);
  }

  void run(const ExpertShapes& shapes, const ExpertStacks& stacks, Tokens tokens, const Weight* shared_down,
           cudaStream_t stream) const {
    const int64_t count = tokens.count, pairs = count * shapes.k;
    const bool few = stacks.gate.takes_few() && stacks.gate.kernel == stacks.up.kernel && stacks.down.takes_few() &&
                     FewExperts::fit(count, shapes.k, shapes.width, shapes.ffn);
    const bool apart = tokens.shared_hidden && !(few && shared_down->takes_few() && shared_down->width == shapes.ffn);
    const Arena::Memory shared = arena_.take<float>(apart ? count * shapes.width : 0);
    if (apart) {
      shared_down->gated_product(tokens.shared_hidden, tokens.shared_up, count, shared.as<float>(), arena_, stream);
      tokens.sum.shared = shared.as<float>(), tokens.shared_hidden = nullptr;
    }
    const bool chosen = tokens.ids || few;
    const Arena::Memory ids = arena_.take<int64_t>(chosen ? 0 : pairs),
                        weights = arena_.take<float>(chosen ? 0 : pairs);
    if (!chosen) {
      tokens.routing.ids = ids.as<int64_t>(), tokens.routing.weights = weights.as<float>();
      route(tokens.routing, count, stream);
      tokens.ids = tokens.routing.ids, tokens.sum.weights = tokens.routing.weights;
    }
    if (few) return run_few(shapes, stacks, tokens, shared_down, stream);
    const Arena::Memory plan_memory = arena_.take<int>(Plan::size(pairs, shapes.experts));
    const Arena::Memory products = arena_.take<float>(pairs * shapes.width);
    const Plan plan(plan_memory.as<int>(), pairs, shapes.experts, stacks.bucket_rows(pairs, shapes.experts));
    launch(bucket, 1, kBucketThreads, 0, stream, tokens.ids, pairs, shapes.k, shapes.experts, nullptr, 0, tokens.first,
           plan, error_record());
    multiply(stacks, {tokens.x, tokens.prepared, count, shapes.k}, plan, 0, products.as<float>(), arena_, stream);
    launch(sum_slots, dim3(blocks_of(shapes.width, kThreads), static_cast<unsigned>(count)), kThreads, 0, stream,
           products.as<float>(), plan.sorted, tokens.sum, plan.good);
  }

  ExpertKernels kernels_;
  Arena arena_;
  Counters counters_;
};

struct GroupedExpertFFN : GroupedExpertFFNSignature, Experts {
  using Experts::Experts;

  void compute(const Context& context) const {
    const ExpertShapes all = shapes(context, has_up());
    const Tensor shared = context.input(6), shared_gate = context.input(7);
    Experts::compute(context, all, shared.as<float>(), shared_gate.as<float>(), {}, nullptr, {});
  }
};

struct MixtureOfExperts : MixtureOfExpertsSignature, Experts {
  explicit MixtureOfExperts(const KernelInfo& info)
      : Experts(info),
        kernel_(product_kernel(info.text("shared_down_type"), info.text("activations", "float32"))),
        routed_(info.integer("k", 0)),
        normalize_(info.integer("normalize", 0) != 0) {}

  void compute(const Context& context) const {
    const ExpertShapes all = shapes(context, has_up(), routed_);
    const Tensor hidden = context.input(6), up = context.input(7), gate = context.input(8), down = context.input(9);
    const Weight weight(down, kernel_, hidden.dims[1]);
    const Tensor logits = context.input(10), prepared = context.input(11);
    if (prepared.rank) prepared.expect({all.tokens, prepared_bytes(Layout::int8, all.width)});
    const Routing routing{logits.as<float>(), static_cast<int>(all.experts), static_cast<int>(all.k), normalize_};
    Experts::compute(context, all, nullptr, gate.as<float>(), {&weight, hidden.as<float>(), up.as<float>()},
                     prepared.as<char>(), routing);
  }

 private:
  const ProductKernel& kernel_;
  int64_t routed_;  // experts of a token that the operator chooses, or 0
  bool normalize_;
};

}  // namespace

const OrtCustomOp* grouped_expert_ffn() {
  static const Op<Checked<GroupedExpertFFN>> op;
  return &op;
}

const OrtCustomOp* mixture_of_experts() {
  static const Op<Checked<MixtureOfExperts>> op;
  return &op;
}

}  // namespace trigraph::TRIGRAPH_ISA
