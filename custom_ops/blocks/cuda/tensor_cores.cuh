// Products of bytes that a warp's tensor cores begin at zero.
#pragma once

#include <cstring>

#include "words.cuh"

namespace trigraph::TRIGRAPH_ISA {

// d = A B for bytes, signed or not, by a warp's tensor cores: A is 16 x 16, B 16 x 8. With g = lane / 4 and t = lane %
// 4, a lane gives columns 4 t to 4 t + 3 of A's rows g and g + 8 and the same rows of B's column g, and has columns 2 t
// and 2 t + 1 of d's rows g (d[0], d[1]) and g + 8 (d[2], d[3]).
template <class A = int8_t, class B = A>
__device__ __forceinline__ void half_dots(uint32_t a_g, uint32_t a_g8, uint32_t b, int* d) {
#if defined(__CUDACC__)
  if constexpr (std::is_signed_v<B>)
    asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%7, %7, %7, %7};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a_g), "r"(a_g8), "r"(b), "r"(0));
  else if constexpr (std::is_signed_v<A>)
    asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.u8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%7, %7, %7, %7};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a_g), "r"(a_g8), "r"(b), "r"(0));
  else
    asm("mma.sync.aligned.m16n8k16.row.col.s32.u8.u8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%7, %7, %7, %7};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a_g), "r"(a_g8), "r"(b), "r"(0));
#else
  const uint32_t a[] = {a_g, a_g8};
  std::fill_n(d, 4, 0);
  emulator::multiply<A, B, 1>(a, &b, d);
#endif
}

// Dot products as half_dots makes them, with twice the columns of A, signed or not, and rows of B, which is signed:
// both halves have the layout above. `a`: of rows g and g + 8 in the first half, then in the second one.
template <class Byte = int8_t>
__device__ __forceinline__ void run_dots(const uint32_t* a, const uint32_t* b, int* d) {
#if defined(__CUDACC__)
  if constexpr (std::is_signed_v<Byte>)
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%10, %10, %10, %10};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(0));
  else
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%10, %10, %10, %10};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(0));
#else
  std::fill_n(d, 4, 0);
  emulator::multiply<Byte, int8_t, 2>(a, b, d);
#endif
}

// Adds to d what run_dots makes of unsigned bytes of A.
__device__ __forceinline__ void add_runs(const uint32_t* a, const uint32_t* b, int* d) {
#if defined(__CUDACC__)
  asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
  emulator::multiply<uint8_t, int8_t, 2>(a, b, d);
#endif
}
// Adds to d what half_dots would make of unsigned bytes of A with signed ones of B.
__device__ __forceinline__ void add_halves(uint32_t a_g, uint32_t a_g8, uint32_t b, int* d) {
#if defined(__CUDACC__)
  asm("mma.sync.aligned.m16n8k16.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a_g), "r"(a_g8), "r"(b));
#else
  const uint32_t a[] = {a_g, a_g8};
  emulator::multiply<uint8_t, int8_t, 1>(a, &b, d);
#endif
}

// As half_dots, for halves whose sums are integers below 2^24 in any order: A is 16 x 16, a[0] and a[2] of row g, a[1]
// and a[3] of row g + 8, and B 16 x 8, so that a lane gives columns 2 t, 2 t + 1, 2 t + 8 and 2 t + 9.
__device__ __forceinline__ void exact_dots(const uint32_t* a, const uint32_t* b, float* d) {
#if defined(__CUDACC__)
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%10, %10, %10, %10};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(0.0f));
#else
  emulator::multiply_halves(a, b, d);
#endif
}

// Two integers of at most 11 bits as halves.
__device__ __forceinline__ uint32_t as_halves(int first, int second) {
  return __half_as_ushort(__short2half_rn(static_cast<short>(first))) |
         static_cast<uint32_t>(__half_as_ushort(__short2half_rn(static_cast<short>(second)))) << 16;
}

// A byte of a word twice, as halves.
__device__ __forceinline__ uint32_t byte_as_halves(uint32_t word, int byte) {
#if defined(__CUDACC__)
  uint32_t halves = __byte_perm(word, 0x64, 0x4040u + 0x0101u * static_cast<unsigned>(byte));  // and 1,024 more
  asm("sub.f16x2 %0, %0, %1;" : "+r"(halves) : "r"(0x64006400u));
  return halves;
#else
  const int value = static_cast<int>(word >> 8 * byte & 255);
  return as_halves(value, value);
#endif
}

// Four 8 x 8 matrices of 16 bits from shared memory, whose rows are 16 bytes each: lane 8 i + r gives the address of
// row r of matrix i; word[i] is what lane 4 r + k has of that row, bytes 4 k to 4 k + 3.
__device__ __forceinline__ void load_matrices(const void* row, uint32_t* word) {
#if defined(__CUDACC__)
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(word[0]), "=r"(word[1]), "=r"(word[2]), "=r"(word[3])
               : "r"(static_cast<unsigned>(__cvta_generic_to_shared(row)))
               : "memory");
#else
  if (reinterpret_cast<uintptr_t>(row) % 16) emulator::die("a row of a matrix lies at no multiple of 16 bytes");
  const int lane = threadIdx.x % kWarp, first = lane / 4;
  const uint32_t* rows[4];
  emulator::shuffle(static_cast<const uint32_t*>(row), {first, 8 + first, 16 + first, 24 + first}, rows);
  for (int i = 0; i < 4; ++i) word[i] = rows[i][lane % 4];
#endif
}

// copy_ahead for a word.
__device__ __forceinline__ void copy_word_ahead(void* to, const void* from) {
#if defined(__CUDACC__)
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(static_cast<unsigned>(__cvta_generic_to_shared(to))),
               "l"(from)
               : "memory");
#else
  emulator::copy_ahead(to, from, 4, 4);
#endif
}

}  // namespace trigraph::TRIGRAPH_ISA
