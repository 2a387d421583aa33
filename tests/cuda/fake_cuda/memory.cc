// Device memory: a part of the host's that is closed to it while no work runs.
#include "memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace fake_cuda {
namespace {

constexpr size_t kPage = 4096;
constexpr int kPoison = 0xff;  // NaN, and ids that no table has

size_t rounded(size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

}  // namespace

Memory::Memory(bool dry) : dry_(dry) {
  void* start = mmap(nullptr, kDeviceBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (start == MAP_FAILED) {
    std::perror("fake CUDA: no address space for the device");
    std::abort();
  }
  start_ = reinterpret_cast<uintptr_t>(start);
}

void* Memory::take(size_t bytes, Place place, int device) {
  if (place == Place::pinned) {
    void* memory = std::aligned_alloc(64, (bytes + 63) / 64 * 64);
    std::memset(memory, kPoison, bytes);
    blocks_[reinterpret_cast<uintptr_t>(memory)] = {bytes, place, device};
    pinned_ += bytes;
    return memory;
  }
  if (bytes > left(device)) return nullptr;
  uintptr_t at = start_;  // behind the last block before a gap that is wide enough
  for (auto block = blocks_.lower_bound(start_); block != blocks_.end() && block->second.place == Place::device;
       ++block) {
    if (block->first - at >= rounded(bytes)) break;
    at = block->first + rounded(block->second.bytes);
  }
  if (at + rounded(bytes) > start_ + kDeviceBytes) return nullptr;
  blocks_[at] = {bytes, place, device};
  allocated_ += bytes;
  most_ = std::max(most_, allocated_);
  void* memory = reinterpret_cast<void*>(at);
  if (dry_) return memory;
  mprotect(memory, rounded(bytes), PROT_READ | PROT_WRITE);
  std::memset(memory, kPoison, bytes);
  if (!open_) mprotect(memory, rounded(bytes), PROT_NONE);
  return memory;
}

bool Memory::give(void* memory) {
  const auto block = blocks_.find(reinterpret_cast<uintptr_t>(memory));
  if (block == blocks_.end() || block->second.registered) return false;
  if (block->second.place == Place::pinned) {
    pinned_ -= block->second.bytes;
    std::free(memory);
  } else {
    allocated_ -= block->second.bytes;
    madvise(memory, rounded(block->second.bytes), MADV_DONTNEED);
    mprotect(memory, rounded(block->second.bytes), PROT_NONE);
  }
  blocks_.erase(block);
  return true;
}

bool Memory::pin(void* memory, size_t bytes) {
  const uintptr_t start = reinterpret_cast<uintptr_t>(memory) / kPage * kPage;
  const uintptr_t end = rounded(reinterpret_cast<uintptr_t>(memory) + bytes);
  for (const auto& [at, block] : blocks_)
    if (block.place == Place::pinned && block.registered && at < end && start < at + block.bytes) return false;
  blocks_[start] = {end - start, Place::pinned, 0, true};
  return true;
}

bool Memory::unpin(void* memory) {
  const auto block = blocks_.find(reinterpret_cast<uintptr_t>(memory) / kPage * kPage);
  if (block == blocks_.end() || !block->second.registered) return false;
  blocks_.erase(block);
  return true;
}

size_t Memory::allocated(int device) const {
  size_t sum = 0;
  for (const auto& [at, block] : blocks_)
    if (block.place == Place::device && block.device == device) sum += block.bytes;
  return sum;
}

size_t Memory::left(int device) const {
  const auto own = limits_.find(device);
  const size_t limit = own == limits_.end() ? kDeviceBytes : own->second, taken = allocated(device);
  return limit > taken ? limit - taken : 0;
}

const Memory::Block* Memory::block_of(const void* address) const {
  auto block = blocks_.upper_bound(reinterpret_cast<uintptr_t>(address));
  if (block == blocks_.begin()) return nullptr;
  --block;
  return reinterpret_cast<uintptr_t>(address) < block->first + block->second.bytes ? &block->second : nullptr;
}

Place Memory::place_of(const void* address) const {
  const Block* block = block_of(address);
  return block ? block->place : Place::pageable;
}

int Memory::device_of(const void* address) const {
  const Block* block = block_of(address);
  return block && block->place == Place::device ? block->device : -1;
}

void Memory::open(bool open) {
  if (dry_) return;
  open_ = open;
  uintptr_t end = start_;
  for (const auto& [at, block] : blocks_)
    if (block.place == Place::device) end = at + rounded(block.bytes);
  if (end > start_) mprotect(reinterpret_cast<void*>(start_), end - start_, open ? PROT_READ | PROT_WRITE : PROT_NONE);
}

}  // namespace fake_cuda
