// The operators as a graph sees them: inputs, attributes and the shapes that must agree.
#pragma once

#include "../cu_seqlens.h"
#include "../gated_delta_net/step.h"

namespace trigraph::TRIGRAPH_ISA {

// Rows of a table for the n-grams that end at each token.
struct NgramRowsSignature {
  static constexpr const char* kName = "NgramRows";
  static constexpr Argument kInputs[] = {{"input_ids", DType::i64},  {"previous_ids", DType::i64},
                                         {"cu_seqlens", DType::i32}, {"multipliers", DType::i64},
                                         {"moduli", DType::i64},     {"offsets", DType::i64}};
  static constexpr Argument kOutputs[] = {{"rows", DType::i64}};
  int64_t eos;

  explicit NgramRowsSignature(const KernelInfo& info) : eos(info.integer("eos")) {
    if (eos < 0) fail("attribute eos is %lld, expected at least 0", static_cast<long long>(eos));
  }
};

struct NgramRowsShape {
  int64_t tokens, sequences, size, rows;  // size: tokens of the longest n-gram; rows: of each token

  // Rows of each length of n-gram.
  TRIGRAPH_EVERYWHERE int64_t heads() const { return rows / (size - 1); }

  explicit NgramRowsShape(const Tensor* in) {
    in[0].expect({-1});
    in[3].expect({-1});
    in[4].expect({-1});
    tokens = in[0].dims[0], size = in[3].dims[0], rows = in[4].dims[0];
    if (size < 2) fail("input multipliers has %lld values, expected at least 2", static_cast<long long>(size));
    if (rows < 1 || rows % (size - 1))
      fail("input moduli has %lld values, expected a multiple of %lld", static_cast<long long>(rows),
           static_cast<long long>(size - 1));
    in[5].expect({rows});
    in[1].expect({-1, size - 1});
    sequences = in[1].dims[0];
    in[2].expect({sequences + 1});
  }
};

enum MixInput {
  kX,
  kKey,
  kQuery,
  kValue,
  kConvNorm,
  kConv,
  kWindow,
  kCuSeqlens,
  kPastLens,
  kAccepted,
  kSlotsIn,
  kSlotsOut
};

struct MixShape {
  int64_t rows, streams, hidden, history, pending_max, slots;

  TRIGRAPH_EVERYWHERE int64_t width() const { return streams * hidden; }
  TRIGRAPH_EVERYWHERE int64_t window_rows() const { return history + pending_max; }
};

// What the rows of a table add to the streams: gated by how they meet them, and through a convolution over time.
struct NgramMixSignature {
  static constexpr const char* kName = "NgramMix";
  static constexpr int64_t kTaps = 4;
  static constexpr Argument kInputs[] = {
      {"x", DType::f32},         {"key", DType::f32},      {"query", DType::f32},       {"value", DType::f32},
      {"conv_norm", DType::f32}, {"conv", DType::f32},     {"past_window", DType::f32}, {"cu_seqlens", DType::i32},
      {"past_lens", DType::i32}, {"accepted", DType::i32}, {"slots_in", DType::i32},    {"slots_out", DType::i32}};
  static constexpr Argument kOutputs[] = {{"y", DType::f32}, {"present_window", DType::f32}};
  int64_t streams, dilation;
  bool commit;
  float eps;

  explicit NgramMixSignature(const KernelInfo& info)
      : streams(info.integer("streams")), dilation(info.integer("dilation")), eps(info.real("eps")) {
    const int64_t value = info.integer("commit");
    if (value != 0 && value != 1) fail("attribute commit is %lld, expected 0 or 1", static_cast<long long>(value));
    commit = value == 1;
    if (streams < 1) fail("attribute streams is %lld, expected at least 1", static_cast<long long>(streams));
    if (dilation < 1 || dilation > INT32_MAX)
      fail("attribute dilation is %lld, expected 1 to %d", static_cast<long long>(dilation), INT32_MAX);
  }

  MixShape shape(const Tensor* in) const {
    MixShape s{};
    in[kValue].expect({-1, -1});
    s.rows = in[kValue].dims[0], s.hidden = in[kValue].dims[1], s.streams = streams;
    if (!s.hidden) fail("input value has rows of width 0");
    in[kX].expect({s.rows, -1});
    if (const int64_t width = in[kX].dims[1]; width % streams || width / streams != s.hidden)
      fail("input x has rows of width %lld, expected %lld streams of %lld", static_cast<long long>(width),
           static_cast<long long>(streams), static_cast<long long>(s.hidden));
    for (int i : {kKey, kQuery}) in[i].expect({s.rows, s.width()});
    in[kConvNorm].expect({s.width()});
    in[kConv].expect({s.width(), kTaps});
    in[kWindow].expect({-1, -1, s.width()});
    s.slots = in[kWindow].dims[0], s.history = (kTaps - 1) * dilation;
    s.pending_max = in[kWindow].dims[1] - s.history;
    if (s.pending_max < 1)
      fail("input past_window has %lld rows a slot, expected more than %lld",
           static_cast<long long>(in[kWindow].dims[1]), static_cast<long long>(s.history));
    return s;
  }

  // The inputs of a step whose shapes agree; its values are checked by read_step or on the device.
  StepInputs step_inputs(const MixShape& s, const Tensor* in) const {
    in[kPastLens].expect({-1});
    const int64_t sequences = in[kPastLens].dims[0];
    in[kCuSeqlens].expect({sequences + 1});
    for (int i : {kAccepted, kSlotsIn, kSlotsOut}) in[i].expect({sequences});
    if (!sequences && s.rows)
      fail("input past_lens is empty, but the step has %lld tokens", static_cast<long long>(s.rows));
    return {in[kCuSeqlens].as<int32_t>(),
            in[kPastLens].as<int32_t>(),
            in[kAccepted].as<int32_t>(),
            in[kSlotsIn].as<int32_t>(),
            in[kSlotsOut].as<int32_t>(),
            nullptr,
            s.rows,
            sequences,
            s.slots,
            s.pending_max,
            0,
            commit};
  }
};

}  // namespace trigraph::TRIGRAPH_ISA
