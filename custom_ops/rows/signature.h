// The operators as a graph sees them.
#pragma once

#include "../cu_seqlens.h"

namespace trigraph::TRIGRAPH_ISA {

struct LastRowsSignature {
  static constexpr const char* kName = "LastRows";
  static constexpr Argument kInputs[] = {
      {"cu_seqlens", DType::i32}, {"past_lens", DType::i32}, {"x", DType::f32}, {"also", DType::f32, true}};
  static constexpr Argument kOutputs[] = {{"last_cu_seqlens", DType::i32},
                                          {"last_past_lens", DType::i32},
                                          {"last_x", DType::f32},
                                          {"last_also", DType::f32, true}};
};

struct PreviousRowsSignature {
  static constexpr const char* kName = "PreviousRows";
  static constexpr Argument kInputs[] = {{"x", DType::f32}, {"before", DType::f32}, {"cu_seqlens", DType::i32}};
  static constexpr Argument kOutputs[] = {{"y", DType::f32}};
};

}  // namespace trigraph::TRIGRAPH_ISA
