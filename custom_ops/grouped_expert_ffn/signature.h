// The operator as a graph sees it: inputs, and the shapes that must agree.
#pragma once

#include "../kernel.h"

namespace trigraph::TRIGRAPH_ISA {

struct ExpertShapes {
  int64_t tokens, k, experts, width, ffn;
  bool fused;  // gate holds gate|up
};

// The shapes of the experts that tokens choose, whose inputs come first. `up_type`: whether the attribute is given.
// Rows of weights are the kernel's to check. `routed`: experts of a token that the operator chooses, or 0 where ids and
// weights are given.
inline ExpertShapes expert_shapes(const Context& context, bool up_type, int64_t routed = 0) {
  const Tensor x = context.input(0), ids = context.input(1), weights = context.input(2);
  const Tensor gate = context.input(3), down = context.input(4), up = context.input(5);
  x.expect({-1, -1});
  const int64_t tokens = x.dims[0], width = x.dims[1];
  if (!routed) ids.expect({tokens, -1});
  const int64_t k = routed ? routed : ids.dims[1];
  if (!routed) weights.expect({tokens, k});
  const bool fused = !up.data;
  if (fused && up_type) fail("input up is missing although attribute up_type is given");
  if (!fused && !up_type) fail("attribute up_type is missing although input up is given");
  gate.expect({-1, -1, -1});
  const int64_t experts = gate.dims[0], ffn = fused ? gate.dims[1] / 2 : gate.dims[1];
  if (width < 1 || experts < 1 || ffn < 1) fail("input x or input gate is empty");
  if (fused && gate.dims[1] % 2)
    fail("input gate has %lld rows an expert: without input up it must hold as many gate rows as up rows",
         static_cast<long long>(gate.dims[1]));
  down.expect({experts, width, -1});
  if (!fused) up.expect({experts, ffn, -1});
  if (k < 1 || k > experts)
    fail("input ids has %lld slots a token, input gate has %lld experts", static_cast<long long>(k),
         static_cast<long long>(experts));
  return {tokens, k, experts, width, ffn, fused};
}

struct GroupedExpertFFNSignature {
  static constexpr const char* kName = "GroupedExpertFFN";
  static constexpr Argument kInputs[] = {
      {"x", DType::f32},    {"ids", DType::i64},      {"weights", DType::f32},      {"gate", DType::any},
      {"down", DType::any}, {"up", DType::any, true}, {"shared", DType::f32, true}, {"shared_gate", DType::f32, true}};
  static constexpr Argument kOutputs[] = {{"y", DType::f32}};

  static ExpertShapes shapes(const Context& context, bool up_type) {
    const ExpertShapes found = expert_shapes(context, up_type);
    const Tensor shared = context.input(6), shared_gate = context.input(7);
    if (!shared.rank != !shared_gate.rank) fail("inputs shared and shared_gate go together, but only one is given");
    if (shared.rank) shared.expect({found.tokens, found.width}), shared_gate.expect({found.tokens, 1});
    return found;
  }
};

// GroupedExpertFFN on a GPU that has not got all experts. `gate`, `down` and `up` lie in the host's memory; those in
// the device's are in `gate_slots` and so on, [slots, ...]: expert e in slot slots[e], or nowhere for -1. None without
// these.
struct SplitExpertsSignature : GroupedExpertFFNSignature {
  static constexpr const char* kName = "SplitExperts";
  static constexpr Argument kInputs[] = {{"x", DType::f32},
                                         {"ids", DType::i64},
                                         {"weights", DType::f32},
                                         {"gate", DType::any, false, true},
                                         {"down", DType::any, false, true},
                                         {"up", DType::any, true, true},
                                         {"shared", DType::f32, true},
                                         {"shared_gate", DType::f32, true},
                                         {"slots", DType::i32},
                                         {"gate_slots", DType::any, true},
                                         {"down_slots", DType::any, true},
                                         {"up_slots", DType::any, true}};

  // How many slots there are.
  static int64_t slots(const Context& context, const ExpertShapes& shapes) {
    const Tensor gate = context.input(9), down = context.input(10), up = context.input(11);
    context.input(8).expect({shapes.experts});
    if (!gate.rank) return 0;
    const int64_t slots = gate.dims[0];
    gate.expect({-1, shapes.fused ? 2 * shapes.ffn : shapes.ffn, -1});
    if (slots > shapes.experts) fail("input gate_slots has more slots than there are experts");
    down.expect({slots, shapes.width, -1});
    if (!shapes.fused) up.expect({slots, shapes.ffn, -1});
    return slots;
  }
};

// GroupedExpertFFN with the last product of its shared expert: silu(shared_hidden) * shared_up, times `shared_down`.
// `logits` instead of ids and weights: it does what Router does, too. `prepared`: x as int8.
struct MixtureOfExpertsSignature {
  static constexpr const char* kName = "MixtureOfExperts";
  static constexpr Argument kInputs[] = {{"x", DType::f32},
                                         {"ids", DType::i64, true},
                                         {"weights", DType::f32, true},
                                         {"gate", DType::any},
                                         {"down", DType::any},
                                         {"up", DType::any, true},
                                         {"shared_hidden", DType::f32},
                                         {"shared_up", DType::f32},
                                         {"shared_gate", DType::f32},
                                         {"shared_down", DType::any},
                                         {"logits", DType::f32, true},
                                         {"prepared", DType::u8, true}};
  static constexpr Argument kOutputs[] = {{"y", DType::f32}};

  static ExpertShapes shapes(const Context& context, bool up_type, int64_t routed) {
    const Tensor logits = context.input(10);
    if (!logits.rank != !routed) fail("input logits and attribute k go together, but only one is given");
    const ExpertShapes found = expert_shapes(context, up_type, routed);
    if (routed) logits.expect({found.tokens, found.experts});
    const Tensor hidden = context.input(6), down = context.input(9);
    hidden.expect({found.tokens, -1});
    context.input(7).expect({found.tokens, hidden.dims[1]});
    context.input(8).expect({found.tokens, 1});
    down.expect({found.width, -1});
    return found;
  }
};

}  // namespace trigraph::TRIGRAPH_ISA
