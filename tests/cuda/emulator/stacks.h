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

// Where a stack was left; what its function needs from there on, registers that calls preserve, lies on top.
struct Stack {
  void* top = nullptr;
};

[[gnu::naked, gnu::noipa]] inline void change_stack(Stack* /*left*/, const Stack* /*entered*/) {
  asm("push %rbp; push %rbx; push %r12; push %r13; push %r14; push %r15\n"
      "mov %rsp, (%rdi); mov (%rsi), %rsp\n"
      "pop %r15; pop %r14; pop %r13; pop %r12; pop %rbx; pop %rbp\n"
      "pop %rcx; jmp *%rcx");  // `ret` would be predicted to return to the stack that was left
}

// `body` never returns; it begins when the stack is entered first.
inline void make_stack(Stack& stack, char* memory, size_t bytes, void (*body)()) {
  constexpr size_t kRegisters = 6;
  auto* top = reinterpret_cast<void**>(memory + bytes / 16 * 16) - 2;  // as behind a call: the return address is on top
  top[1] = nullptr;
  top[0] = reinterpret_cast<void*>(body);
  stack.top = static_cast<void*>(top - kRegisters);
  std::memset(stack.top, 0, kRegisters * sizeof(void*));
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
