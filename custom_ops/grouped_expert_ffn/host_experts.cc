// Routed experts for a GPU that has not got all of them.
#include "host_experts.h"

#include <chrono>
#include <cstring>
#include <memory>
#include <vector>

#include "../pool.h"
#include "expert_counts.h"
#include "expert_step.h"

namespace trigraph::TRIGRAPH_ISA {
namespace {

constexpr int64_t kGathered = 1 << 20;  // bytes of a task
constexpr int64_t kTrialExperts = 8, kTrialRows = 32;

// Has the threads do it, and waits: whether it is done.
template <class Work>
bool done_by(Pool& pool, Work work) {
  Pool::Job job{};
  job.run = [](void* work, const Pool& pool) { (*static_cast<Work*>(work))(pool); };
  job.user = &work;
  pool.start(job);
  return pool.wait(job);
}

void gather(const HostGather& wanted, int64_t start) {
  const int64_t first = wanted.start + start, end = std::min(first + kGathered, wanted.start + wanted.bytes);
  for (size_t i = 0; i < wanted.count; ++i) {
    const HostPiece& piece = wanted.pieces[i];
    const int64_t from = std::max(first, piece.at), to = std::min(end, piece.at + piece.bytes);
    if (from < to)
      std::memcpy(wanted.to + (from - wanted.start), piece.from + (from - piece.at), static_cast<size_t>(to - from));
  }
}

static_assert(kHostAnswered == Pool::Mailbox::kAnswered && kHostFailed == Pool::Mailbox::kFailed);

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
  }
  void answer(const HostStep& asked) {
    if (asked.last) pool.close(asked.mail);
    step.k = asked.k;
    for (int64_t i = 0; i < asked.tokens * asked.k; ++i)
      if (const int64_t id = asked.ids[i]; id != kNoExpert)
        counts[id < 0 ? -1 - id : id].fetch_add(1, std::memory_order_relaxed);
    step.products(asked.x, asked.ids, asked.tokens, asked.rows);
  }
  bool gather(const HostGather& wanted) const {
    return done_by(pool, [&wanted](const Pool& threads) {
      threads.parallel_for(ceil_div(wanted.bytes, kGathered),
                           [&](int64_t i) { TRIGRAPH_ISA::gather(wanted, i * kGathered); });
    });
  }
  // Times a few experts, the ones that a GPU takes last, when their weights have been read once.
  double row_seconds() const {
    ExpertStep<Pool> trial = step;
    trial.k = 1;
    const int64_t chosen = std::min(kTrialExperts, step.experts), tokens = chosen * kTrialRows;
    double seconds = 0;
    const bool done = done_by(pool, [&](const Pool&) {
      std::vector<int64_t> ids(static_cast<size_t>(tokens));
      for (int64_t i = 0; i < tokens; ++i) ids[static_cast<size_t>(i)] = step.experts - 1 - i % chosen;
      std::vector<float> x(static_cast<size_t>(tokens * step.width), 1), rows(x.size());
      for (int i = 0; i < 2; ++i) {
        const auto start = std::chrono::steady_clock::now();
        trial.products(x.data(), ids.data(), tokens, rows.data());
        seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      }
    });
    const int64_t bytes = step.gate.rows * step.gate.row_bytes + step.down.rows * step.down.row_bytes +
                          (step.up_row ? 0 : step.up.rows * step.up.row_bytes);
    return done ? seconds / static_cast<double>(tokens * bytes) : 0;
  }

  Pool& pool;
  ExpertStep<Pool> step;
  ExpertCounts counts = nullptr;
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
  functions.open = [](const HostStep& step) {
    if (step.mail[1] && step.mail[0] <= kHostFailed) step.mail[0] = kHostAnswered, step.mail[1] = 0;
    static_cast<Layer*>(step.experts)->pool.open({step.mail, [](uint64_t mail) {
                                                    const auto* step = reinterpret_cast<const HostStep*>(mail);
                                                    static_cast<Layer*>(step->experts)->answer(*step);
                                                  }});
  };
  functions.gather = [](void* layer, const HostGather& wanted) { return static_cast<Layer*>(layer)->gather(wanted); };
  functions.row_seconds = [](void* layer) { return static_cast<Layer*>(layer)->row_seconds(); };
  return &functions;
}

}  // namespace trigraph::TRIGRAPH_ISA
