// Who has which memory of the device, and pinned memory of the host.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

namespace fake_cuda {

constexpr size_t kDeviceBytes = size_t{128} << 30;

enum class Place { pageable, pinned, device };

class Memory {
 public:
  // `dry`: memory is counted and never touched.
  explicit Memory(bool dry);
  void* take(size_t bytes, Place place, int device);  // filled with NaN; nullptr when the device is full
  void limit(int device, size_t bytes) { limits_[device] = bytes; }
  size_t left(int device) const;
  bool give(void* memory);               // false for what was not taken
  bool pin(void* memory, size_t bytes);  // registers pageable memory; false for pages of which some are
  bool unpin(void* memory);
  Place place_of(const void* address) const;
  int device_of(const void* address) const;        // -1 for memory of the host
  size_t allocated() const { return allocated_; }  // bytes on all devices
  size_t allocated(int device) const;
  size_t pinned() const { return pinned_; }  // bytes that were taken, not registered
  size_t most() const { return most_; }      // bytes on all devices at any time, since the last call of `forget_most`
  void forget_most() { most_ = allocated_; }
  void open(bool open);  // whether the host can reach the device's

 private:
  struct Block {
    size_t bytes;
    Place place;
    int device;
    bool registered = false;
  };
  const Block* block_of(const void* address) const;  // nullptr for pageable memory
  uintptr_t start_;
  bool dry_;
  size_t allocated_ = 0, most_ = 0, pinned_ = 0;
  std::map<int, size_t> limits_;  // by device, of those that have one
  bool open_ = false;
  std::map<uintptr_t, Block> blocks_;
};

}  // namespace fake_cuda
