#include "../cuda/refusal.cuh"
#include "device.cuh"
#include "products.h"

namespace trigraph::TRIGRAPH_ISA {
namespace {

constexpr int kThreads = 128;
constexpr int kSuper = 256;    // activations that share a scale
constexpr int kMostRows = 8;   // activation rows that meet a run in registers
constexpr int kManyRows = 16;  // from which on tensor cores are worth their tiles
constexpr int kTile = kRun * kWarp;

__host__ __device__ constexpr int64_t round_up(int64_t value, int64_t to) { return (value + to - 1) / to * to; }

// A prepared int8 row: codes, then the sums of 16 codes, then the scales.
struct Int8Row {
  char* data;
  int64_t supers;
  __device__ Int8Row(const void* prepared, int64_t width)
      : data(static_cast<char*>(const_cast<void*>(prepared))), supers((width + kSuper - 1) / kSuper) {}
  __device__ int8_t* codes() const { return reinterpret_cast<int8_t*>(data); }
  __device__ int16_t* sums() const { return reinterpret_cast<int16_t*>(data + supers * kSuper); }
  __device__ float* scales() const { return reinterpret_cast<float*>(data + supers * (kSuper + kSuper / 16 * 2)); }
};

// One super-block of a row by a warp: codes in [-127, 127], rounded to nearest even. A block that is not finite gets a
// scale of NaN, so that its products are NaN too; one whose largest magnitude is at most 1e-36 counts as zero, for the
// reciprocal must be finite.
template <class Source>
__device__ __forceinline__ void quantise(const Source& x, int64_t width, int64_t super, char* prepared) {
  const int lane = threadIdx.x % kWarp;
  const Int8Row out(prepared, width);
  float value[8];
  uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int64_t column = super * kSuper + lane * 8 + i;
    value[i] = column < width ? x(column) : 0.0f;
    largest = max(largest, __float_as_uint(value[i]) & 0x7fffffffu);
  }
  for (int offset = kWarp / 2; offset; offset /= 2) largest = max(largest, __shfl_xor_sync(kAllLanes, largest, offset));
  const float magnitude = __uint_as_float(largest);
  const bool finite = largest < 0x7f800000u, zero = !finite || magnitude <= 1e-36f;
  const float inverse = zero ? 0.0f : 127.0f / magnitude;
  uint32_t word[2] = {0, 0};
  int sum = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int code = zero ? 0 : __float2int_rn(value[i] * inverse);
    word[i / 4] |= (static_cast<uint32_t>(code) & 255) << i % 4 * 8;
    sum += code;
  }
  sum += __shfl_xor_sync(kAllLanes, sum, 1);
  reinterpret_cast<uint2*>(out.codes() + super * kSuper)[lane] = make_uint2(word[0], word[1]);
  if (lane % 2 == 0) out.sums()[super * (kSuper / 16) + lane / 2] = static_cast<int16_t>(sum);
  if (lane == 0) out.scales()[super] = finite ? (zero ? 0.0f : magnitude / 127.0f) : __uint_as_float(0x7fc00000u);
}

// What is prepared: rows as they are, or silu(gate) * up.
struct Plain {
  const float* x;
  __device__ float operator()(int64_t i) const { return x[i]; }
  __host__ __device__ Plain row(int64_t offset) const { return {x + offset}; }
};
struct Gated {
  const float *gate, *up;
  __device__ float operator()(int64_t i) const { return silu(gate[i]) * up[i]; }
  __host__ __device__ Gated row(int64_t offset) const { return {gate + offset, up + offset}; }
};

// A warp for each super-block, a block of the second dimension for each row.
template <class Source>
__global__ void prepare_int8(Source x, int64_t width, char* prepared, int64_t row_bytes) {
  const int64_t row = blockIdx.y, super = int64_t{blockIdx.x} * (kThreads / kWarp) + threadIdx.x / kWarp;
  if (super * kSuper < width) quantise(x.row(row * width), width, super, prepared + row * row_bytes);
}

