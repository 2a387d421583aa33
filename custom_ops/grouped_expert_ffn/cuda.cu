// Mixture-of-experts FFN on a device. (token, slot) pairs are bucketed by expert by one block, in the order of the
// pairs, so that the rows of a chosen expert are read once for all its tokens; the products of a token are then summed
// in slot order, so its bits never depend on its companions.
#include "../blocks/few_products.h"
#include "../cuda/kernel.h"
#include "signature.h"

namespace trigraph::TRIGRAPH_ISA {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kTokensAtOnce = 1024;  // a longer step runs in parts, so that scratch memory stays bounded
constexpr int kStaged = 1024;            // ids in shared memory
constexpr int kMostExperts = 1024;

// The pairs of a step, sorted by expert; pairs of an expert keep their order.
struct Plan {
  int* used;    // how many experts some token chose; 0 for a step with a bad id
  int* expert;  // [used]
  int* first;   // [used + 1] sorted indices
  int* token;   // [pairs] by sorted index
  int* sorted;  // [pairs] sorted index of each pair
  static int64_t size(int64_t pairs, int64_t experts) { return 1 + experts + (experts + 1) + 2 * pairs; }
  Plan(int* memory, int64_t pairs, int64_t experts)
      : used(memory), expert(used + 1), first(expert + experts), token(first + experts + 1), sorted(token + pairs) {}
};

// The sum of the values of all threads before this one.
__device__ __forceinline__ int sum_before(int value, int* sums) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  int sum = value;
  for (int offset = 1; offset < kWarp; offset *= 2) {
    const int other = __shfl_up_sync(kAllLanes, sum, offset);
    if (lane >= offset) sum += other;
  }
  __syncthreads();
  if (lane == kWarp - 1) sums[warp] = sum;
  __syncthreads();
  for (int i = 0; i < warp; ++i) sum += sums[i];
  return sum - value;
}

// One block. A thread owns an expert, and meets all ids in their order: nothing depends on which thread is first.
__global__ void __launch_bounds__(kThreads)
    bucket(const int64_t* ids, int pairs, int k, int experts, int64_t token_offset, Plan plan, ErrorRecord* record) {
  __shared__ int16_t staged[kStaged];
  __shared__ int count[kMostExperts], rank[kMostExperts], sums[kThreads / kWarp];
  bool bad = false;
  for (int i = threadIdx.x; i < pairs; i += kThreads) bad = bad || ids[i] < 0 || ids[i] >= experts;
  if (__syncthreads_or(bad)) {
    if (threadIdx.x != 0) return;
    *plan.used = 0;
    for (int i = 0; i < pairs; ++i)
      if (ids[i] < 0 || ids[i] >= experts) {
        report(record, Operator::grouped_expert_ffn, Reason::expert_id, ids[i], token_offset + i / k, i % k, experts);
        return;
      }
  }
  const auto each_id = [&](auto&& meet) {
    for (int start = 0; start < pairs; start += kStaged) {
      const int here = min(kStaged, pairs - start);
      __syncthreads();
      for (int i = threadIdx.x; i < here; i += kThreads) staged[i] = static_cast<int16_t>(ids[start + i]);
      __syncthreads();
      for (int e = threadIdx.x; e < experts; e += kThreads)
        for (int i = 0; i < here; ++i)
          if (staged[i] == e) meet(e, start + i);
    }
  };
  for (int e = threadIdx.x; e < experts; e += kThreads) count[e] = 0;
  each_id([&](int e, int) { ++count[e]; });
  __syncthreads();
  // Each thread has neighbouring experts; how many are used, and how many pairs they have, is summed up over threads.
  const int each = (experts + kThreads - 1) / kThreads, begin = threadIdx.x * each, end = min(begin + each, experts);
  int used = 0, index = 0;
  for (int e = begin; e < end; ++e) {
    used += count[e] != 0;
    index += count[e];
  }
  const int used_before = sum_before(used, sums), pairs_before = sum_before(index, sums);
  if (threadIdx.x == kThreads - 1) {
    *plan.used = used_before + used;
    plan.first[used_before + used] = pairs_before + index;
  }
  used = used_before, index = pairs_before;
  for (int e = begin; e < end; ++e) {
    rank[e] = index;
    if (!count[e]) continue;
    plan.expert[used] = e;
    plan.first[used++] = index;
    index += count[e];
  }
  __syncthreads();
  each_id([&](int e, int pair) {
    const int index = rank[e]++;
    plan.sorted[pair] = index;
    plan.token[index] = pair / k;
  });
}

