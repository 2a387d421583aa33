// The rows that experts make for the pairs of a token and a slot, in as many launches as any number of them takes.
#pragma once

#include "../blocks/cuda/many_products.h"
#include "../cuda/kernel.h"
#include "few_experts.h"
#include "plan.cuh"

namespace trigraph::TRIGRAPH_ISA {
namespace {

constexpr int64_t kManyPairs = 2;  // of an expert, from which on tiles are faster than few rows at a time

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
  ExpertTask few(int64_t rows, int64_t count) const {
    return {*kernel, data, data + (count - 1) * stride + rows * row_bytes, width, row_bytes, stride};
  }

 private:
  bool takes_many(int64_t max_buckets, int64_t pairs) const {
    return kernel->many && kernel->layout == Layout::int8 &&
           pairs >= kManyPairs * (max_buckets - pairs / Buckets::kMost);
  }
  void add_to(ManyTasks& tasks, int64_t rows, float* y) const { tasks.add(*kernel, data, stride, rows, row_bytes, y); }
};

struct ExpertStacks {
  Matrices gate, up, down;
  int64_t experts, width, ffn;  // experts: of the stacks

  // Rows of a bucket of a plan for so many pairs, which choose among `all` experts.
  int bucket_rows(int64_t pairs, int64_t all) const {
    return TRIGRAPH_ISA::bucket_rows(pairs / all, {gate.kernel, up.kernel, down.kernel});
  }
};

// The kernels for a node's stacks.
struct ExpertKernels {
  const ProductKernel *gate, *up, *down;  // up: nullptr where gate holds gate|up

  explicit ExpertKernels(const KernelInfo& info) : up(nullptr) {
    const std::string activations = info.text("activations", "float32"), up_type = info.text("up_type", "");
    gate = &product_kernel(info.text("gate_type"), activations);
    if (!up_type.empty()) up = &product_kernel(up_type, activations);
    down = &product_kernel(info.text("down_type"), activations);
  }

  // Stacks of so many experts.
  ExpertStacks stacks(const Tensor& gates, const Tensor& downs, const Tensor& ups, int64_t experts, int64_t width,
                      int64_t ffn) const {
    const Matrices first(gates, *gate, width, up ? ffn : 2 * ffn);
    Matrices second = first;
    if (up)
      second = Matrices(ups, *up, width, ffn);
    else
      second.data += ffn * second.row_bytes;
    return {first, second, Matrices(downs, *down, ffn, width), experts, width, ffn};
  }
};

struct TokenRows {
  const float* x;
  const char* prepared;  // the same as int8, or nullptr
  int64_t count, k;
};

// Rows of tokens as int8 in these forms; `memory` holds what had to be made.
inline const void* rows_of(const TokenRows& tokens, unsigned forms, int64_t width, const Arena::Memory& memory,
                           cudaStream_t stream) {
  if (tokens.prepared || !forms) return tokens.prepared;
  prepare(tokens.x, tokens.count, width, forms, memory.as<char>(), stream);
  return memory.as<char>();
}

// products [pairs, width] by sorted index, of the pairs of a group of a plan.
inline void multiply(const ExpertStacks& stacks, const TokenRows& tokens, const Plan& plan, int group, float* products,
                     const Arena& arena, cudaStream_t stream) {
  const Matrices &gate = stacks.gate, &up = stacks.up, &down = stacks.down;
  const int64_t width = stacks.width, ffn = stacks.ffn;
  const int64_t pairs = tokens.count * tokens.k, max_buckets = Plan::most(pairs, stacks.experts, plan.rows);
  const unsigned forms = gate.kernel->form | up.kernel->form;
  const Arena::Memory room =
      arena.take<char>(forms && !tokens.prepared ? tokens.count * prepared_bytes(Layout::int8, width) : 0);
  const Arena::Memory hidden_room = arena.take<char>(pairs * prepared_bytes(down.kernel->layout, ffn));
  const Arena::Memory hidden = arena.take<float>(pairs * ffn), ups = arena.take<float>(pairs * ffn);
  const Buckets by_token = plan.buckets(group, plan.token), by_index = plan.buckets(group, nullptr);
  const void* rows = rows_of(tokens, forms, width, room, stream);
  const void *gate_x = gate.kernel->form ? rows : tokens.x, *up_x = up.kernel->form ? rows : tokens.x;
  if (gate.shares_launch(up, max_buckets, pairs)) {
    gate.product(ffn, gate_x, by_token, max_buckets, pairs, hidden.as<float>(), stream, &up, ups.as<float>());
  } else {
    gate.product(ffn, gate_x, by_token, max_buckets, pairs, hidden.as<float>(), stream);
    up.product(ffn, up_x, by_token, max_buckets, pairs, ups.as<float>(), stream);
  }
  prepare_gated(hidden.as<float>(), ups.as<float>(), pairs, ffn, down.kernel->form, hidden_room.as<char>(), stream);
  down.product(width, hidden_room.as<char>(), by_index, max_buckets, pairs, products, stream);
}

// grid: [parts of a row, tokens]. `good`: of the plan that sorted the pairs.
__global__ void __launch_bounds__(kThreads)
    sum_slots(const float* products, const int* sorted, SlotSum sum, const int* good) {
  const int64_t column = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (*good && column < sum.width) sum(products, sorted, blockIdx.y, column);
}

}  // namespace
}  // namespace trigraph::TRIGRAPH_ISA