template <class Source>
__global__ void prepare_tiled(Source x, int64_t width, float* prepared, int64_t padded) {
  const int64_t at = int64_t{blockIdx.x} * kThreads + threadIdx.x, row = blockIdx.y;
  if (at >= padded) return;
  const int64_t in_tile = at % kTile, run = in_tile / 4 % kWarp, i = in_tile / (4 * kWarp) * 4 + at % 4;
  const int64_t column = at / kTile * kTile + run * kRun + i;
  prepared[row * padded + at] = column < width ? x.row(row * width)(column) : 0.0f;
}

template <class Source>
__global__ void prepare_raw(Source x, int64_t width, float* prepared) {
  const int64_t column = int64_t{blockIdx.x} * kThreads + threadIdx.x, at = blockIdx.y * width + column;
  if (column < width) prepared[at] = x(at);
}

// A run's product, before the scale of its activations: from the sums of products and of activations of its halves.
template <class F>
__device__ __forceinline__ float run_product(const float* scale, const float* min, int dot, int second_dot, int sum,
                                             int second_sum) {
  float part;
  if constexpr (F::kScales == 1) {
    part = scale[0] * static_cast<float>(dot + second_dot);
    if constexpr (F::kMin) part = fmaf(-min[0], static_cast<float>(sum + second_sum), part);
  } else {
    part = fmaf(scale[1], static_cast<float>(second_dot), scale[0] * static_cast<float>(dot));
    if constexpr (F::kMin) {
      part = fmaf(-min[0], static_cast<float>(sum), part);
      part = fmaf(-min[1], static_cast<float>(second_sum), part);
    }
  }
  return part;
}

