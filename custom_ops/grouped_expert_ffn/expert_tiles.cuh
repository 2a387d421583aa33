// How a block of few_experts.cu meets its tiles: what it does of the step, and each warp's way through the weights.
#pragma once

#include "../blocks/cuda/few_products.cuh"
#include "few_experts.h"

namespace trigraph::TRIGRAPH_ISA {
namespace {

constexpr int kExpertThreads = 512;  // all for which a multiprocessor has registers: one block, with one preamble
constexpr int kExpertWarps = kExpertThreads / kWarp;

// The units of a block in a phase: those of a tile of rows in the order of slots, and then those of the next.
struct Share {
  Phase phase;
  int token, slots, slot, row, count, steps;  // slot, row: of the first one
  unsigned inverse;                           // of slots, in 65536ths, a little more

  Share() = default;
  // What a seat has of a phase, by its number.
  __device__ Share(const FewExperts& all, Phase phase, int seat)
      : phase(phase),
        token(seat / all.parts),
        slots(phase == Phase::shared ? 1 : all.k),
        steps((phase == Phase::hidden ? all.width : all.ffn) / kSuper),
        inverse(65536 / slots + 1) {
    const int part = seat % all.parts, together = phase == Phase::sum ? slots : 1;
    const int units = phase == Phase::hidden ? slots * all.ffn / kTile : all.width / kTile;
    const int first = part * units / all.parts;
    count = ((part + 1) * units / all.parts - first) * together;
    slot = first * together % slots, row = first * together / slots;
  }
  // How often there are all slots in so many units: exact below 4,096.
  __device__ int rows_of(int units) const { return static_cast<int>(units * inverse >> 16); }
  __device__ int tiles_of_unit() const { return phase == Phase::hidden ? 2 : 1; }  // of a unit
  // From the activations of a slot to those of the next.
  __device__ int x_bytes(const FewExperts& all) const {
    return phase == Phase::sum ? static_cast<int>(Int8Row::apart(all.ffn)) : 0;
  }
  __device__ const ExpertTask& task(const FewExperts& all) const {
    return phase == Phase::hidden ? all.gate : phase == Phase::shared ? all.shared : all.down;
  }
};

// What a block knows of the step. shares: of its phases; matrices: of gate, up and down, of each pair of a token and a
// slot; ends: of these stacks and of the shared weight; seat: see take_seat.
struct ExpertStep {
  Share shares[3];
  int64_t ids[FewExperts::kMost];
  float weights[FewExperts::kMost];
  const uint8_t *matrices[3][FewExperts::kMost], *shared, *ends[4];
  float shared_logit;
  int seat;
};

// A warp's way through its block's units, and in each through the super-blocks of its chain.
struct ExpertWalk : Share {
  const uint8_t* const* matrices;          // of slots
  int row_bytes, chains, jump, jump_rows;  // jump: from a unit of the warp to the next
  int weight;                              // the warp's, as in ends
  int left, at, step;                      // units not asked for; of the next one and of the slot
  const uint8_t* from;                     // the lane's block of it, of the upper eight rows
  int met, met_slot, stage = 0, stages = 0;
  char* ring;           // of so many stages in shared memory
  uint32_t shifts = 0;  // of stages in turns, a byte each: where the lane's two blocks begin in their first 16 bytes

