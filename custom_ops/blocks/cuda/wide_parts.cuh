// What a warp has of a step of wide_tiles.cuh, in shared memory: 16 weight rows and 32 rows of activations.
#pragma once

#include "many_tiles.cuh"
#include "tile_blocks.cuh"

namespace trigraph::TRIGRAPH_ISA {

constexpr int kWideRows = 32, kWideEights = kWideRows / 8;
constexpr int kWideColumns = kTileWarps * kTileColumns;

// Activation rows of a step: codes, and behind them the sums of 16, as halves.
template <int kRows>
struct WideActivations {
  static constexpr int kStride = 304;  // bytes; pieces of 16 that eight rows have are in all banks
  static constexpr int kEight = 8 * kStride;
  alignas(16) char row[kRows][kStride];
  float factor[kRows];
};

template <class F>
struct WideStage {
  WideActivations<kWideRows> x;
  alignas(16) uint8_t weights[kWideColumns * kTileStride<F>];
};
template <class F>
struct WideMemory {
  WideStage<F> stage[2];
  // What a thread keeps: two chains that wait for two more, and one for one if there is room for it, else in registers.
  static constexpr int kWaiting = F::kBytes % 16 ? 1 : 2;
  float4 waiting[kWaiting][kWideEights][kTileThreads];
};

// The number of this thread, of which the compiler keeps nothing that it can compute again: registers are for sums.
__device__ __forceinline__ int own_thread() {
  int thread = threadIdx.x;
#if defined(__CUDACC__)
  asm volatile("" : "+r"(thread));
  __builtin_assume(thread >= 0);  // else divisions take more instructions
#endif
  return thread;
}

// Where a weight row of the block begins, from the first one on; rows that are not there are the last one.
template <int kRows>
__device__ __forceinline__ int row_at(const ManyTask& task, const ManyTile<kRows>& tile, int row) {
  return min(row, tile.columns - 1) * static_cast<int>(task.row_bytes);
}

// The warp's weights of a step, four runs after the other: those of `next` follow. codes: of run `run`, words t and t +
// 4 of both rows, as run_dots takes them. units: of a row, with the mins of runs t and t + 4 in words 0 and 2, each as
// two halves.
template <class F>
struct WidePart;
// A code of codes().
template <class F>
constexpr float kUnit = std::is_same_v<F, Q6_K> ? 0.25f : 1.0f;

template <class F>
struct SixBitPart {
  const uint8_t* row;  // the lane's of the four matrices of the warp's 16 weight rows and 32 bytes: load_matrices
  uint32_t scales[2][2];

  template <int kRows>
  __device__ SixBitPart(const uint8_t* weights, int first, int lane, const ManyTask&, const ManyTile<kRows>&, int)
      : row(weights + (first + lane % 16) * kTileStride<F> + lane / 16 * 16) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const SixBits head = block(weights, first, lane, i);
      for (int k = 0; k < 2; ++k) scales[i][k] = head.scales[k];
    }
  }
  __device__ static SixBits block(const uint8_t* weights, int first, int lane, int i) {
    return SixBits(weights + (first + lane / 4 + 8 * i) * kTileStride<F>);
  }
  __device__ int scale(int i, int run, int) const {
    return static_cast<int>(__byte_perm(scales[i][0], 0, 0x4440u + static_cast<unsigned>(run)));
  }
  __device__ void advance() {
    row += 64;
    for (int i = 0; i < 2; ++i) scales[i][0] = scales[i][1];
  }
  __device__ void units(const uint8_t* weights, int first, int lane, int i, float& d, float& dmin,
                        uint32_t* mins) const {
    const SixBits head = block(weights, first, lane, i);
    d = head.d, dmin = head.dmin;
    for (int k = 0; k < 2; ++k) mins[2 * k] = byte_as_halves(head.mins[k], lane % 4);
  }
};

template <>
struct WidePart<Q4_K> : SixBitPart<Q4_K> {
  uint32_t packed[4];
  using SixBitPart::SixBitPart;
  __device__ __forceinline__ void codes(int run, uint32_t* a) {
    if (run % 2 == 0) load_matrices(row + 16 + run * 16, packed);
#pragma unroll
    for (int i = 0; i < 4; ++i) a[i] = packed[i] >> run % 2 * 4 & 0x0f0f0f0fu;
  }
  __device__ void next() { advance(); }
};