// Adds the products of runs lane, lane + lanes, ... of one weight row with M activation rows to their sums.
template <class F, Layout kLayout, int M>
__device__ __forceinline__ void add_runs(const uint8_t* w, int64_t width, int lane, int lanes, const char* const* x,
                                         float* sum) {
  if constexpr (kLayout == Layout::raw) {
    for (int64_t i = lane; i < width; i += lanes) {
      const float weight = F::load(w + i * F::kBytes);
#pragma unroll
      for (int m = 0; m < M; ++m) sum[m] = fmaf(weight, reinterpret_cast<const float*>(x[m])[i], sum[m]);
    }
  } else {
    constexpr int kRuns = F::kBlock / kRun;
    const int runs = static_cast<int>(width / kRun);
    for (int run = lane; run < runs; run += lanes) {
      Codes codes;
      F::decode(w + int64_t{run / kRuns} * F::kBytes, run % kRuns, &codes);
      if constexpr (kLayout == Layout::int8) {
#pragma unroll
        for (int m = 0; m < M; ++m) {
          const Int8Row row(x[m], width);
          const uint4* packed = reinterpret_cast<const uint4*>(row.codes() + run * kRun);
          const uint4 a = packed[0], b = packed[1];
          const uint32_t code[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
          int dot[2] = {0, 0};
#pragma unroll
          for (int i = 0; i < 8; ++i)
            dot[i / 4] = __dp4a(static_cast<int>(codes.word[i]), static_cast<int>(code[i]), dot[i / 4]);
          const int16_t* sums = row.sums() + 2 * run;
          const float part = run_product<F>(codes.scale, codes.min, dot[0], dot[1], sums[0], sums[1]);
          sum[m] = fmaf(row.scales()[run / (kSuper / kRun)], part, sum[m]);
        }
      } else {
        const int64_t at = int64_t{run / kWarp} * kTile + run % kWarp * 4;
#pragma unroll
        for (int i = 0; i < kRun; i += 4) {
          float weight[4];
#pragma unroll
          for (int j = 0; j < 4; ++j) weight[j] = element<F>(codes, i + j);
#pragma unroll
          for (int m = 0; m < M; ++m) {
            const float4 four = *reinterpret_cast<const float4*>(reinterpret_cast<const float*>(x[m]) + at + i * kWarp);
            sum[m] = fmaf(weight[0], four.x, sum[m]);
            sum[m] = fmaf(weight[1], four.y, sum[m]);
            sum[m] = fmaf(weight[2], four.z, sum[m]);
            sum[m] = fmaf(weight[3], four.w, sum[m]);
          }
        }
      }
    }
  }
}

// One weight row and rows [first, first + count) of the bucket, count <= M. Rows past the end repeat the last one.
template <class F, Layout kLayout, int M>
__device__ __forceinline__ void few_rows(const uint8_t* w, int64_t width, int lane, int lanes, const char* x,
                                         int64_t x_bytes, const int* source, int64_t first, int count, float* y,
                                         int64_t y_stride) {
  const char* row[M];
  float sum[M];
#pragma unroll
  for (int m = 0; m < M; ++m) {
    const int64_t place = first + min(m, count - 1);
    row[m] = x + (source ? source[place] : place) * x_bytes;
    sum[m] = 0;
  }
  if (w) add_runs<F, kLayout, M>(w, width, lane, lanes, row, sum);
#pragma unroll
  for (int m = 0; m < M; ++m) {
    const float total = lane_sum(sum[m], lanes);
    if (w && lane == 0 && m < count) y[(first + m) * y_stride] = total;
  }
}

// Up to kMost rows, by as few as are there.
template <class F, Layout kLayout, int kMost>
__device__ __forceinline__ void some_rows(const uint8_t* w, int64_t width, int lane, int lanes, const char* x,
                                          int64_t x_bytes, const int* source, int64_t first, int count, float* y,
                                          int64_t y_stride) {
  const auto rows = [&](auto m) {
    few_rows<F, kLayout, decltype(m)::value>(w, width, lane, lanes, x, x_bytes, source, first, count, y, y_stride);
  };
  if constexpr (kMost > 4)
    if (count > 4) return rows(std::integral_constant<int, kMost>{});
  if constexpr (kMost > 2)
    if (count > 2) return rows(std::integral_constant<int, 4>{});
  if (count > 1) return rows(std::integral_constant<int, 2>{});
  rows(std::integral_constant<int, 1>{});
}

struct Weights {
  const uint8_t* data;
  int64_t stride;  // from a matrix of a stack to the next
  int64_t rows, row_bytes, width;
  int lanes;  // of a warp that share a weight row
};

// Which rows a block meets with which weights. grid: [parts of the weight rows, bucket, parts of a bucket's rows, twice
// with a second stack]. Without buckets there is one, with `places` rows.
struct Task {
  const uint8_t* w;  // of the matrix
  float* y;
  int64_t first, end, part, parts;

  __device__ Task(const Weights& weights, const Buckets& buckets, int64_t places, float* y, const uint8_t* second,
                  float* second_y)
      : w(weights.data), y(y), first(0), end(places), part(blockIdx.z), parts(gridDim.z) {
    if (second) parts /= 2;
    if (part >= parts) {
      part -= parts;
      w = second;
      this->y = second_y;
    }
    if (!buckets.used) return;
    end = 0;
    if (static_cast<int>(blockIdx.y) >= *buckets.used) return;
    w += buckets.matrix[blockIdx.y] * weights.stride;
    first = buckets.first[blockIdx.y];
    end = buckets.first[blockIdx.y + 1];
  }
};

template <class F, Layout kLayout, int kMost>
__global__ void __launch_bounds__(kThreads) products(Weights weights, const char* x, int64_t x_bytes, Buckets buckets,
                                                     int64_t places, float* y, const uint8_t* second, float* second_y) {
  const Task task(weights, buckets, places, y, second, second_y);
  const int lane = threadIdx.x % weights.lanes;
  const int64_t row = int64_t{blockIdx.x} * (kThreads / weights.lanes) + threadIdx.x / weights.lanes;
  // A warp without a row still takes part in the sums of its lanes.
  const uint8_t* w = row < weights.rows ? task.w + row * weights.row_bytes : nullptr;
  for (int64_t i = task.first + task.part * kMost; i < task.end; i += task.parts * kMost)
    some_rows<F, kLayout, kMost>(w, weights.width, lane, weights.lanes, x, x_bytes, buckets.source, i,
                                 static_cast<int>(min(int64_t{kMost}, task.end - i)), task.y + row, weights.rows);
}

constexpr int kTileRows = 64, kTileColumns = 32;  // activation rows and weight rows of a block
constexpr int kStage = kThreads / kWarp;          // runs that a block unpacks at a time, one each warp
constexpr int kLevels = 5;                        // of the tree over a warp's lanes

// Many int8 rows by tensor cores, to the same bits: products are exact integers, and a thread adds up the runs of its
// results as the lanes of a warp do, chain by chain, with the tree over chains kept on a stack.
template <class F>
__global__ void __launch_bounds__(kThreads, 3) tiles(Weights weights, const char* x, int64_t x_bytes, Buckets buckets,
                                                     int64_t places, float* y, const uint8_t* second, float* second_y) {
  constexpr int kStride = 12;  // words; eight columns of four words each meet all banks
  constexpr int kQuarters = kTileColumns / 8;
  __shared__ uint32_t code[kStage][kTileColumns][kStride];
  __shared__ float scale[kStage][kTileColumns][2], min_[kStage][kTileColumns][2];
  // Upper levels of the stack, which few chains reach; in registers they would halve the warps that fit.
  __shared__ float upper_levels[kLevels - 1][4 * kQuarters][kThreads];
  const Task task(weights, buckets, places, y, second, second_y);
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, g = lane / 4, t = lane % 4;
  const int runs = static_cast<int>(weights.width / kRun), lanes = weights.lanes;
  const int levels = 31 - __clz(lanes), steps = (runs + lanes - 1) / lanes, entries = lanes * steps;
  // Chains come in the order in which the tree joins them: that of the bits of their number, reversed.
  const auto run_of = [&](int entry) {
    return static_cast<int>(__brev(static_cast<uint32_t>(entry / steps)) >> (32 - levels)) + entry % steps * lanes;
  };
  const int64_t own_row = int64_t{blockIdx.x} * kTileColumns + lane;  // that this lane unpacks
  const uint8_t* w = own_row < weights.rows ? task.w + own_row * weights.row_bytes : nullptr;

  for (int64_t base = task.first + task.part * kTileRows; base < task.end; base += task.parts * kTileRows) {
    const int64_t place[2] = {base + warp * 16 + g, base + warp * 16 + g + 8};
    const char* row[2];
    for (int i = 0; i < 2; ++i) {
      const int64_t there = min(place[i], task.end - 1);
      row[i] = x + (buckets.source ? buckets.source[there] : there) * x_bytes;
    }
    const Int8Row upper(row[0], weights.width), lower(row[1], weights.width);
    float chain[kQuarters][4] = {}, lowest[kQuarters][4] = {}, total[kQuarters][4] = {};
    for (int start = 0; start < entries; start += kStage) {
      __syncthreads();
      Codes codes = {};
      const int mine = start + warp < entries ? run_of(start + warp) : runs;
      if (w && mine < runs) {
        constexpr int kRuns = F::kBlock / kRun;
        F::decode(w + int64_t{mine / kRuns} * F::kBytes, mine % kRuns, &codes);
      }
#pragma unroll
      for (int i = 0; i < 8; ++i) code[warp][lane][i] = codes.word[i];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        scale[warp][lane][i] = codes.scale[i];
        min_[warp][lane][i] = codes.min[i];
      }
      __syncthreads();
      for (int s = 0; s < min(kStage, entries - start); ++s) {
        const int entry = start + s, run = run_of(entry), number = entry / steps;
        if (run < runs) {
          const auto* up = reinterpret_cast<const uint32_t*>(upper.codes() + run * kRun);
          const auto* down = reinterpret_cast<const uint32_t*>(lower.codes() + run * kRun);
          const uint32_t a[4] = {up[t], down[t], up[4 + t], down[4 + t]};
          const float factor[2] = {upper.scales()[run / (kSuper / kRun)], lower.scales()[run / (kSuper / kRun)]};
          const int16_t *up_sums = upper.sums() + 2 * run, *down_sums = lower.sums() + 2 * run;
          const int sums[2][2] = {{up_sums[0], up_sums[1]}, {down_sums[0], down_sums[1]}};
#pragma unroll
          for (int n = 0; n < kQuarters; ++n) {
            int dot[2][4] = {};
            multiply_tiles(a[0], a[1], code[s][8 * n + g][t], dot[0]);
            multiply_tiles(a[2], a[3], code[s][8 * n + g][4 + t], dot[1]);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              const int column = 8 * n + 2 * t + i % 2;
              const float part = run_product<F>(scale[s][column], min_[s][column], dot[0][i], dot[1][i], sums[i / 2][0],
                                                sums[i / 2][1]);
              chain[n][i] = fmaf(factor[i / 2], part, chain[n][i]);
            }
          }
        }
        if (entry % steps != steps - 1) continue;
        bool kept = false;
#pragma unroll
        for (int level = 0; level < kLevels; ++level) {
          if (kept || level >= levels) continue;
          kept = !(number >> level & 1);
#pragma unroll
          for (int n = 0; n < kQuarters; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              float& there = level ? upper_levels[level - 1][4 * n + i][threadIdx.x] : lowest[n][i];
              if (kept)
                there = chain[n][i];
              else
                chain[n][i] += there;
            }
        }
#pragma unroll
        for (int n = 0; n < kQuarters; ++n)
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            if (!kept) total[n][i] = chain[n][i];
            chain[n][i] = 0;
          }
      }
    }
