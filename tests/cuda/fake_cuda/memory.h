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
  bool give(void* memory);  // false for what was not taken
  Place place_of(const void* address) const;
  int device_of(const void* address) const;        // -1 for memory of the host
  size_t allocated() const { return allocated_; }  // bytes on all devices
  size_t allocated(int device) const;
  void open(bool open);  // whether the host can reach the device's

 private:
  struct Block {
    size_t bytes;
    Place place;
    int device;
  };
  const Block* block_of(const void* address) const;  // nullptr for pageable memory
  uintptr_t start_;
  bool dry_;
  size_t allocated_ = 0;
  std::map<int, size_t> limits_;  // by device, of those that have one
  bool open_ = false;
  std::map<uintptr_t, Block> blocks_;
};

}  // namespace fake_cuda
