// The draw of a token from each row of logits, as an operator: all rows by the same filters, seed and position.
#include "../../../custom_ops/cuda/kernel.h"
#include "host.h"

extern "C" {
int64_t trigraph_draw_scratch(int64_t width);
const char* trigraph_draw_rows(const float* logits, int64_t rows, int64_t width, const int64_t* tokens,
                               const void* draws, void* scratch, void* stream);
}

namespace gpu_kernels {
namespace {

using namespace trigraph;

// `Draw` in custom_ops/cuda/draw.cu.
struct Draw {
  double temperature = 0.7, top_p = 0.95, min_p = 0;
  uint64_t seed = 1, position = 7;
  int64_t* token;
  int32_t top_k = 20, only_drawn = 1;
};

struct DrawTokens {
  static constexpr const char* kName = "DrawTokens";
  static constexpr Argument kInputs[] = {{"logits", DType::f32}, {"tokens", DType::i64}};
  static constexpr Argument kOutputs[] = {{"y", DType::i64}};

  explicit DrawTokens(const KernelInfo&) {}
  DrawTokens(DrawTokens&&) = default;
  ~DrawTokens() {
    for (const auto& [tokens, draws] : draws_) (void)cudaFree(draws);
    if (scratch_) (void)cudaFree(scratch_);
  }

  void compute(const Context& context) const {
    const Tensor logits = context.input(0);
    const int64_t rows = logits.dims[0], width = logits.dims[1];
    auto* to = context.output(0, {rows}).as<int64_t>();
    auto* stream = static_cast<cudaStream_t>(context.gpu_stream());
    if (!scratch_) {
      const auto bytes = static_cast<size_t>(trigraph_draw_scratch(width));
      cuda::check(cudaMalloc(&scratch_, bytes), "scratch memory");
      cuda::check(cudaMemsetAsync(scratch_, 0, bytes, stream), "scratch memory");
    }
    void*& draws = draws_[{to, rows}];  // made by the first call, which is not captured
    if (!draws) draws = make_draws(to, rows, stream);
    const char* problem = trigraph_draw_rows(logits.as<float>(), rows, width, context.input(1).as<const int64_t>(),
                                             draws, scratch_, stream);
    if (*problem) fail("%s", problem);
  }

 private:
  static void* make_draws(int64_t* to, int64_t rows, cudaStream_t stream) {
    std::vector<Draw> all(static_cast<size_t>(rows));
    for (Draw& draw : all) draw.token = to++;
    void* memory = nullptr;
    const size_t bytes = all.size() * sizeof(Draw);
    cuda::check(cudaMalloc(&memory, bytes), "memory for draws");
    cuda::check(cudaMemcpyAsync(memory, all.data(), bytes, cudaMemcpyDefault, stream), "a copy");
    cuda::check(cudaStreamSynchronize(stream), "a copy");
    return memory;
  }

  mutable std::map<std::pair<int64_t*, int64_t>, void*> draws_;  // by where how many tokens go
  mutable void* scratch_ = nullptr;
};

}  // namespace

const OrtCustomOp* draw_tokens() {
  static const Op<DrawTokens> op;
  return &op;
}

}  // namespace gpu_kernels
