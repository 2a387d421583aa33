// Tiles of more activation rows, which share weights that are unpacked once: a warp has all chains of its weight rows,
// one after the other in the order in which their tree joins them. Both come through shared memory, a step ahead.
#pragma once

#include "many_tiles.cuh"
#include "tile_blocks.cuh"

namespace trigraph::TRIGRAPH_ISA {

constexpr int kWideRows = 32, kWideEights = kWideRows / 8;
constexpr int kWideColumns = kTileWarps * kTileColumns;

// The steps of a weight row, chain after chain: c0, c4, c2, c6, c1, c5, c3, c7, or as many of them as there are.
class ChainSteps {
 public:
  __device__ int step() const { return step_; }
  __device__ int number() const { return number_; }  // of the chain, in that order
  __device__ bool done(int chains) const { return number_ == chains; }
  __device__ bool ends_chain(int steps, int chains) const { return step_ + chains >= steps; }
  __device__ void next(int steps, int chains) {
    const bool ends = ends_chain(steps, chains);
    number_ += ends;
    step_ = ends ? ((number_ & 1) * 4 + (number_ & 2) + (number_ >> 2 & 1)) * chains / kChains : step_ + chains;
  }

 private:
  int number_ = 0, step_ = 0;
};

template <class F>
struct WideStage {
  Stage<F, kWideRows> x;
  alignas(16) uint8_t weights[kWideColumns * kTileStride<F>];
};
template <class F>
struct WideMemory {
  WideStage<F> stage[2];
  float half[4 * kWideEights][kTileThreads];  // of a thread's sums: the first four chains
};

// The number of this thread, of which the compiler keeps nothing that it can compute again: registers are for sums.
__device__ __forceinline__ int own_thread() {
  int thread = threadIdx.x;
#if defined(__CUDACC__)
  asm volatile("" : "+r"(thread));
#endif
  return thread;
}

// The rows that a thread copies: two of weights, of which it has each fourth piece, and one of activations, each
// eighth.
template <class F>
struct WideCopies {
  const uint8_t* w[2];
  const char* x;

  __device__ WideCopies(const ManyTask& task, const ManyTile<kWideRows>& tile) {
    for (int i = 0; i < 2; ++i)
      w[i] = tile.w + min(static_cast<int>(threadIdx.x) / kWarp * kTileColumns +
                              static_cast<int>(threadIdx.x) % kWarp / 4 + 8 * i,
                          tile.columns - 1) *
                          task.row_bytes;
    x = tile.x[threadIdx.x / 8];
  }
  __device__ __forceinline__ void ask(const ManyTile<kWideRows>& tile, int rows, WideStage<F>& stage, int step,
                                      int steps) const {
    const int thread = own_thread(), lane = thread % kWarp, t = lane % 4, e = lane % 8, row = thread / 8;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      uint8_t* to = stage.weights + (thread / kWarp * kTileColumns + lane / 4 + 8 * i) * kTileStride<F> + 16 * t;
      const uint8_t* p = w[i] + step * F::kBytes;
      if constexpr (F::kBytes % 16 == 0) {
#pragma unroll
        for (int at = 0; at < F::kBytes; at += 64)
          if (at + 64 <= F::kBytes || 16 * t < F::kBytes - at) copy_ahead(to + at, p + 16 * t + at);
      } else {
        const int shift = static_cast<int>(reinterpret_cast<uintptr_t>(p) & 15);
        const uint8_t* from = p - shift + 16 * t;
#pragma unroll
        for (int at = 0; at < kTileStride<F>; at += 64) {
          const int left = F::kBytes + shift - at - 16 * t;
          if (at + 64 <= F::kBytes || left >= 16 || (left > 0 && from + at + 16 <= tile.end))
            copy_ahead(to + at, from + at);
          else  // nothing behind the weight's end is read
            for (int k = 0; k < left; k += 2)
              *reinterpret_cast<uint16_t*>(to + at + k) = *reinterpret_cast<const uint16_t*>(from + at + k);
        }
      }
    }
    if (row >= rows) return;
    constexpr int kPieces = kSuper / 16 + (F::kMin ? 2 : 0);
#pragma unroll
    for (int piece = 0; piece < kPieces; piece += 8)
      if (piece + 8 <= kPieces || e < kPieces - piece)
        copy_ahead(stage.x.row[row] + (piece + e) * 16, x + step * Int8Row::kStride + (piece + e) * 16);
    if (e == 0)
      copy_word_ahead(stage.x.factor[row], x + steps * Int8Row::kStride + step * static_cast<int>(sizeof(float)));
  }
  __device__ static const uint8_t* block(const uint8_t* slot, const uint8_t* row, int step) {
    return slot + (F::kBytes % 16 ? (reinterpret_cast<uintptr_t>(row + step * F::kBytes) & 15) : 0);
  }
};

