// The functions that compilers call at each access to memory for ThreadSanitizer (-fsanitize=thread), whose library is
// not linked: here they look for what launches that begin early may not do. Device memory is known on the fake device
// alone.
#include "early.h"

#include <dlfcn.h>
#include <execinfo.h>

#include <array>
#include <memory>
#include <unordered_map>

#include "host_calls.h"
#include "threads.h"

using emulator::block;

namespace {

constexpr uintptr_t kPage = 4096;
using Writers = std::array<unsigned, kPage / 4>;
// Of the words of a page, the launches that wrote them last; of a page that is not the device's, nullptr.
std::unordered_map<uintptr_t, std::unique_ptr<Writers>> pages;

struct Account {
  unsigned long looked_up = 0;
  ~Account() {
    if (block.launch && !looked_up) emulator::die("no launch that began early has read anything");
  }
} account;

Writers* writers_of(uintptr_t memory) {
  const auto [page, is_new] = pages.try_emplace(memory / kPage);
  cudaPointerAttributes found{};
  if (is_new) cudaPointerGetAttributes(&found, reinterpret_cast<void*>(memory));
  if (found.type == cudaMemoryTypeDevice) page->second = std::make_unique<Writers>();
  return page->second.get();
}

[[noreturn]] void report(const char* what, const void* memory) {
  void* calls[12];
  const int count = backtrace(calls, 12);
  Dl_info library;
  dladdr(calls[0], &library);
  std::fprintf(stderr, "thread %u of block %u, %u, %u %s %p: addr2line -Cfpie %s", block.current, block.index.x,
               block.index.y, block.index.z, what, memory, library.dli_fname);
  for (int i = 2; i < count; ++i)
    std::fprintf(stderr, " %#tx", static_cast<char*>(calls[i]) - static_cast<char*>(library.dli_fbase) - 1);
  std::fputc('\n', stderr);
  emulator::die("a launch that began early has not awaited those before");
}

inline bool is_ahead() { return !block.fibers[block.current].awaited; }

void access(const void* memory, size_t bytes, bool writes) {
  const emulator::Fiber& self = block.fibers[block.current];
  const auto is_local = [&](const void* at) {
    return size_t(static_cast<const char*>(at) - self.memory.get()) < emulator::kStack;
  };
  if (!is_local(__builtin_frame_address(0)) || is_local(memory)) return;  // of the host, or the thread's own
  const auto start = reinterpret_cast<uintptr_t>(memory);
  for (uintptr_t at = start / 4 * 4; at < start + bytes; at += 4) {
    Writers* writers = writers_of(at);
    if (!writers) return;
    unsigned& writer = (*writers)[at % kPage / 4];
    if (is_ahead() && (writes || writer >= block.in_flight))
      report(writes ? "writes" : "reads what a launch in flight wrote,", memory);
    if (writes) writer = block.launch;
  }
  account.looked_up += is_ahead();
}

}  // namespace

void emulator::early::read(const void* memory, size_t bytes) {
  if (bytes && is_ahead()) access(memory, bytes, false);
}

#define READ(memory, bytes) \
  if (is_ahead()) access(const_cast<const void*>(memory), bytes, false)
#define WRITE(memory, bytes) access(const_cast<const void*>(memory), bytes, true)
#define ACCESSES(bytes)                                          \
  void __tsan_read##bytes(void* memory) { READ(memory, bytes); } \
  void __tsan_write##bytes(void* memory) { WRITE(memory, bytes); }
#define ATOMIC_LOAD(bits)                                                               \
  uint##bits##_t __tsan_atomic##bits##_load(const volatile void* memory, int order) {   \
    READ(memory, bits / 8);                                                             \
    return __atomic_load_n(static_cast<const volatile uint##bits##_t*>(memory), order); \
  }

extern "C" {
ACCESSES(1)
ACCESSES(2)
ACCESSES(4)
ACCESSES(8)
ACCESSES(16)
void __tsan_read_range(void* memory, size_t bytes) { READ(memory, bytes); }
void __tsan_write_range(void* memory, size_t bytes) { WRITE(memory, bytes); }
ATOMIC_LOAD(8)
ATOMIC_LOAD(32)
ATOMIC_LOAD(64)
void __tsan_atomic64_store(volatile void* memory, uint64_t value, int order) {
  WRITE(memory, 8);
  __atomic_store_n(static_cast<volatile uint64_t*>(memory), value, order);
}
uint32_t __tsan_atomic32_fetch_add(volatile void* memory, uint32_t value, int order) {
  WRITE(memory, 4);
  return __atomic_fetch_add(static_cast<volatile uint32_t*>(memory), value, order);
}
bool __tsan_atomic32_compare_exchange_strong(volatile void* memory, void* known, uint32_t value, int order, int) {
  WRITE(memory, 4);
  auto* found = static_cast<uint32_t*>(known);
  return __atomic_compare_exchange_n(static_cast<volatile uint32_t*>(memory), found, value, false, order, order);
}
bool __tsan_atomic32_compare_exchange_weak(volatile void* memory, void* known, uint32_t value, int order, int) {
  return __tsan_atomic32_compare_exchange_strong(memory, known, value, order, order);
}
void __tsan_atomic_thread_fence(int) {}
void __tsan_vptr_update(void*, void*) {}
void __tsan_init() {}
}
