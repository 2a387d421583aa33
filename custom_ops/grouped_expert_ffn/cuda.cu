// GroupedExpertFFN on a device, and MixtureOfExperts, which also makes the shared expert's output. The products of a
// token are summed in slot order, so its bits never depend on its companions.
#include "../block_matmul/weights.h"
#include "../blocks/cuda/many_products.h"
#include "../cuda/kernel.h"
#include "../cuda/last_block.cuh"
#include "few_experts.h"
#include "plan.cuh"
#include "signature.h"

namespace trigraph::TRIGRAPH_ISA {
namespace {

constexpr int64_t kManyPairs = 2;        // of an expert, from which on tiles are faster than few rows at a time
constexpr int64_t kTokensAtOnce = 1024;  // a longer step runs in parts, so that scratch memory stays bounded

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

// grid: [parts of a row, tokens]. `used`: of a plan.
__global__ void __launch_bounds__(kThreads)
    sum_slots(const float* products, const int* sorted, SlotSum sum, const int* used) {
  const int64_t column = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (*used && column < sum.width) sum(products, sorted, blockIdx.y, column);
}

// A stack of expert matrices [experts, rows, row_bytes].
struct Matrices {
  const ProductKernel* kernel;
  const uint8_t* data;
  int64_t width, row_bytes, stride;

  Matrices(const Tensor& tensor, const ProductKernel& kernel, int64_t width, int64_t rows)
      : kernel(&kernel),
        data(tensor.as<const uint8_t>()),
        width(width),
        row_bytes(check_weight(tensor, kernel, width)),
        stride(rows * row_bytes) {
    check_alignment(tensor, kernel);
  }
  // With `second`, another stack of the same shape that shares a launch, its products too.
  void product(int64_t rows, const void* x, const Buckets& buckets, int64_t max_buckets, int64_t pairs, float* y,
               cudaStream_t stream, const Matrices* second = nullptr, float* second_y = nullptr) const {
    if (takes_many(max_buckets, pairs)) {
      ManyTasks tasks(nullptr, x, width);
      add_to(tasks, rows, y);
      if (second) second->add_to(tasks, rows, second_y);
      return kernel->many(tasks, buckets, max_buckets, pairs, stream);
    }
    kernel->grouped(data, second ? second->data : nullptr, stride, rows, row_bytes, width, x, buckets, max_buckets,
                    pairs, y, second_y, stream);
  }
  bool shares_launch(const Matrices& other, int64_t max_buckets, int64_t pairs) const {
    return kernel == other.kernel || (takes_many(max_buckets, pairs) && kernel->many == other.kernel->many);
  }
  bool takes_few() const { return kernel->few == few_common && kernel->layout == Layout::int8; }
  ExpertTask few() const { return {*kernel, data, width, row_bytes, stride}; }

 private:
  bool takes_many(int64_t max_buckets, int64_t pairs) const {
    return kernel->many && kernel->layout == Layout::int8 &&
           pairs >= kManyPairs * (max_buckets - pairs / Buckets::kMost);
  }
  void add_to(ManyTasks& tasks, int64_t rows, float* y) const { tasks.add(*kernel, data, stride, rows, row_bytes, y); }
};

// What both operators do with the experts that tokens chose.
class Experts {
 public:
  explicit Experts(const KernelInfo& info) : arena_(info), counters_(FewExperts::kCounters) {
    const std::string activations = info.text("activations", "float32"), up_type = info.text("up_type", "");
    gate_ = &product_kernel(info.text("gate_type"), activations);
    if (!up_type.empty()) up_ = &product_kernel(up_type, activations);
    down_ = &product_kernel(info.text("down_type"), activations);
  }

 protected:
  // What makes a shared expert's output: silu(hidden) * up [tokens, columns of `down`].
  struct SharedDown {
    const Weight* down = nullptr;
    const float *hidden = nullptr, *up = nullptr;
  };

  // `shared` [tokens, width], or nullptr, is the shared expert's output, or the place for what `made` says.
  // `prepared`: rows of x as int8, or nullptr. `routing`: what chooses the experts, unless there are ids.
  void compute(const Context& context, const ExpertShapes& shapes, float* shared, const float* shared_gate,
               const SharedDown& made, const char* prepared, const Routing& routing) const {
    if (shapes.experts > kMostExperts)
      fail("input gate has %lld experts; on a GPU there are at most %d", static_cast<long long>(shapes.experts),
           kMostExperts);
    const Matrices gate(context.input(3), *gate_, shapes.width, shapes.fused ? 2 * shapes.ffn : shapes.ffn);
    Matrices up = gate;
    if (shapes.fused)
      up.data += shapes.ffn * up.row_bytes;
    else
      up = Matrices(context.input(5), *up_, shapes.width, shapes.ffn);
    const Matrices down(context.input(4), *down_, shapes.ffn, shapes.width);
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
      run(shapes, gate, up, down, tokens, made.down, stream);
    }
  }

  bool has_up() const { return up_ != nullptr; }
  const Arena& arena() const { return arena_; }

