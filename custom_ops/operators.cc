// The operators of one instruction set, or of CUDA; compiled once for each, like the kernels it lists. A set that is
// another one but for its products with int8 lists that one's other operators.
#include "isa.h"

#ifndef TRIGRAPH_BASE
#define TRIGRAPH_BASE TRIGRAPH_ISA
#endif

namespace trigraph::TRIGRAPH_BASE {

const OrtCustomOp* block_gather();
const OrtCustomOp* layer_norm();
const OrtCustomOp* bias_activation();
const OrtCustomOp* position_rows();
const OrtCustomOp* patch_attention();
const OrtCustomOp* rms_norm();
const OrtCustomOp* joined_rms_norm();
const OrtCustomOp* router();
const OrtCustomOp* top_token();
const OrtCustomOp* top_tokens();
const OrtCustomOp* block_convolution();
const OrtCustomOp* candidate_edges();
const OrtCustomOp* last_rows();
const OrtCustomOp* previous_rows();
const OrtCustomOp* stream_norm();
const OrtCustomOp* stream_mean();
const OrtCustomOp* ngram_rows();
const OrtCustomOp* ngram_mix();
const OrtCustomOp* paged_index_write_f16();
const OrtCustomOp* paged_index_write_f32();
const OrtCustomOp* paged_select_f16();
const OrtCustomOp* paged_select_f32();
const OrtCustomOp* gated_delta_net();
const OrtCustomOp* paged_kv_write_f16();
const OrtCustomOp* paged_kv_write_f32();
const OrtCustomOp* paged_kv_write_q8_0();

}  // namespace trigraph::TRIGRAPH_BASE

namespace trigraph::TRIGRAPH_ISA {

const OrtCustomOp* block_matmul();
const OrtCustomOp* gated_block_matmul();
const OrtCustomOp* grouped_expert_ffn();
const OrtCustomOp* paged_attention_f16();
const OrtCustomOp* paged_attention_f32();
const OrtCustomOp* paged_attention_q8_0();

std::vector<const OrtCustomOp*> operators() {
  using namespace TRIGRAPH_BASE;
  return {block_matmul(),
          gated_block_matmul(),
          block_gather(),
          rms_norm(),
          joined_rms_norm(),
          router(),
          top_token(),
          top_tokens(),
          block_convolution(),
          candidate_edges(),
          last_rows(),
          previous_rows(),
          gated_delta_net(),
          grouped_expert_ffn(),
          paged_kv_write_f16(),
          paged_kv_write_f32(),
          paged_kv_write_q8_0(),
          paged_attention_f16(),
          paged_attention_f32(),
          paged_attention_q8_0(),
          layer_norm(),
          bias_activation(),
          position_rows(),
          patch_attention(),
          stream_norm(),
          stream_mean(),
          ngram_rows(),
          paged_index_write_f16(),
          paged_index_write_f32(),
          paged_select_f16(),
          paged_select_f32(),
          ngram_mix()};
}

}  // namespace trigraph::TRIGRAPH_ISA