template <>
struct WidePart<Q5_K> : SixBitPart<Q5_K> {
  uint32_t packed[4], high[4];
  template <int kRows>
  __device__ WidePart(const uint8_t* weights, int first, int lane, const ManyTask& task, const ManyTile<kRows>& tile,
                      int step)
      : SixBitPart(weights, first, lane, task, tile, step) {
    load_matrices(row + 16, high);
  }
  __device__ __forceinline__ void codes(int run, uint32_t* a) {
    if (run % 2 == 0) load_matrices(row + 48 + run * 16, packed);
#pragma unroll
    for (int i = 0; i < 4; ++i) a[i] = (packed[i] >> run % 2 * 4 & 0x0f0f0f0fu) | (high[i] << (4 - run) & 0x10101010u);
  }
  __device__ void next() {
    advance();
    for (int i = 0; i < 4; ++i) high[i] >>= 4;
  }
};

template <>
struct WidePart<Q6_K> {
  const uint8_t* p[2];
  const uint32_t *low[2], *high[2];  // from which on the lane's words lie
  unsigned shift[2];                 // bits
  int half = 0;

  // What came with a block of a row begins at a multiple of 16.
  template <int kRows>
  __device__ WidePart(const uint8_t* weights, int first, int lane, const ManyTask& task, const ManyTile<kRows>& tile,
                      int step) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = first + lane / 4 + 8 * i, base = static_cast<int>(reinterpret_cast<uintptr_t>(tile.w) & 15);
      const int at = (base + row_at(task, tile, row) + step * Q6_K::kBytes) & 15;
      p[i] = weights + row * kTileStride<Q6_K> + at;
      low[i] = reinterpret_cast<const uint32_t*>(p[i] - at % 4) + lane % 4, high[i] = low[i] + 32,
      shift[i] = at % 4 * 8;
    }
  }
  // Less 32, and four times as large: so they are made of their bits without a carry. The upper bits are flipped, as 32
  // becomes zero.
  __device__ __forceinline__ void codes(int run, uint32_t* a) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t *l = low[i % 2] + run % 2 * 8 + i / 2 * 4, *h = high[i % 2] + i / 2 * 4;
      const uint32_t low = __funnelshift_r(l[0], l[1], shift[i % 2]),
                     two = __funnelshift_r(h[0], h[1], shift[i % 2]) ^ 0xaaaaaaaau;
      a[i] = ((run < 2 ? low << 2 : low >> 2) & 0x3c3c3c3cu) | (two << (6 - 2 * run) & 0xc0c0c0c0u);
    }
  }
  __device__ int scale(int i, int run, int part) const {
    return static_cast<int8_t>(reinterpret_cast<const uint16_t*>(p[i] + 192)[4 * half + run] >> 8 * part);
  }
  __device__ void units(const uint8_t*, int, int, int i, float& d, float&, uint32_t*) const { d = Q6_K::d(p[i]); }
  __device__ void next() {
    ++half;
    for (int i = 0; i < 2; ++i) low[i] += 16, high[i] += 8;
  }
};

// Adds what integers of a super-block of two weight rows and two of eight activation rows stand for. `mins`, `sums`: as
// exact_dots takes them; `factors`: the lane's.
template <class F>
__device__ __forceinline__ void scale_eight(const float* d, const float* dmin, const uint32_t* mins,
                                            const uint32_t* sums, const float* factors, const int* S, float* sum) {
  const float2 factor = *reinterpret_cast<const float2*>(factors);
  float T[4];
  if constexpr (F::kMin) exact_dots(mins, sums, T);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float whole = static_cast<float>(S[i]);
    float value;
    if constexpr (F::kMin)
      value = fmaf(d[i / 2], whole, -(dmin[i / 2] * T[i]));
    else
      value = d[i / 2] * whole;
    sum[i] = fmaf(i % 2 ? factor.y : factor.x, value, sum[i]);
  }
}

