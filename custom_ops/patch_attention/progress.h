// How far a vision tower has come: it has one PatchAttention a layer.
#pragma once

#include <atomic>
#include <cstdint>

namespace trigraph {

// Runs of PatchAttention in this process that have ended.
extern std::atomic<int64_t> patch_attentions;

}  // namespace trigraph
