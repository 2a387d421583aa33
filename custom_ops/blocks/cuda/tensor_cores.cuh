// Products of bytes that a warp's tensor cores begin at zero.
#pragma once

#include <cstring>

#include "words.cuh"

namespace trigraph::TRIGRAPH_ISA {

// d = A B for bytes, signed or not, by a warp's tensor cores: A is 16 x 16, B 16 x 8. With g = lane / 4 and t = lane %
// 4, a lane gives columns 4 t to 4 t + 3 of A's rows g and g + 8 and the same rows of B's column g, and has columns 2 t
// and 2 t + 1 of d's rows g (d[0], d[1]) and g + 8 (d[2], d[3]).
template <class Byte = int8_t>
__device__ __forceinline__ void half_dots(uint32_t a_g, uint32_t a_g8, uint32_t b, int* d) {
#if defined(__CUDACC__)
  if constexpr (std::is_signed_v<Byte>)
    asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%7, %7, %7, %7};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a_g), "r"(a_g8), "r"(b), "r"(0));
  else
    asm("mma.sync.aligned.m16n8k16.row.col.s32.u8.u8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%7, %7, %7, %7};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a_g), "r"(a_g8), "r"(b), "r"(0));
#else
  const int g = threadIdx.x % kWarp / 4, t = threadIdx.x % 4;
  for (int i = 0; i < 4; ++i) d[i] = 0;
  for (int k = 0; k < 4; ++k) {
    const uint32_t row[2] = {__shfl_sync(kAllLanes, a_g, g * 4 + k), __shfl_sync(kAllLanes, a_g8, g * 4 + k)};
    for (int column = 0; column < 2; ++column) {
      const uint32_t other = __shfl_sync(kAllLanes, b, (2 * t + column) * 4 + k);
      for (int half = 0; half < 2; ++half)
        for (int byte = 0; byte < 4; ++byte)
          d[2 * half + column] += static_cast<Byte>(row[half] >> 8 * byte) * static_cast<Byte>(other >> 8 * byte);
    }
  }
#endif
}

// The same for signed bytes with twice the columns of A and rows of B: both halves have the layout above. `a`: of rows
// g and g + 8 in the first half, then in the second one.
__device__ __forceinline__ void run_dots(const uint32_t* a, const uint32_t* b, int* d) {
#if defined(__CUDACC__)
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%10, %10, %10, %10};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(0));
#else
  int second[4];
  half_dots(a[0], a[1], b[0], d);
  half_dots(a[2], a[3], b[1], second);
  for (int i = 0; i < 4; ++i) d[i] += second[i];
#endif
}

// copy_ahead for a word.
__device__ __forceinline__ void copy_word_ahead(void* to, const void* from) {
#if defined(__CUDACC__)
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(static_cast<unsigned>(__cvta_generic_to_shared(to))),
               "l"(from)
               : "memory");
#else
  std::memcpy(to, from, 4);
#endif
}

}  // namespace trigraph::TRIGRAPH_ISA
