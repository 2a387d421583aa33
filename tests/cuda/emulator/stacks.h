// Stacks that take turns on one thread of the host.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#if !defined(__x86_64__)
#include <setjmp.h>
#include <ucontext.h>
#endif

namespace emulator {

#if defined(__x86_64__)

// Where a stack was left: there lie the place to go on at, and the registers that compilers let no asm change.
struct Stack {
  void* top = nullptr;
};

// Part of the function that waits: a call's return would be predicted to go to the stack that was left.
[[gnu::always_inline]] inline void change_stack(Stack* left, const Stack* entered) {
  asm volatile(
      "lea -128(%%rsp), %%rsp\n"  // below it a function may keep what it likes
      "push %%rbx; push %%rbp; lea 1f(%%rip), %%rax; push %%rax\n"
      "mov %%rsp, (%0); mov (%1), %%rsp\n"
      "pop %%rax; jmp *%%rax\n"
      "1: pop %%rbp; pop %%rbx; lea 128(%%rsp), %%rsp"
      : "+D"(left), "+S"(entered)
      :
      : "rax", "rcx", "rdx", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "cc", "memory", "xmm0", "xmm1",
        "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14",
        "xmm15"
#if defined(__AVX512F__)
        ,
        "xmm16", "xmm17", "xmm18", "xmm19", "xmm20", "xmm21", "xmm22", "xmm23", "xmm24", "xmm25", "xmm26", "xmm27",
        "xmm28", "xmm29", "xmm30", "xmm31", "k1", "k2", "k3", "k4", "k5", "k6", "k7"
#endif
  );
}

// `body` never returns; it begins when the stack is entered first.
inline void make_stack(Stack& stack, char* memory, size_t bytes, void (*body)()) {
  auto* top = reinterpret_cast<void**>(memory + bytes / 16 * 16) - 2;  // as behind a call: the return address is on top
  top[1] = nullptr;
  top[0] = reinterpret_cast<void*>(body);
  stack.top = static_cast<void*>(top);
}

#else

struct Stack {
  ucontext_t entry;
  jmp_buf point;
  bool begun = false;
};

// Jumps stay within stacks that are alive; ucontext only makes those, for a change by it is a call of the system.
inline void change_stack(Stack* left, Stack* entered) {
  left->begun = true;
  if (_setjmp(left->point)) return;
  if (entered->begun) _longjmp(entered->point, 1);
  setcontext(&entered->entry);
}

inline void make_stack(Stack& stack, char* memory, size_t bytes, void (*body)()) {
  getcontext(&stack.entry);
  stack.entry.uc_stack.ss_sp = memory;
  stack.entry.uc_stack.ss_size = bytes;
  stack.entry.uc_link = nullptr;
  makecontext(&stack.entry, body, 0);
}

#endif

}  // namespace emulator
