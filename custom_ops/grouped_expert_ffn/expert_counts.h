// How often tokens have chosen each expert of a layer, in steps that a GPU shares with the CPU.
#pragma once

#include <atomic>
#include <cstdint>

namespace trigraph {

using ExpertCounts = std::atomic<uint32_t>*;  // [experts]

// The counts of the layer whose gates are at an address: the same for all sessions that read them there. They live as
// long as the process.
ExpertCounts expert_counts(const void* gate, int64_t experts);

}  // namespace trigraph
