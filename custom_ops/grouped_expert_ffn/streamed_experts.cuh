// All experts of a layer on the device: its own, and the host's a batch at a time. With many rows that is faster than
// the CPU.
#pragma once

#include <vector>

#include "grouped_products.cuh"
#include "weight_stream.cuh"

namespace trigraph::TRIGRAPH_ISA {
namespace {

constexpr int64_t kManyTokens = 65;       // of a step that may copy weights: more than one that is captured has
constexpr int64_t kTokensOfAPlan = 4096;  // a longer step copies them again, so that memory stays bounded
constexpr int64_t kBatchBytes = int64_t{128} << 20;  // of weights that are copied at a time

// The host's experts of a layer, in batches of equal size.
class StreamedExperts {
 public:
  // `whole`: all experts, in the host's memory; `numbers`: those to copy, some.
  StreamedExperts(const ExpertStacks& whole, std::vector<int> numbers, int64_t batch_bytes)
      : whole_(whole),
        numbers_(std::move(numbers)),
        fused_(whole.up.stride == whole.gate.stride && whole.up.data >= whole.gate.data &&
               whole.up.data < whole.gate.data + whole.gate.stride) {
    const int64_t bytes = whole.gate.stride + (fused_ ? 0 : whole.up.stride) + whole.down.stride;
    most_bytes_ = std::max(bytes, std::min(batch_bytes, whole.experts * bytes)) + 2 * kAlignment;
    const auto count = static_cast<int64_t>(numbers_.size()), most = std::max<int64_t>(1, batch_bytes / bytes);
    batches_ = (count + most - 1) / most;
    batch_ = (count + batches_ - 1) / batches_;
    batches_ = (count + batch_ - 1) / batch_;
  }
  int64_t batches() const { return batches_; }
  int64_t batch_size() const { return batch_; }  // experts

  WeightBatch batch(int64_t number) const {
    WeightBatch made;
    made.most = most_bytes_;
    add(made, whole_.gate, number);
    if (!fused_) add(made, whole_.up, number);
    add(made, whole_.down, number);
    return made;
  }
  // Its stacks where it lies.
  ExpertStacks stacks(int64_t number, const uint8_t* memory) const {
    ExpertStacks found = whole_;
    found.experts = size(number);
    found.gate.data = memory;
    const int64_t second = aligned(found.experts * whole_.gate.stride);
    found.up.data = fused_ ? memory + (whole_.up.data - whole_.gate.data) : memory + second;
    found.down.data = memory + (fused_ ? second : aligned(second + found.experts * whole_.up.stride));
    return found;
  }

 private:
  static constexpr int64_t kAlignment = 256;
  static int64_t aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }
  int64_t size(int64_t number) const {
    return std::min(batch_, static_cast<int64_t>(numbers_.size()) - number * batch_);
  }
  // Neighbours are one piece.
  void add(WeightBatch& made, const Matrices& stack, int64_t number) const {
    const int64_t count = size(number), start = aligned(made.bytes);
    const int* first = numbers_.data() + number * batch_;
    for (int64_t i = 0, end; i < count; i = end) {
      for (end = i + 1; end < count && first[end] == first[i] + static_cast<int>(end - i);) ++end;
      made.pieces.push_back({stack.data + first[i] * stack.stride, start + i * stack.stride, (end - i) * stack.stride});
    }
    made.bytes = start + count * stack.stride;
  }

  const ExpertStacks whole_;
  const std::vector<int> numbers_;
  bool fused_;  // gate holds gate|up
  int64_t batches_, batch_, most_bytes_;
};

// products [pairs, width] by sorted index of a plan whose groups are the experts of the device and one batch each.
// `held`: the device's, some or none.
inline void multiply(const ExpertStacks& held, const StreamedExperts& streamed, WeightStream& weights, void* layer,
                     TokenRows tokens, const Plan& plan, float* products, const Arena& arena, cudaStream_t stream) {
  const unsigned forms = held.gate.kernel->form | held.up.kernel->form;
  const Arena::Memory room = arena.take<char>(forms ? tokens.count * prepared_bytes(Layout::int8, held.width) : 0);
  tokens.prepared = static_cast<const char*>(rows_of(tokens, forms, held.width, room, stream));
  if (held.experts) multiply(held, tokens, plan, 0, products, arena, stream);
  for (int64_t i = 0; i < streamed.batches(); ++i) {
    const uint8_t* memory = weights.send(streamed.batch(i), layer);
    multiply(streamed.stacks(i, memory), tokens, plan, static_cast<int>(1 + i), products, arena, stream);
    weights.sent_is_read();
  }
}

}  // namespace
}  // namespace trigraph::TRIGRAPH_ISA
