// The operator as a graph sees it: inputs, attributes, and the geometry that their shapes tell.
#pragma once

#include "../kernel.h"
#include "step.h"

namespace trigraph::TRIGRAPH_ISA {

struct Geometry {
  int64_t k_heads, v_heads, dim, pending_max;
  bool tiled, commit;
  bool sigmoid_gate;  // the output's gate is sigmoid(z), otherwise silu(z)
  float eps;

  // Value heads that share a key head.
  TRIGRAPH_EVERYWHERE int64_t group() const { return v_heads / k_heads; }
  // Query, key and value heads; unit u owns channels [u * dim, (u + 1) * dim).
  TRIGRAPH_EVERYWHERE int64_t units() const { return 2 * k_heads + v_heads; }
  TRIGRAPH_EVERYWHERE int64_t channels() const { return units() * dim; }
  TRIGRAPH_EVERYWHERE int64_t k_head(int64_t v_head) const { return tiled ? v_head % k_heads : v_head / group(); }
  TRIGRAPH_EVERYWHERE int64_t v_head(int64_t k_head, int64_t i) const {
    return tiled ? k_head + i * k_heads : k_head * group() + i;
  }
  TRIGRAPH_EVERYWHERE int64_t window_rows() const { return 3 + pending_max; }
};

enum Input {
  kQkv,
  kZ,
  kAlpha,
  kBeta,
  kConv,
  kDtBias,
  kA,
  kNorm,
  kState,
  kWindow,
  kGates,
  kCuSeqlens,
  kPastLens,
  kAccepted,
  kSlotsIn,
  kSlotsOut
};

class GatedDeltaNetSignature {
 public:
  static constexpr const char* kName = "GatedDeltaNet";
  static constexpr Argument kInputs[] = {
      {"qkv", DType::f32},        {"z", DType::f32},           {"alpha", DType::f32},      {"beta", DType::f32},
      {"conv", DType::f32},       {"dt_bias", DType::f32},     {"a", DType::f32},          {"norm", DType::f32},
      {"past_state", DType::f32}, {"past_window", DType::f32}, {"past_gates", DType::f32}, {"cu_seqlens", DType::i32},
      {"past_lens", DType::i32},  {"accepted", DType::i32},    {"slots_in", DType::i32},   {"slots_out", DType::i32}};
  static constexpr Argument kOutputs[] = {
      {"y", DType::f32}, {"present_state", DType::f32}, {"present_window", DType::f32}, {"present_gates", DType::f32}};

  explicit GatedDeltaNetSignature(const KernelInfo& info) {
    geometry_.k_heads = info.integer("k_heads");
    geometry_.eps = info.real("eps");
    geometry_.tiled = flag(info, "tiled");
    geometry_.commit = flag(info, "commit");
    const std::string gate = info.text("gate", "silu");
    geometry_.sigmoid_gate = gate == "sigmoid";
    if (!geometry_.sigmoid_gate && gate != "silu")
      fail("attribute gate is \"%s\", expected silu or sigmoid", gate.c_str());
    if (geometry_.k_heads < 1) fail("attribute k_heads is %lld, expected at least 1", as_printed(geometry_.k_heads));
  }

  // Shapes: what the weights say about the geometry, then everything else against it.
  Geometry geometry(const Tensor* in) const {
    Geometry g = geometry_;
    in[kNorm].expect({-1});
    in[kDtBias].expect({-1});
    g.dim = in[kNorm].dims[0];
    g.v_heads = in[kDtBias].dims[0];
    if (g.dim < 16 || g.dim % 16)
      fail("input norm has %lld values, but a head must be a multiple of 16 wide", as_printed(g.dim));
    if (g.v_heads < 1 || g.v_heads % g.k_heads)
      fail("input dt_bias has %lld values, but there must be a multiple of k_heads = %lld value heads",
           as_printed(g.v_heads), as_printed(g.k_heads));
    in[kGates].expect({-1, -1, 2 * g.v_heads});
    g.pending_max = in[kGates].dims[1];
    in[kQkv].expect({-1, g.channels()});
    const int64_t rows = in[kQkv].dims[0], slots = in[kGates].dims[0];
    in[kZ].expect({rows, g.v_heads * g.dim});
    in[kAlpha].expect({rows, g.v_heads});
    in[kBeta].expect({rows, g.v_heads});
    in[kConv].expect({g.channels(), 4});
    in[kA].expect({g.v_heads});
    in[kState].expect({slots, g.v_heads, g.dim, g.dim});
    in[kWindow].expect({slots, g.window_rows(), g.channels()});
    return g;
  }

  // The inputs of a step whose shapes agree; its values are checked by read_step or on the device.
  static StepInputs step_inputs(const Geometry& g, const Tensor* in) {
    in[kPastLens].expect({-1});
    const int64_t rows = in[kQkv].dims[0], sequences = in[kPastLens].dims[0];
    in[kCuSeqlens].expect({sequences + 1});
    for (int i : {kAccepted, kSlotsIn, kSlotsOut}) in[i].expect({sequences});
    if (!sequences && rows) fail("input past_lens is empty, but the step has %lld tokens", as_printed(rows));
    return {in[kCuSeqlens].as<int32_t>(),
            in[kPastLens].as<int32_t>(),
            in[kAccepted].as<int32_t>(),
            in[kSlotsIn].as<int32_t>(),
            in[kSlotsOut].as<int32_t>(),
            in[kGates].as<float>(),
            rows,
            sequences,
            in[kGates].dims[0],
            g.pending_max,
            g.v_heads,
            g.commit};
  }

 private:
  static long long as_printed(int64_t value) { return static_cast<long long>(value); }

  static bool flag(const KernelInfo& info, const char* name) {
    const int64_t value = info.integer(name);
    if (value != 0 && value != 1) fail("attribute %s is %lld, expected 0 or 1", name, as_printed(value));
    return value == 1;
  }

  Geometry geometry_{};
};

}  // namespace trigraph::TRIGRAPH_ISA