// What a thread adds up: weight rows g and g + 8 of its warp's with activation rows 2 t and 2 t + 1 of each eight; see
// half_dots.
template <int kEights>
struct WideSums {
  float sum[kEights][4];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < 4 * kEights; ++i) sum[i / 4][i % 4] = 0.0f;
  }
  __device__ __forceinline__ void add(const WideSums& other) {
#pragma unroll
    for (int i = 0; i < 4 * kEights; ++i) sum[i / 4][i % 4] += other.sum[i / 4][i % 4];
  }
  __device__ __forceinline__ void add(const float4 (*other)[kTileThreads], int thread) {
#pragma unroll
    for (int n = 0; n < kEights; ++n) {
      const float4 four = other[n][thread];
      sum[n][0] += four.x, sum[n][1] += four.y, sum[n][2] += four.z, sum[n][3] += four.w;
    }
  }
  __device__ __forceinline__ void write(float4 (*to)[kTileThreads], int thread) const {
#pragma unroll
    for (int n = 0; n < kEights; ++n) to[n][thread] = make_float4(sum[n][0], sum[n][1], sum[n][2], sum[n][3]);
  }

  template <class F>
  __device__ __forceinline__ void add_step(const WideStage<F>& stage, const ManyTask& task,
                                           const ManyTile<kWideRows>& tile, int step) {
    const int thread = own_thread(), lane = thread % kWarp;
    const int first = thread / kWarp * kTileColumns;
    WidePart<F> part(stage.weights, first, lane, task, tile, step);
    // load_matrices: two eights, both halves
    const char* x = stage.x.row[lane % 8 + lane / 16 * 8] + lane / 8 % 2 * 16;
    int S[kEights][4] = {};
#pragma unroll 1
    for (int four = 0; four < kStageRuns / 4; ++four, x += 4 * kRun, part.next()) {
#pragma unroll
      for (int run = 0; run < 4; ++run) {
        uint32_t b[(kEights + 1) / 2][4];
#pragma unroll
        for (int n = 0; n < kEights; n += 2) load_matrices(x + n * stage.x.kEight + run * kRun, b[n / 2]);
        add_run<F>(part, run, b, S);
      }
    }
    scale(part, first, lane, stage, S);
  }

 private:
  // Adds a run's integers.
  template <class F>
  __device__ static __forceinline__ void add_run(WidePart<F>& part, int run, const uint32_t (*b)[4], int (*S)[4]) {
    uint32_t a[4];
    int scale[2][kScales<F>];
    part.codes(run, a);
#pragma unroll
    for (int i = 0; i < 2 * kScales<F>; ++i) scale[i % 2][i / 2] = part.scale(i % 2, run, i / 2);
#pragma unroll
    for (int n = 0; n < kEights; ++n) {
      const uint32_t* own = b[n / 2] + n % 2 * 2;
      int dot[4], second[4];
      if constexpr (kScales<F> == 1) {
        run_dots(a, own, dot);
      } else {
        half_dots(a[0], a[1], own[0], dot);
        half_dots(a[2], a[3], own[1], second);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        S[n][i] += scale[i / 2][0] * dot[i];
        if constexpr (kScales<F> == 2) S[n][i] += scale[i / 2][1] * second[i];
      }
    }
  }
  // Adds what a step's integers stand for.
  template <class F>
  __device__ __forceinline__ void scale(const WidePart<F>& part, int first, int lane, const WideStage<F>& stage,
                                        const int (*S)[4]) {
    const char* sums = stage.x.row[lane % 8 + lane / 16 * 8] + kSuper + lane / 8 % 2 * 16;
    float d[2], dmin[2];
    uint32_t mins[4], b[4];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      part.units(stage.weights, first, lane, i, d[i], dmin[i], mins + i);
      d[i] *= kUnit<F>;
    }
#pragma unroll
    for (int n = 0; n < kEights; ++n) {
      if (F::kMin && n % 2 == 0) load_matrices(sums + n * stage.x.kEight, b);
      scale_eight<F>(d, dmin, mins, b + n % 2 * 2, stage.x.factor + 8 * n + lane % 4 * 2, S[n], sum[n]);
    }
  }
};

}  // namespace trigraph::TRIGRAPH_ISA