// A part of a block in shared memory.
template <class F>
struct StagedPart : Fragment<F> {};
template <>
struct StagedPart<Q6_K> {
  const uint8_t* p;
  int t;
  __device__ __forceinline__ void load(const uint8_t* block, int lane) { p = block, t = lane; }
  __device__ __forceinline__ uint32_t word(int at) const {
    const unsigned odd = reinterpret_cast<uintptr_t>(p) & 2;
    const auto* words = reinterpret_cast<const uint32_t*>(p - odd) + t + at / 4;
    return __funnelshift_r(words[0], words[1], 8 * odd);
  }
  __device__ __forceinline__ void codes(int run, uint32_t* out) const {
    const int half = run / 4, quarter = run % 4;
#pragma unroll
    for (int i = 0; i < 2; ++i)
      out[i] = biased((word(half * 64 + quarter % 2 * 32 + 16 * i) >> quarter / 2 * 4 & 0x0f0f0f0fu) |
                          (word(128 + half * 32 + 16 * i) >> quarter * 2 & 0x03030303u) << 4,
                      32);
  }
  __device__ __forceinline__ int scale(int run, int half) const {
    return static_cast<int8_t>(reinterpret_cast<const uint16_t*>(p + 192)[run] >> 8 * half);
  }
  __device__ __forceinline__ float d(int) const { return Q6_K::d(p); }
};

// Joins the chain that came as `number` with those that wait for it, or lets it wait.
template <int kEights>
__device__ __forceinline__ void join(int number, int chains, Chain<kEights>& chain, Chain<kEights>& one,
                                     Chain<kEights>& two, float (*half)[kTileThreads]) {
  const int thread = own_thread();
#pragma unroll
  for (int n = 0; n < kEights; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float sum = chain.sum[n][i];
      if (number & 1) {
        sum += one.sum[n][i];
        if (number & 2) {
          sum += two.sum[n][i];
          if (number & 4)
            sum += half[4 * n + i][thread];
          else
            half[4 * n + i][thread] = sum;
        } else {
          two.sum[n][i] = sum;
        }
      } else {
        one.sum[n][i] = sum;
      }
      chain.sum[n][i] = number + 1 < chains ? 0.0f : sum;
    }
}

template <class F, int kEights>
__device__ __forceinline__ void meet_eights(const ManyTask& task, const ManyTile<kWideRows>& tile, int64_t width,
                                            char* memory) {
  auto& own = *reinterpret_cast<WideMemory<F>*>(memory);
  const int steps = static_cast<int>(width / kSuper);
  const WideCopies<F> copies(task, tile);
  ChainSteps now, next;
  const auto ask = [&](int at) {
    while (next.step() >= steps && !next.done(task.chains)) next.next(steps, task.chains);  // an empty chain
    if (!next.done(task.chains))
      copies.ask(tile, 8 * kEights, own.stage[at], next.step(), steps), next.next(steps, task.chains);
    end_copies();
  };
  Chain<kEights> chain, one, two;
  ask(0);
#pragma unroll 1
  for (int at = 0; !now.done(task.chains); now.next(steps, task.chains)) {
    if (now.step() < steps) {
      await_copies(0);
      __syncthreads();
      ask(at ^ 1);
      const int thread = own_thread(), warp = thread / kWarp, g = thread % kWarp / 4, t = thread % 4;
      StagedPart<F> part[2];
#pragma unroll
      for (int i = 0; i < 2; ++i)
        part[i].load(copies.block(own.stage[at].weights + (warp * kTileColumns + g + 8 * i) * kTileStride<F>,
                                  copies.w[i], now.step()),
                     t);
      chain.add_step(part, own.stage[at].x, kEights);
      at ^= 1;
    }
    if (now.ends_chain(steps, task.chains)) join(now.number(), task.chains, chain, one, two, own.half);
  }
  const int thread = own_thread(), warp = thread / kWarp, g = thread % kWarp / 4, t = thread % 4;
#pragma unroll
  for (int n = 0; n < kEights; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = 8 * n + 2 * t + i % 2, column = warp * kTileColumns + g + i / 2 * 8;
      if (row < tile.rows && column < tile.columns) tile.y[row * task.rows + column] = chain.sum[n][i] + 0.0f;
    }
}

template <class F>
__device__ __forceinline__ void meet_wide(const ManyTask& task, const ManyTile<kWideRows>& tile, int64_t width,
                                          char* memory) {
  static_assert(kWideEights == 4);
  if (tile.rows > 24)
    meet_eights<F, 4>(task, tile, width, memory);
  else if (tile.rows > 16)
    meet_eights<F, 3>(task, tile, width, memory);
  else if (tile.rows > 8)
    meet_eights<F, 2>(task, tile, width, memory);
  else
    meet_eights<F, 1>(task, tile, width, memory);
}

}  // namespace trigraph::TRIGRAPH_ISA
