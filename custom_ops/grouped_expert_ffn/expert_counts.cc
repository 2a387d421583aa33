#include "expert_counts.h"

#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "../ort_api.h"

namespace trigraph {

ExpertCounts expert_counts(const void* gate, int64_t experts) {
  static std::mutex lock;
  // Also by number: another model may come to lie there.
  static auto* all = new std::map<std::pair<const void*, int64_t>, std::unique_ptr<std::atomic<uint32_t>[]>>;
  const std::lock_guard<std::mutex> guard(lock);
  auto& counts = (*all)[{gate, experts}];
  if (!counts) counts.reset(new std::atomic<uint32_t>[static_cast<size_t>(experts)]());
  return counts.get();
}

}  // namespace trigraph

// The counts [experts] since the last call.
extern "C" TRIGRAPH_EXPORT void trigraph_take_expert_counts(const void* gate, int64_t experts, uint32_t* counts) {
  const trigraph::ExpertCounts found = trigraph::expert_counts(gate, experts);
  for (int64_t i = 0; i < experts; ++i) counts[i] = found[i].exchange(0, std::memory_order_relaxed);
}
