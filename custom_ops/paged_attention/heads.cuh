// What the device's halves of PagedKVWrite and PagedAttention share: the sequences of a step, checked, normed and
// rotated heads, and how a head is written into the cache.
#pragma once

#include "../cuda/kernel.h"
#include "angles.h"
#include "signature.h"

namespace trigraph::TRIGRAPH_ISA {

// An attribute that sessions set: lengths, pages and positions are inputs of the graph, so that a launch may read them
// before the one ahead is done.
constexpr const char* kGiven = "given";

struct Ragged {
  const int32_t *starts, *past, *table;  // cu_seqlens, past_lens, page_table
  int sequences;
  int64_t columns, page_size, pages, rows;
  Operator op;
  ErrorRecord* record;

  Ragged(const Tensor& cu_seqlens, const Tensor& past_lens, const Tensor& page_table, int64_t rows,
         const CacheShape& cache, Operator op)
      : columns(0), page_size(cache.page_size), pages(cache.pages), rows(rows), op(op) {
    cu_seqlens.expect({-1});
    if (cu_seqlens.dims[0] < 1) fail("input %s is empty", cu_seqlens.name);
    sequences = static_cast<int>(cu_seqlens.dims[0] - 1);
    past_lens.expect({sequences});
    page_table.expect({sequences, -1});
    if (!sequences && rows)
      fail("input %s is for no sequence, but there are %lld rows", cu_seqlens.name, static_cast<long long>(rows));
    columns = page_table.dims[1];
    starts = cu_seqlens.as<int32_t>();
    past = past_lens.as<int32_t>();
    table = page_table.as<int32_t>();
    record = error_record();
  }

  __device__ int sequence_of(int64_t row) const {
    int low = 0, high = sequences;  // starts[low] <= row < starts[high]
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (starts[middle] <= row ? low : high) = middle;
    }
    return low;
  }
  __device__ int64_t position_of(int64_t row, int sequence) const { return past[sequence] + row - starts[sequence]; }
  // Index of a position's entry in the cache seen as [pages * page size] entries; -1, and told, where its page is none
  // of the cache.
  __device__ int64_t entry(int sequence, int64_t position) const {
    int bad = -1;
    const int64_t found = entry(sequence, position, bad);
    if (bad < 0) return found;
    tell_page(sequence, bad);
    return -1;
  }
  // The entry of a position, for many readers: entry 0 where the page is none, whose number then is `bad`.
  __device__ int64_t entry(int sequence, int64_t position, int& bad) const {
    const int64_t page = page_of(position);
    const int32_t id = table[sequence * columns + page];
    if (static_cast<uint32_t>(id) < pages) return id * page_size + position - page * page_size;
    bad = static_cast<int>(page);
    return 0;
  }
  __device__ void tell_page(int sequence, int page) const {
    wrong(Reason::page, true, sequence, page, table[sequence * columns + page], pages);
  }

  // Whether sequences, lengths and the width of the table are ones that can be; the same answer in every thread of
  // every block. Pages are looked at by those who use them.
  __device__ bool can_be() const {
    bool bad = false;
    for (int s = threadIdx.x; s < sequences; s += blockDim.x)
      bad = bad || !starts_hold(s, false) || !columns_hold(s, false);
    return !__syncthreads_or(bad);
  }
  // The first thread of all tells why not, in the order in which a reader would look.
  __device__ void tell() const {
    if (threadIdx.x || blockIdx.x || blockIdx.y || blockIdx.z) return;
    for (int s = 0; s < sequences; ++s)
      if (!starts_hold(s, true)) return;
    for (int s = 0; s < sequences; ++s)
      if (!columns_hold(s, true)) return;
  }
  // Both.
  __device__ bool holds() const {
    if (can_be()) return true;
    tell();
    return false;
  }

 private:
  // The page of a position from 0 on; 32 bits hold it, and divide faster.
  __device__ int64_t page_of(int64_t position) const {
    return static_cast<uint32_t>(position) / static_cast<uint32_t>(page_size);
  }
  __device__ bool wrong(Reason reason, bool tell, int64_t a = 0, int64_t b = 0, int64_t c = 0, int64_t d = 0) const {
    if (tell) report(record, op, reason, a, b, c, d);
    return false;
  }
  __device__ bool starts_hold(int s, bool tell) const {
    if (s == 0 && starts[0] != 0) return wrong(Reason::first_start, tell, starts[0]);
    if (starts[s + 1] <= starts[s]) return wrong(Reason::no_rows, tell, starts[s], starts[s + 1], s);
    if (past[s] < 0) return wrong(Reason::negative_past, tell, s, past[s]);
    if (s + 1 == sequences && starts[sequences] != rows)
      return wrong(Reason::last_start, tell, starts[sequences], rows);
    return true;
  }
  __device__ bool columns_hold(int s, bool tell) const {
    const int64_t last = int64_t{past[s]} + starts[s + 1] - starts[s] - 1;
    return page_of(last) < columns || wrong(Reason::few_columns, tell, columns, page_size, last, s);
  }
};