#pragma unroll
    for (int n = 0; n < kQuarters; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int64_t column = int64_t{blockIdx.x} * kTileColumns + 8 * n + 2 * t + i % 2;
        if (place[i / 2] < task.end && column < weights.rows)
          task.y[place[i / 2] * weights.rows + column] = total[n][i];
      }
  }
}

constexpr int kFusedThreads = 256;
constexpr size_t kFusedBytes = 48 << 10;   // of prepared rows in shared memory
constexpr int64_t kFusedBlocks = 2 * 132;  // fill a large device: beyond that, blocks take more rows

// The same for a few rows of float32, which each block prepares for itself: for a step that reads its weights in
// microseconds one launch less matters more than work done twice.
template <class F, int kMost>
__global__ void __launch_bounds__(kFusedThreads)
    fused_products(Weights weights, const float* x, int64_t x_bytes, int count, int rows_of_warp, float* y) {
  char* prepared = shared_memory();
  const int supers = static_cast<int>((weights.width + kSuper - 1) / kSuper);
  for (int task = threadIdx.x / kWarp; task < count * supers; task += kFusedThreads / kWarp)
    quantise(Plain{x}.row(task / supers * weights.width), weights.width, task % supers,
             prepared + task / supers * x_bytes);
  __syncthreads();
  const int lane = threadIdx.x % weights.lanes, rows_of_block = kFusedThreads / weights.lanes;
  for (int i = 0; i < rows_of_warp; ++i) {
    const int64_t row = (int64_t{blockIdx.x} * rows_of_warp + i) * rows_of_block + threadIdx.x / weights.lanes;
    const uint8_t* w = row < weights.rows ? weights.data + row * weights.row_bytes : nullptr;
    some_rows<F, Layout::int8, kMost>(w, weights.width, lane, weights.lanes, prepared, x_bytes, nullptr, 0, count,
                                      y + row, weights.rows);
  }
}

