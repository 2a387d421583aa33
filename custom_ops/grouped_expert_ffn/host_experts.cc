// Routed experts for a GPU that has not got all of them.
#include "host_experts.h"

#include <memory>

#include "../pool.h"
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
    job.run = [](void* layer, const Pool&) { static_cast<Layer*>(layer)->run(); };
    job.user = this;
  }
  void run() const { step.products(asked.x, asked.ids, asked.tokens, asked.rows); }

  Pool& pool;
  ExpertStep<Pool> step;
  HostStep asked{};
  Pool::Job job{};
};

}  // namespace

const HostExperts* host_experts() {
  static const HostExperts functions = {
      [](const HostExpertsSpec& spec, char* problem, size_t size) -> void* {
        try {
          return new Layer(spec);
        } catch (const std::exception& error) {
          std::snprintf(problem, size, "%s", error.what());
          return nullptr;
        }
      },
      [](void* layer) { delete static_cast<Layer*>(layer); },
      [](void* experts, const HostStep& step) {
        auto* layer = static_cast<Layer*>(experts);
        layer->asked = step, layer->step.k = step.k;
        if (std::any_of(step.ids, step.ids + step.tokens * step.k, [](int64_t id) { return id >= 0; }))
          layer->pool.start(layer->job);
        else
          layer->job.failed = false;
      },
      [](void* experts) {
        auto* layer = static_cast<Layer*>(experts);
        return layer->pool.wait(layer->job);
      }};
  return &functions;
}

}  // namespace trigraph::TRIGRAPH_ISA