struct Rotation {
  double log_theta;
  int dims;
  float eps;
  RopeScaling scaling;
  RopeSections sections;
  AxisPositions positions;
  Rotation(const RotaryAttributes& from, const AxisPositions& positions)
      : log_theta(exact_log(from.theta)),
        dims(static_cast<int>(from.dims)),
        eps(from.eps),
        scaling(from.scaling),
        sections(from.sections),
        positions(positions) {}

  // What norm_rotate takes of a row at a place of its sequence: where its positions are, or the place.
  __device__ int at(int64_t row, int64_t place) const { return static_cast<int>(positions.data ? row : place); }
  // Cosine and sine of what turns pair i.
  __device__ float2 turn(int i, int at) const {
    const int from = positions.data ? positions.data[sections.axis(i) * static_cast<int>(positions.rows) + at] : at;
    const Angle turn = angle(static_cast<double>(from) * frequency(log_theta, i, dims, scaling));
    return {static_cast<float>(turn.cosine * scaling.magnitude), static_cast<float>(turn.sine * scaling.magnitude)};
  }
  // Makes those of all pairs, by one warp.
  __device__ void make_turns(int at, float2* turns) const {
    for (int i = threadIdx.x % kWarp; i < dims / 2; i += kWarp) turns[i] = turn(i, at);
  }
};

// head = rotate(x / rms(x) * norm) * scale by one warp, turn(i) is Rotation::turn; NEOX pairs (i, i + dims / 2). `head`
// is shared memory.
template <class Turn>
__device__ __forceinline__ void norm_rotate(const float* x, const float* norm, const Rotation& rotation, Turn&& turn,
                                            int width, float scale, float* head) {
  constexpr int kTogether = 8;  // elements that a lane reads before the first is used
  const int lane = threadIdx.x % kWarp, half = rotation.dims / 2;
  for (int first = lane; first < width; first += kTogether * kWarp) {
    float own[kTogether];
#pragma unroll
    for (int n = 0; n < kTogether; ++n) own[n] = first + n * kWarp < width ? x[first + n * kWarp] : 0.0f;
#pragma unroll
    for (int n = 0; n < kTogether; ++n)
      if (const int i = first + n * kWarp; i < width) head[i] = own[n];
  }
  __syncwarp();
  const float inverse = 1.0f / sqrtf(dot(head, head, width) / static_cast<float>(width) + rotation.eps);
  __syncwarp();
  for (int first = lane; first < width; first += kTogether * kWarp) {
    float weight[kTogether];
#pragma unroll
    for (int n = 0; n < kTogether; ++n) weight[n] = first + n * kWarp < width ? norm[first + n * kWarp] : 0.0f;
#pragma unroll
    for (int n = 0; n < kTogether; ++n)
      if (const int i = first + n * kWarp; i < width) head[i] = head[i] * inverse * weight[n] * scale;
  }
  __syncwarp();
  for (int i = lane; i < half; i += kWarp) {
    const auto [c, s] = turn(i);
    const float a = head[i], b = head[half + i];
    head[i] = a * c - b * s;
    head[half + i] = b * c + a * s;
  }
  __syncwarp();
}

// entry.h's `rotate` by one warp; `x` is shared memory.
__device__ inline void rotate(float* x, int width, int size) {
  const int lane = threadIdx.x % kWarp;
  for (int half = size / 2; half; half /= 2) {
    for (int i = lane; i < width / 2; i += kWarp) {
      const int at = i / half * 2 * half + i % half;
      const float a = x[at], b = x[at + half];
      x[at] = a + b;
      x[at + half] = a - b;
    }
    __syncwarp();
  }
  const float scale = 1.0f / sqrtf(static_cast<float>(size));
  for (int i = lane; i < width; i += kWarp) x[i] *= scale;
  __syncwarp();
}

// entry.h's `write_head` by one warp; `head` is shared memory.
template <class T>
__device__ void write_head(float* head, int width, int rotation, T* out) {
  const int lane = threadIdx.x % kWarp;
  if constexpr (!std::is_same_v<T, Q8>) {
    for (int i = lane; i < width; i += kWarp) narrow(head[i], out + i);
  } else {
    rotate(head, width, rotation);
    for (int b = 0; b < width; b += kQ8Width, out += kQ8Bytes) {
      const float x = head[b + lane];
      uint32_t largest = __float_as_uint(x) & 0x7fffffff;
      for (int offset = kWarp / 2; offset; offset /= 2)
        largest = max(largest, __shfl_xor_sync(kAllLanes, largest, offset));
      const float magnitude = __uint_as_float(largest);
      const bool finite = largest < 0x7f800000, some = finite && magnitude > 1e-36f;
      const float scale = magnitude / 127.0f, shifted = some ? x * (1.0f / scale) : 0.0f, size = fabsf(shifted);
      const int whole = static_cast<int>(size), code = whole + (size - static_cast<float>(whole) >= 0.5f);
      const uint16_t half = some ? __half_as_ushort(__float2half_rn(scale)) : finite ? 0 : 0x7e00;
      if (lane < 2) out[lane].byte = static_cast<uint8_t>(half >> 8 * lane);
      out[2 + lane].byte = static_cast<uint8_t>(shifted < 0 ? -code : code);
    }
  }
}

}  // namespace trigraph::TRIGRAPH_ISA
