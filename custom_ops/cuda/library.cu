// The CUDA library's entry points. Every operator of the graphs is registered: a session that has only some of them
// falls apart into pieces on two devices.
#include <vector>

#include "kernel.h"

namespace trigraph::TRIGRAPH_ISA {

std::vector<const OrtCustomOp*> operators();

// For a host to put in the place of operators of the graph: the same bits, faster.
const OrtCustomOp* prepared_rms_norm();
const OrtCustomOp* prepared_block_matmul();
const OrtCustomOp* normed_block_matmul();
const OrtCustomOp* mixture_of_experts();
const OrtCustomOp* split_experts();
const OrtCustomOp* host_block_gather();
const OrtCustomOp* join_columns();
const OrtCustomOp* paged_kv_write_last_rows_f16();
const OrtCustomOp* paged_kv_write_last_rows_f32();
const OrtCustomOp* paged_kv_write_last_rows_q8_0();
std::vector<const OrtCustomOp*> standard_operators();

std::vector<const OrtCustomOp*> fused_operators() {
  std::vector<const OrtCustomOp*> all = {prepared_rms_norm(),
                                         prepared_block_matmul(),
                                         normed_block_matmul(),
                                         mixture_of_experts(),
                                         split_experts(),
                                         host_block_gather(),
                                         join_columns(),
                                         paged_kv_write_last_rows_f16(),
                                         paged_kv_write_last_rows_f32(),
                                         paged_kv_write_last_rows_q8_0()};
  for (const OrtCustomOp* op : standard_operators()) all.push_back(op);
  return all;
}

namespace {

OrtStatus* add_domain(OrtSessionOptions* options, const OrtApi* api, const char* name,
                      const std::vector<const OrtCustomOp*>& operators) {
  // The domain must outlive every session that uses it, so it is never released.
  OrtCustomOpDomain* domain = nullptr;
  if (OrtStatus* status = api->CreateCustomOpDomain(name, &domain)) return status;
  for (const OrtCustomOp* op : operators)
    if (OrtStatus* status = api->CustomOpDomain_Add(domain, op)) return status;
  return api->AddCustomOpDomain(options, domain);
}

OrtStatus* register_operators(OrtSessionOptions* options, const OrtApi* api) {
  OrtStatus* status = add_domain(options, api, "trigraph", operators());
  return status ? status : add_domain(options, api, "trigraph.cuda", fused_operators());
}

}  // namespace
}  // namespace trigraph::TRIGRAPH_ISA

extern "C" TRIGRAPH_EXPORT OrtStatus* ORT_API_CALL RegisterCustomOps(OrtSessionOptions* options,
                                                                     const OrtApiBase* base) {
  const OrtApi* api = base->GetApi(trigraph::kOrtApiVersion);
  if (api) return trigraph::TRIGRAPH_ISA::register_operators(options, api);
  api = base->GetApi(1);
  return api ? api->CreateStatus(ORT_FAIL, "trigraph needs ONNX Runtime 1.24 or newer") : nullptr;
}

extern "C" TRIGRAPH_EXPORT const char* trigraph_version() { return TRIGRAPH_VERSION; }

// The execution provider that a session needs for these operators.
extern "C" TRIGRAPH_EXPORT const char* trigraph_provider() { return TRIGRAPH_PROVIDER; }

// The error that a kernel has reported since the last call, in a sentence; "" for none. For hosts: ask after a run
// whose outputs are there. The text stays until the thread's next call.
extern "C" TRIGRAPH_EXPORT const char* trigraph_take_device_error() {
  thread_local char text[480];
  const auto error = trigraph::TRIGRAPH_ISA::take_device_error();
  text[0] = 0;
  if (error.found) std::snprintf(text, sizeof text, "trigraph.%s: %s", error.op, error.text);
  return text;
}