// The tokens of a part of a step, a row of each for every token.
struct Tokens {
  const float* x;
  const int64_t* ids;
  const float* weights;
  const float *shared, *shared_gate;  // of the shared expert, or nullptr
  int64_t first, count;               // of the step
  float* y;
};

// In the order of slots, the shared expert last. grid: [parts of a row, tokens].
__global__ void __launch_bounds__(kThreads)
    sum_slots(const float* products, const int* sorted, Tokens tokens, int k, int64_t width, const int* used) {
  // `sorted`, `used`: of a plan, or nullptr for products in the order of the pairs.
  const int64_t column = int64_t{blockIdx.x} * kThreads + threadIdx.x, token = blockIdx.y, at = token * width + column;
  if ((used && !*used) || column >= width) return;
  float sum = 0;
  for (int64_t j = token * k; j < (token + 1) * k; ++j)
    sum = fmaf(tokens.weights[j], products[(sorted ? sorted[j] : j) * width + column], sum);
  if (tokens.shared) sum = fmaf(sigmoid(tokens.shared_gate[token]), tokens.shared[at], sum);
  tokens.y[at] = sum;
}

class GroupedExpertFFN : public GroupedExpertFFNSignature {
 public:
  explicit GroupedExpertFFN(const KernelInfo& info) : arena_(info) {
    const std::string activations = info.text("activations", "float32"), up_type = info.text("up_type", "");
    gate_ = &product_kernel(info.text("gate_type"), activations);
    if (!up_type.empty()) up_ = &product_kernel(up_type, activations);
    down_ = &product_kernel(info.text("down_type"), activations);
  }

  void compute(const Context& context) const {
    const ExpertShapes shapes = GroupedExpertFFNSignature::shapes(context, up_ != nullptr);
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
    const Tensor x = context.input(0), ids = context.input(1), weights = context.input(2);
    const Tensor y = context.output(0, {shapes.tokens, shapes.width});
    const Tensor shared = context.input(6), shared_gate = context.input(7);
    for (int64_t t = 0; t < shapes.tokens; t += kTokensAtOnce)
      run(shapes, gate, up, down,
          {x.as<float>() + t * shapes.width, ids.as<int64_t>() + t * shapes.k, weights.as<float>() + t * shapes.k,
           shared.rank ? shared.as<float>() + t * shapes.width : nullptr,
           shared.rank ? shared_gate.as<float>() + t : nullptr, t, std::min(kTokensAtOnce, shapes.tokens - t),
           y.as<float>() + t * shapes.width},
          stream_of(context));
  }