  __device__ ExpertWalk(const FewExperts& all, const ExpertStep& of, Phase now, char* ring)
      : Share(of.shares[static_cast<int>(now)]), ring(ring) {
    const int bits = task(all).chain_bits, second = phase == Phase::hidden;
    const int group = static_cast<int>(threadIdx.x) / kWarp >> bits;
    chains = 1 << bits, met = group >> second, jump = kExpertWarps >> bits >> second;
    weight = phase == Phase::shared ? 3 : phase == Phase::sum ? 2 : group & 1;
    matrices = phase == Phase::shared ? &of.shared : of.matrices[weight] + token * all.k;
    row_bytes = static_cast<int>((weight == 1 ? all.up : task(all)).row_bytes);
    const int rows = rows_of(slot += met);
    left = count - met, row += rows, met_slot = slot -= rows * slots;
    jump_rows = rows_of(jump);
  }
  __device__ int chain() const { return static_cast<int>(threadIdx.x) / kWarp & (chains - 1); }
  template <class F>
  __device__ __forceinline__ int begin() const {
    return kPieces<F> > 1 ? 0 : chain();
  }
  template <class F>
  __device__ __forceinline__ int apart() const {
    return kPieces<F> > 1 ? kPieces<F> : chains;
  }
  __device__ __forceinline__ void next_slot(int& of) const {
    of += jump - jump_rows * slots;
    if (of >= slots) of -= slots;
  }
  template <class F>
  __device__ __forceinline__ void begin_unit() {
    step = begin<F>();
    if (left > 0) from = matrices[slot] + at;
  }
  template <class F>
  __device__ __forceinline__ void begin_walk(int bytes) {
    stages = stages_of<F>(bytes);
    at = (row * kTile + static_cast<int>(threadIdx.x) % kWarp / 4) * row_bytes + chain() * F::kBytes;
    begin_unit<F>();
  }
  // Asks for the next super-blocks, those behind `ahead` others, or goes on as if it had.
  template <class F>
  __device__ __forceinline__ void ask(const ExpertStep& of, const TileLane<F>& lane, char* to, int ahead,
                                      bool anew = true) {
    if (left > 0 && step < steps) {
      const uint8_t *lower = from + 8 * row_bytes, *end = of.ends[weight];
      to += lane.block;
      if (anew) {
        ask_row<F>(from, lane.piece, steps - step, end, to);
        ask_row<F>(lower, lane.piece, steps - step, end, to + 8 * kTileStride<F>);
      }
      shifts |= static_cast<uint32_t>(shift_of<F>(low_word(from)) | shift_of<F>(low_word(lower)) << 4) << 8 * ahead;
      step += apart<F>(), from += apart<F>() * (kSuper / F::kBlock * F::kBytes);
      if (step >= steps) {
        const int before = slot;
        next_slot(slot);
        left -= jump, at += (jump_rows + (slot < before)) * kTile * row_bytes;
        begin_unit<F>();
      }
    }
  }
};

// Meets the warp's units before `end`, after it has asked for the first of them, with x_bytes from the activations of a
// slot to those of the next. Sums of each tile's chains go to `sums`, which begin with unit `first`.
template <class F>
__device__ __forceinline__ void meet(const ExpertStep& of, ExpertWalk& walk, int first, int end, const char* x,
                                     int x_bytes, float* sums) {
  const TileLane<F> lane;
  float* own =
      sums + (((walk.met - first) * walk.tiles_of_unit() + (walk.weight == 1)) * walk.chains + walk.chain()) * kTile;
  for (; walk.met < end; walk.met += walk.jump, walk.next_slot(walk.met_slot), own += kExpertWarps * kTile) {
    float chain = 0;
    const char* codes = x + walk.met_slot * x_bytes;
    const OwnColumns columns(codes);
    for (int step = walk.begin<F>(); step < walk.steps; step += walk.apart<F>()) {
      await_stage(walk.stages);
      __syncwarp();
      char* stage = walk.ring + walk.stage;
      const TilePlace place = lane.place(stage, walk.shifts, walk.shifts >> 4);
      const int super = step * Int8Row::kStride;
      if constexpr (kPieces<F> > 1) {
        const auto* scale = reinterpret_cast<const float*>(codes + super + Int8Row::kScales) + walk.chain();
        meet_pieces<F, true>(lane, place, walk.steps - step, codes + super + walk.chain() * kRun, &scale, &chain);
      } else {
        meet_single<F>(lane, place, columns, super, chain);
      }
      __syncwarp();
      walk.shifts >>= 8;
      walk.ask<F>(of, lane, stage, walk.stages - 1);
      end_copies();
      walk.stage = walk.stage + kSlot<F> == walk.stages * kSlot<F> ? 0 : walk.stage + kSlot<F>;
    }
    if (lane.t < 2) own[threadIdx.x % kWarp / 4 + 8 * lane.t] = chain;
  }
}

// The sum of a tile's chains for one of its rows.
__device__ __forceinline__ float join(const float* sums, int chains, int tile, int row) {
  float chain[kChains];
#pragma unroll
  for (int c = 0; c < kChains; ++c) chain[c] = c < chains ? sums[(tile * chains + c) * kTile + row] : 0.0f;
#pragma unroll
  for (int half = kChains / 2; half; half /= 2)
#pragma unroll
    for (int c = 0; c < half; ++c) chain[c] += chain[c + half];
  return chain[0] + 0.0f;
}

}  // namespace
}  // namespace trigraph::TRIGRAPH_ISA
