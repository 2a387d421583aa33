// Routed experts for a GPU that has not got all of them.
#include "host_experts.h"

#include <memory>

#include "../pool.h"
#include "expert_counts.h"
#include "expert_step.h"

namespace trigraph::TRIGRAPH_ISA {
namespace {

struct Layer {
  explicit Layer(const HostExpertsSpec& spec)
      : pool(Pool::of(spec.threads)),
        step{pool,
             spec.experts,
             0,
             spec.width,
             spec.ffn,
             Matrices(spec.gate, row_kernel(spec.gate_type, spec.activations), spec.width),
             Matrices(spec.up.data ? spec.up : spec.gate,
                      row_kernel(spec.up.data ? spec.up_type : spec.gate_type, spec.activations), spec.width),
             Matrices(spec.down, row_kernel(spec.down_type, spec.activations), spec.ffn),
             spec.up.data ? 0 : spec.ffn} {
    counts = expert_counts(spec.gate.data, spec.experts);
    job.run = [](void* layer, const Pool&) { static_cast<Layer*>(layer)->run(); };
    job.user = this;
  }
  void start(const HostStep& given) {
    asked = given, step.k = given.k;
    bool any = false;
    for (int64_t i = 0; i < given.tokens * given.k; ++i) {
      const int64_t id = given.ids[i];
      any |= id >= 0;
      if (id != kNoExpert) counts[id < 0 ? -1 - id : id].fetch_add(1, std::memory_order_relaxed);
    }
    if (any)
      pool.start(job);
    else
      job.failed = false;
  }
  void run() const { step.products(asked.x, asked.ids, asked.tokens, asked.rows); }

  Pool& pool;
  ExpertStep<Pool> step;
  HostStep asked{};
  ExpertCounts counts = nullptr;
  Pool::Job job{};
};

}  // namespace

const HostExperts* host_experts() {
  static HostExperts functions;
  functions.make = [](const HostExpertsSpec& spec, char* problem, size_t size) -> void* {
    try {
      return new Layer(spec);
    } catch (const std::exception& error) {
      std::snprintf(problem, size, "%s", error.what());
      return nullptr;
    }
  };
  functions.drop = [](void* layer) { delete static_cast<Layer*>(layer); };
  functions.start = [](void* layer, const HostStep& step) { static_cast<Layer*>(layer)->start(step); };
  functions.wait = [](void* layer) { return static_cast<Layer*>(layer)->pool.wait(static_cast<Layer*>(layer)->job); };
  return &functions;
}

}  // namespace trigraph::TRIGRAPH_ISA
