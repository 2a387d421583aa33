// RegisterCustomOps: the entry point that ONNX Runtime calls when a host registers the library.
#if !defined(_WIN32)
#include <signal.h>
#include <unistd.h>
#endif

#include <cstdlib>
#include <cstring>
#include <string>

#include "isa.h"
#include "kernel.h"
#include "patch_attention/progress.h"

namespace trigraph {

std::atomic<int64_t> patch_attentions{0};

namespace {

std::string names_of(const std::vector<const InstructionSet*>& sets) {
  std::string joined;
  for (const InstructionSet* set : sets) joined += (joined.empty() ? "" : " ") + std::string(set->name);
  return joined;
}

const InstructionSet* choose_instruction_set(std::string* problem) {
  const char* wanted = std::getenv("TRIGRAPH_ISA");
  for (const InstructionSet* set : instruction_sets())
    if (!wanted || !*wanted || std::strcmp(wanted, set->name) == 0) return set;
  *problem = std::string("TRIGRAPH_ISA=") + (wanted ? wanted : "") +
             " names no instruction set that this processor has and this build holds: " + names_of(instruction_sets());
  return nullptr;
}

OrtStatus* register_operators(OrtSessionOptions* options, const OrtApi* api) {
  std::string problem;
  const InstructionSet* set = choose_instruction_set(&problem);
  if (!set) return api->CreateStatus(ORT_FAIL, problem.c_str());
  // The domain must outlive every session that uses it, so it is never released.
  OrtCustomOpDomain* domain = nullptr;
  if (OrtStatus* status = api->CreateCustomOpDomain("trigraph", &domain)) return status;
  for (const OrtCustomOp* op : set->operators())
    if (OrtStatus* status = api->CustomOpDomain_Add(domain, op)) return status;
  return api->AddCustomOpDomain(options, domain);
}

}  // namespace
}  // namespace trigraph

extern "C" TRIGRAPH_EXPORT OrtStatus* ORT_API_CALL RegisterCustomOps(OrtSessionOptions* options,
                                                                     const OrtApiBase* base) {
  const OrtApi* api = base->GetApi(trigraph::kOrtApiVersion);
  if (!api) {
    // Without an API table there is no way to make a status; ONNX Runtime prints its own version message.
    std::fprintf(stderr, "trigraph: ONNX Runtime %s is too old: its C API version is below %u\n",
                 base->GetVersionString(), trigraph::kOrtApiVersion);
    api = base->GetApi(1);
    return api ? api->CreateStatus(ORT_FAIL, "trigraph needs ONNX Runtime 1.24 or newer") : nullptr;
  }
  return trigraph::register_operators(options, api);
}

extern "C" TRIGRAPH_EXPORT const char* trigraph_version() { return TRIGRAPH_VERSION; }

// Name of the instruction set that the kernels use on this machine, "" when TRIGRAPH_ISA asks for an absent one.
extern "C" TRIGRAPH_EXPORT const char* trigraph_instruction_set() {
  std::string problem;
  const trigraph::InstructionSet* set = trigraph::choose_instruction_set(&problem);
  return set ? set->name : "";
}

// Names of the instruction sets that run here, best first, separated by spaces.
extern "C" TRIGRAPH_EXPORT const char* trigraph_instruction_sets() {
  static const std::string names = trigraph::names_of(trigraph::instruction_sets());
  return names.c_str();
}

// Names of the sets that would run here, had the build not left them out.
extern "C" TRIGRAPH_EXPORT const char* trigraph_absent_sets() {
  static const std::string names = trigraph::names_of(trigraph::instruction_sets(false));
  return names.c_str();
}

// Runs of PatchAttention that have ended: a vision tower shows by them how far it has come.
extern "C" TRIGRAPH_EXPORT int64_t trigraph_patch_attentions() { return trigraph::patch_attentions; }

#if !defined(_WIN32)
// For programs that end with the model: a weight file that somebody cuts short while it is mapped ends the process at
// the next read, with SIGBUS. From now on with a sentence and status 2.
extern "C" TRIGRAPH_EXPORT void trigraph_explain_bus_errors() {
  struct sigaction action = {};
  action.sa_handler = [](int) {
    static const char kText[] =
        "error: the weights were cut short while in use: the model file was written to; complete it and start again\n";
    if (write(STDERR_FILENO, kText, sizeof kText - 1) < 0) _exit(3);
    _exit(2);
  };
  sigaction(SIGBUS, &action, nullptr);
}
#endif

// For a GPU's library: how routed experts are computed here in the midst of its steps. nullptr without kernels for this
// processor.
extern "C" TRIGRAPH_EXPORT const trigraph::HostExperts* trigraph_host_experts() {
  std::string problem;
  const trigraph::InstructionSet* set = trigraph::choose_instruction_set(&problem);
  return set ? set->host_experts() : nullptr;
}

// For `trigraph bench`: multiplies with the chosen instruction set's own instructions, returns the number of products.
extern "C" TRIGRAPH_EXPORT int64_t trigraph_probe_products(int int8, int64_t rounds) {
  std::string problem;
  const trigraph::InstructionSet* set = trigraph::choose_instruction_set(&problem);
  return set ? set->probe_products(int8 != 0, rounds) : 0;
}
