// Products of bytes that four warps ask the tensor cores of sm_90 for, and go on; activations stay in shared memory.
// Only code for sm_90a has them.
#pragma once

#include "tensor_cores.cuh"

namespace trigraph::TRIGRAPH_ISA {

// CMakeLists.txt has the files that include this compiled for sm_90a alone, or for other architectures without it.
#if !defined(__CUDACC__) || defined(TRIGRAPH_SM_90A)
constexpr bool kHasWgmma = true;
#else
constexpr bool kHasWgmma = false;
#endif

constexpr int kWgmmaRows = 96;                  // of activations that meet a group of warps at once
constexpr int kAtomBytes = 128, kAtomRows = 8;  // of what a swizzle moves pieces of 16 bytes in

// Where piece `piece` of 16 bytes of a row lies, in rows of 128 bytes whose first one begins at a multiple of 1,024.
__device__ __forceinline__ int swizzled(int row, int piece) {
  return row * kAtomBytes + (piece ^ row % kAtomRows) * 16;
}

// What tensor cores know swizzled rows by: the low word of their descriptor, whose high one is the same for all.
#if defined(__CUDACC__)
using RowsPlace = uint32_t;
#else
using RowsPlace = const char*;
#endif
__device__ __forceinline__ RowsPlace rows_place(const char* rows) {
#if defined(__CUDACC__)
  return static_cast<unsigned>(__cvta_generic_to_shared(rows)) / 16;
#else
  return rows;
#endif
}
// So many bytes further on.
__device__ __forceinline__ RowsPlace moved_by(RowsPlace place, int bytes) {
#if defined(__CUDACC__)
  return place + static_cast<unsigned>(bytes) / 16;
#else
  return place + bytes;
#endif
}

// What this thread has written to shared memory, tensor cores may read after the next barrier.
__device__ __forceinline__ void show_to_tensor_cores() {
#if defined(TRIGRAPH_SM_90A)
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

// Ahead of products: registers are written.
__device__ __forceinline__ void begin_products() {
#if defined(TRIGRAPH_SM_90A)
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}
__device__ __forceinline__ void end_products() {
#if defined(TRIGRAPH_SM_90A)
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#elif !defined(__CUDACC__)
  emulator::end_products();
#endif
}
// Waits until at most so many groups of products are on their way.
template <int kGroups>
__device__ __forceinline__ void await_products() {
#if defined(TRIGRAPH_SM_90A)
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kGroups) : "memory");
#elif !defined(__CUDACC__)
  emulator::await_products(kGroups);
#endif
}

// Behind a wait: keeps the compiler from reading a sum ahead of it.
__device__ __forceinline__ void written(int& sum) {
#if defined(__CUDACC__)
  asm volatile("" : "+r"(sum)::"memory");
#else
  (void)sum;
#endif
}

// Asks for the products of a run: those of run_dots for each eight of the 96 rows at `place`, of signed bytes, added to
// d or in its place. The four warps of a group ask together.
template <class Byte>
__device__ __forceinline__ void ask_products(const uint32_t* a, RowsPlace place, bool add, int* d) {
#if defined(TRIGRAPH_SM_90A)
#define TRIGRAPH_FOUR(d) "+r"((d)[0]), "+r"((d)[1]), "+r"((d)[2]), "+r"((d)[3])
#define TRIGRAPH_SIXTEEN(d) TRIGRAPH_FOUR(d), TRIGRAPH_FOUR(d + 4), TRIGRAPH_FOUR(d + 8), TRIGRAPH_FOUR(d + 12)
#define TRIGRAPH_ASK(byte)                                                                                            \
  asm volatile(                                                                                                       \
      "{\n.reg .pred p;\n.reg .b64 rows;\nsetp.ne.b32 p, %54, 0;\nmov.b64 rows, {%52, %53};\n"                        \
      "wgmma.mma_async.sync.aligned.m64n96k32.s32." byte                                                              \
      ".s8 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, "                                                       \
      "%12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, "     \
      "%33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47}, {%48, %49, %50, %51}, rows, p;\n}" \
      : TRIGRAPH_SIXTEEN(d), TRIGRAPH_SIXTEEN(d + 16), TRIGRAPH_SIXTEEN(d + 32)                                       \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(place), "r"(kDescriptor), "r"(static_cast<int>(add)))
  constexpr uint32_t kDescriptor = kAtomBytes * kAtomRows / 16 | 1u << 30;  // from eight rows to the next; the swizzle
  if constexpr (std::is_signed_v<Byte>)
    TRIGRAPH_ASK("s8");
  else
    TRIGRAPH_ASK("u8");
#undef TRIGRAPH_ASK
#undef TRIGRAPH_SIXTEEN
#undef TRIGRAPH_FOUR
#elif !defined(__CUDACC__)
  emulator::ask_products<Byte>(a, place, kWgmmaRows, add, d);
#endif
}

}  // namespace trigraph::TRIGRAPH_ISA