 private:
  // Rows of tokens as a kernel wants them; `memory` holds what had to be made.
  static const void* rows_of(const Tokens& tokens, Layout layout, int64_t width, const Arena::Memory& memory,
                             cudaStream_t stream) {
    if (layout == Layout::float32) return tokens.x;
    if (tokens.prepared) return tokens.prepared;
    prepare(tokens.x, tokens.count, width, memory.as<char>(), stream);
    return memory.as<char>();
  }
  Arena::Memory room(Layout layout, int64_t rows, int64_t width) const {
    return arena_.take<char>(layout == Layout::float32 ? 0 : rows * prepared_bytes(layout, width));
  }

  // In one launch.
  void run_few(const ExpertShapes& shapes, const Matrices& gate, const Matrices& up, const Matrices& down,
               const Tokens& tokens, const Weight* shared_down, cudaStream_t stream) const {
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
                   gate.few(),
                   up.few(),
                   down.few(),
                   {},
                   tokens.shared_hidden,
                   tokens.shared_up,
                   hidden.as<float>(),
                   tokens.sum,
                   tokens.routing,
                   counters_.at(0),
                   error_record()};
    if (const Weight* w = tokens.shared_hidden ? shared_down : nullptr)
      few.shared = {w->kernel, w->data, w->width, w->row_bytes, 0};
    few.launch(stream);
  }

  void run(const ExpertShapes& shapes, const Matrices& gate, const Matrices& up, const Matrices& down, Tokens tokens,
           const Weight* shared_down, cudaStream_t stream) const {
    const int64_t count = tokens.count, pairs = count * shapes.k;
    const bool few = gate.takes_few() && gate.kernel == up.kernel && down.takes_few() &&
                     FewExperts::fit(count, shapes.k, shapes.width, shapes.ffn);
    if (tokens.shared_hidden && !(few && shared_down->takes_few() && shared_down->width == shapes.ffn)) {
      shared_down->gated_product(tokens.shared_hidden, tokens.shared_up, count, const_cast<float*>(tokens.sum.shared),
                                 arena_, stream);
      tokens.shared_hidden = nullptr;
    }
    const bool chosen = tokens.ids || (few && count <= FewExperts::kChoosing);
    const Arena::Memory ids = arena_.take<int64_t>(chosen ? 0 : pairs),
                        weights = arena_.take<float>(chosen ? 0 : pairs);
    if (!chosen) {
      tokens.routing.ids = ids.as<int64_t>(), tokens.routing.weights = weights.as<float>();
      route(tokens.routing, count, stream);
      tokens.ids = tokens.routing.ids, tokens.sum.weights = tokens.routing.weights;
    }
    if (few) return run_few(shapes, gate, up, down, tokens, shared_down, stream);
    const int64_t max_buckets = Plan::most(pairs, shapes.experts);
    const Layout first = gate.kernel->layout, second = up.kernel->layout, third = down.kernel->layout;
    const Arena::Memory plan_memory = arena_.take<int>(Plan::size(pairs, shapes.experts));
    const Arena::Memory gate_room = room(first, count, shapes.width),
                        hidden_room = arena_.take<char>(pairs * prepared_bytes(third, shapes.ffn));
    const Arena::Memory up_room = room(second == first ? Layout::float32 : second, count, shapes.width);
    const Arena::Memory hidden = arena_.take<float>(pairs * shapes.ffn), ups = arena_.take<float>(pairs * shapes.ffn);
    const Arena::Memory products = arena_.take<float>(pairs * shapes.width);
    const Plan plan(plan_memory.as<int>(), pairs, shapes.experts);
    launch(bucket, 1, kBucketThreads, 0, stream, tokens.ids, pairs, shapes.k, shapes.experts, tokens.first, plan,
           error_record());

    const Buckets by_token{plan.used, plan.expert, plan.first, plan.token};
    const Buckets by_index{plan.used, plan.expert, plan.first, nullptr};
    const void* gate_x = rows_of(tokens, first, shapes.width, gate_room, stream);
    const void* up_x = second == first ? gate_x : rows_of(tokens, second, shapes.width, up_room, stream);
    if (gate.shares_launch(up, max_buckets, pairs)) {
      gate.product(shapes.ffn, gate_x, by_token, max_buckets, pairs, hidden.as<float>(), stream, &up, ups.as<float>());
    } else {
      gate.product(shapes.ffn, gate_x, by_token, max_buckets, pairs, hidden.as<float>(), stream);
      up.product(shapes.ffn, up_x, by_token, max_buckets, pairs, ups.as<float>(), stream);
    }
    prepare_gated(third, hidden.as<float>(), ups.as<float>(), pairs, shapes.ffn, hidden_room.as<char>(), stream);
    down.product(shapes.width, hidden_room.as<char>(), by_index, max_buckets, pairs, products.as<float>(), stream);
    launch(sum_slots, dim3(blocks_of(shapes.width, kThreads), static_cast<unsigned>(count)), kThreads, 0, stream,
           products.as<float>(), plan.sorted, tokens.sum, plan.used);
  }

  const ProductKernel* gate_;
  const ProductKernel* up_ = nullptr;  // nullptr: gate holds gate|up
  const ProductKernel* down_;
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
    const Arena::Memory output = arena().take<float>(all.tokens * all.width);
    const Routing routing{logits.as<float>(), static_cast<int>(all.experts), static_cast<int>(all.k), normalize_};
    Experts::compute(context, all, output.as<float>(), gate.as<float>(), {&weight, hidden.as<float>(), up.as<float>()},
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