template <class F, Layout kLayout>
Weights weights_of(const uint8_t* w, int64_t stride, int64_t n, int64_t row_bytes, int64_t width) {
  int lanes = kWarp;
  if (kLayout != Layout::raw)
    while (lanes > 4 && width / kRun < lanes) lanes /= 2;  // narrow rows share a warp
  return {w, stride, n, row_bytes, width, lanes};
}

template <class F, Layout kLayout>
void product(const uint8_t* w, int64_t n, int64_t row_bytes, int64_t width, const void* x, int64_t m, float* y,
             cudaStream_t stream) {
  const Weights weights = weights_of<F, kLayout>(w, 0, n, row_bytes, width);
  const auto* rows = static_cast<const char*>(x);
  const int64_t x_bytes = prepared_bytes(kLayout, width);
  const auto parts = [m](int64_t most) {
    return static_cast<unsigned>(std::min<int64_t>(65535, (m + most - 1) / most));
  };
  if constexpr (kLayout == Layout::int8) {
    if (m >= kManyRows) {
      launch(tiles<F>, dim3(blocks_of(n, kTileColumns), 1, parts(kTileRows)), kThreads, 0, stream, weights, rows,
             x_bytes, Buckets{}, m, y, nullptr, nullptr);
      return;
    }
  }
  const auto kernel = m == 1 ? products<F, kLayout, 2> : products<F, kLayout, kMostRows>;
  const dim3 grid(blocks_of(n, kThreads / weights.lanes), 1, parts(m == 1 ? 2 : kMostRows));
  launch(kernel, grid, kThreads, 0, stream, weights, rows, x_bytes, Buckets{}, m, y, nullptr, nullptr);
}