 private:
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
    // With `second`, another stack of the same type and shape, its products too.
    void product(int64_t rows, const void* x, const Buckets& buckets, int64_t max_buckets, int64_t pairs, float* y,
                 cudaStream_t stream, const uint8_t* second = nullptr, float* second_y = nullptr) const {
      kernel->grouped(data, second, stride, rows, row_bytes, width, x, buckets, max_buckets, pairs, y, second_y,
                      stream);
    }
  };

  // Rows as a kernel wants them; `memory` holds what had to be made.
  static const void* prepared(Layout layout, const float* x, int64_t rows, int64_t width, const Arena::Memory& memory,
                              cudaStream_t stream) {
    if (layout == Layout::float32) return x;
    prepare(x, rows, width, memory.as<char>(), stream);
    return memory.as<char>();
  }
  Arena::Memory room(Layout layout, int64_t rows, int64_t width) const {
    return arena_.take<char>(layout == Layout::float32 ? 0 : rows * prepared_bytes(layout, width));
  }

  static bool takes_few(const Matrices& matrices) {
    return matrices.kernel->few == few_common && matrices.kernel->layout == Layout::int8;
  }

  // Without a plan: each block finds the pairs of its expert.
  void run_few(const ExpertShapes& shapes, const Matrices& gate, const Matrices& up, const Matrices& down,
               const Tokens& tokens, cudaStream_t stream) const {
    const int64_t pairs = tokens.count * shapes.k;
    const Arena::Memory hidden = arena_.take<float>(pairs * shapes.ffn), ups = arena_.take<float>(pairs * shapes.ffn);
    const Arena::Memory products = arena_.take<float>(pairs * shapes.width);
    FewPairs of{tokens.ids,
                static_cast<int>(pairs),
                static_cast<int>(shapes.k),
                static_cast<int>(shapes.experts),
                tokens.first,
                false,
                {gate.stride, up.stride},
                error_record()};
    FewTasks first(tokens.x, nullptr, shapes.width, tokens.count);
    first.add(*gate.kernel, gate.data, shapes.ffn, gate.row_bytes, hidden.as<float>());
    first.add(*up.kernel, up.data, shapes.ffn, up.row_bytes, ups.as<float>());
    few_of_pairs(first, of, stream);
    of.row_for_each = true, of.stride[0] = down.stride;
    FewTasks second(hidden.as<float>(), ups.as<float>(), shapes.ffn, pairs);
    second.add(*down.kernel, down.data, shapes.width, down.row_bytes, products.as<float>());
    few_of_pairs(second, of, stream);
    launch(sum_slots, dim3(blocks_of(shapes.width, kThreads), static_cast<unsigned>(tokens.count)), kThreads, 0, stream,
           products.as<float>(), nullptr, tokens, shapes.k, shapes.width, nullptr);
  }

  void run(const ExpertShapes& shapes, const Matrices& gate, const Matrices& up, const Matrices& down,
           const Tokens& tokens, cudaStream_t stream) const {
    const int64_t count = tokens.count, pairs = count * shapes.k;
    if (takes_few(gate) && takes_few(up) && takes_few(down) && FewPairs::fit(pairs, shapes.width) &&
        FewPairs::fit(pairs, shapes.ffn))
      return run_few(shapes, gate, up, down, tokens, stream);
    const int64_t max_buckets = std::min(shapes.experts, pairs);
    const Layout first = gate.kernel->layout, second = up.kernel->layout, third = down.kernel->layout;
    const Arena::Memory plan_memory = arena_.take<int>(Plan::size(pairs, shapes.experts));
    const Arena::Memory gate_room = room(first, count, shapes.width),
                        hidden_room = arena_.take<char>(pairs * prepared_bytes(third, shapes.ffn));
    const Arena::Memory up_room = room(second == first ? Layout::float32 : second, count, shapes.width);
    const Arena::Memory hidden = arena_.take<float>(pairs * shapes.ffn), ups = arena_.take<float>(pairs * shapes.ffn);
    const Arena::Memory products = arena_.take<float>(pairs * shapes.width);
    const Plan plan(plan_memory.as<int>(), pairs, shapes.experts);
    launch(bucket, 1, kThreads, 0, stream, tokens.ids, pairs, shapes.k, shapes.experts, tokens.first, plan,
           error_record());

    const Buckets by_token{plan.used, plan.expert, plan.first, plan.token};
    const Buckets by_index{plan.used, plan.expert, plan.first, nullptr};
    const void* gate_x = prepared(first, tokens.x, count, shapes.width, gate_room, stream);
    const void* up_x = second == first ? gate_x : prepared(second, tokens.x, count, shapes.width, up_room, stream);
    if (gate.kernel == up.kernel) {
      gate.product(shapes.ffn, gate_x, by_token, max_buckets, pairs, hidden.as<float>(), stream, up.data,
                   ups.as<float>());
    } else {
      gate.product(shapes.ffn, gate_x, by_token, max_buckets, pairs, hidden.as<float>(), stream);
      up.product(shapes.ffn, up_x, by_token, max_buckets, pairs, ups.as<float>(), stream);
    }
    prepare_gated(third, hidden.as<float>(), ups.as<float>(), pairs, shapes.ffn, hidden_room.as<char>(), stream);
    down.product(shapes.width, hidden_room.as<char>(), by_index, max_buckets, pairs, products.as<float>(), stream);
    launch(sum_slots, dim3(blocks_of(shapes.width, kThreads), static_cast<unsigned>(count)), kThreads, 0, stream,
           products.as<float>(), plan.sorted, tokens, shapes.k, shapes.width, plan.used);
  }

  const ProductKernel* gate_;
  const ProductKernel* up_ = nullptr;  // nullptr: gate holds gate|up
  const ProductKernel* down_;
  Arena arena_;
};

}  // namespace

const OrtCustomOp* grouped_expert_ffn() {
  static const Op<Checked<GroupedExpertFFN>> op;
  return &op;
}

}  // namespace trigraph::TRIGRAPH_ISA