// Whether the few rows were taken: without room for them they must be prepared first.
template <class F>
bool fused(const uint8_t* w, int64_t n, int64_t row_bytes, int64_t width, const float* x, int64_t m, float* y,
           cudaStream_t stream) {
  const int64_t x_bytes = prepared_bytes(Layout::int8, width);
  if (m > kMostRows || static_cast<size_t>(m * x_bytes) > kFusedBytes) return false;
  const Weights weights = weights_of<F, Layout::int8>(w, 0, n, row_bytes, width);
  const int64_t rows_of_block = kFusedThreads / weights.lanes;
  const int64_t rows_of_warp = std::min<int64_t>(8, std::max<int64_t>(1, n / (rows_of_block * kFusedBlocks)));
  const auto kernel = m <= 2 ? fused_products<F, 2> : fused_products<F, kMostRows>;
  launch(kernel, blocks_of(n, rows_of_block * rows_of_warp), kFusedThreads, static_cast<size_t>(m * x_bytes), stream,
         weights, x, x_bytes, m, rows_of_warp, y);
  return true;
}

template <class F, Layout kLayout>
void grouped(const uint8_t* w, const uint8_t* second, int64_t stride, int64_t n, int64_t row_bytes, int64_t width,
             const void* x, const Buckets& buckets, int64_t most, int64_t places, float* y, float* second_y,
             cudaStream_t stream) {
  const Weights weights = weights_of<F, kLayout>(w, stride, n, row_bytes, width);
  const auto grid = [&](int64_t columns, unsigned parts) {
    return dim3(blocks_of(n, columns), static_cast<unsigned>(most), second ? 2 * parts : parts);
  };
  const auto* rows = static_cast<const char*>(x);
  const int64_t x_bytes = prepared_bytes(kLayout, width);
  if constexpr (kLayout == Layout::int8) {
    if (places >= most * kManyRows / 2) {
      launch(tiles<F>, grid(kTileColumns, 1), kThreads, 0, stream, weights, rows, x_bytes, buckets, 0, y, second,
             second_y);
      return;
    }
  }
  const bool few = places <= most;  // rows in most buckets: one or two
  const auto kernel = few ? products<F, kLayout, 2> : products<F, kLayout, kMostRows>;
  launch(kernel, grid(kThreads / weights.lanes, few ? 1 : 2), kThreads, 0, stream, weights, rows, x_bytes, buckets, 0,
         y, second, second_y);
}

// A block for a part of a row.
template <class F>
__global__ void unpack_rows(const uint8_t* table, int64_t count, int64_t row_bytes, int64_t width, const int64_t* ids,
                            float* y, RefusalRecord* record) {
  const int64_t row = blockIdx.x, at = int64_t{blockIdx.y} * kThreads + threadIdx.x, id = ids[row];
  if (id < 0 || id >= count) {
    if (at == 0) refuse(record, Operator::block_gather, Reason::gather_id, row, id, count);
    return;
  }
  const uint8_t* w = table + id * row_bytes;
  float* out = y + row * width;
  if constexpr (kPlain<F>) {
    if (at < width) out[at] = F::load(w + at * F::kBytes);
  } else {
    constexpr int kRuns = F::kBlock / kRun;
    if (at >= width / kRun) return;
    Codes codes;
    F::decode(w + at / kRuns * F::kBytes, static_cast<int>(at % kRuns), &codes);
#pragma unroll
    for (int i = 0; i < kRun; ++i) out[at * kRun + i] = element<F>(codes, i);
  }
}

template <class F>
void unpack(const uint8_t* table, int64_t count, int64_t row_bytes, int64_t width, const int64_t* ids, int64_t rows,
            float* y, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(rows), std::max(1u, blocks_of(kPlain<F> ? width : width / kRun, kThreads)));
  launch(unpack_rows<F>, grid, kThreads, 0, stream, table, count, row_bytes, width, ids, y, refusal_record());
}

template <class F, Layout kLayout>
constexpr ProductKernel make_kernel() {
  constexpr DType kType = F::kBlock > 1            ? DType::u8
                          : F::kBytes == 4         ? DType::f32
                          : std::is_same_v<F, F16> ? DType::f16
                                                   : DType::bf16;
  bool (*few)(const uint8_t*, int64_t, int64_t, int64_t, const float*, int64_t, float*, cudaStream_t) = nullptr;
  if constexpr (kLayout == Layout::int8) few = fused<F>;
  return {{F::kName, kType, F::kBlock, F::kBytes},
          kLayout,
          F::kAlign,
          few,
          product<F, kLayout>,
          grouped<F, kLayout>,
          unpack<F>};
}

template <Layout kLayout, class... F>
const ProductKernel* find(const std::string& type) {
  static constexpr ProductKernel all[] = {make_kernel<F, kLayout>()...};
  for (const ProductKernel& kernel : all)
    if (type == kernel.type) return &kernel;
  return nullptr;
}

}  // namespace

int64_t prepared_bytes(Layout layout, int64_t width) {
  if (layout == Layout::raw) return width * 4;
  if (layout == Layout::tiled) return round_up(width, kTile) * 4;
  const int64_t supers = (width + kSuper - 1) / kSuper;
  return round_up(supers * (kSuper + kSuper / 16 * 2 + 4), 16);
}

namespace {

template <class Source>
void prepare_rows(Layout layout, Source x, int64_t rows, int64_t width, void* prepared, cudaStream_t stream) {
  constexpr int64_t kMost = 65535;  // rows of one launch: the second dimension of a grid
  const int64_t bytes = prepared_bytes(layout, width);
  for (int64_t first = 0; first < rows; first += kMost) {
    const auto count = static_cast<unsigned>(std::min(kMost, rows - first));
    char* out = static_cast<char*>(prepared) + first * bytes;
    const Source from = x.row(first * width);
    if (layout == Layout::int8)
      launch(prepare_int8<Source>, dim3(blocks_of((width + kSuper - 1) / kSuper, kThreads / kWarp), count), kThreads, 0,
             stream, from, width, out, bytes);
    else if (layout == Layout::tiled)
      launch(prepare_tiled<Source>, dim3(blocks_of(bytes / 4, kThreads), count), kThreads, 0, stream, from, width,
             reinterpret_cast<float*>(out), bytes / 4);
    else
      launch(prepare_raw<Source>, dim3(blocks_of(width, kThreads), count), kThreads, 0, stream, from, width,
             reinterpret_cast<float*>(out));
  }
}

}  // namespace

void prepare(Layout layout, const float* x, int64_t rows, int64_t width, void* prepared, cudaStream_t stream) {
  prepare_rows(layout, Plain{x}, rows, width, prepared, stream);
}

void prepare_gated(Layout layout, const float* gate, const float* up, int64_t rows, int64_t width, void* prepared,
                   cudaStream_t stream) {
  prepare_rows(layout, Gated{gate, up}, rows, width, prepared, stream);
}

const ProductKernel& product_kernel(const std::string& type, const std::string& activations) {
  check_activations(activations);
#define TRIGRAPH_BLOCK_TYPES Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS
  const ProductKernel* kernel = find<Layout::raw, F32, F16, BF16>(type);
  if (!kernel)
    kernel = activations == "int8" ? find<Layout::int8, TRIGRAPH_BLOCK_TYPES>(type)
                                   : find<Layout::tiled, TRIGRAPH_BLOCK_TYPES>(type);
  if (kernel) return *kernel;
  fail_type(type);
}

}  // namespace trigraph::TRIGRAPH_ISA
