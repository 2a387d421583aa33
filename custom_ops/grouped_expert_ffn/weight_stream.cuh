// Weights on their way from the host's memory to the device, ahead of the products that read them.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "../cuda/shared_memory.cuh"
#include "host_experts.h"

namespace trigraph::TRIGRAPH_ISA {

inline const HostExperts* host = nullptr;  // the CPU library's

namespace {

// What is copied to a buffer of the device at a time.
struct WeightBatch {
  std::vector<HostPiece> pieces;  // in the order of their places
  int64_t bytes = 0;              // of the buffer
  int64_t most = 0;               // bytes of any batch of the layer
};

class Event {
 public:
  Event() { check(cudaEventCreate(&event_), "an event"); }
  Event(const Event&) = delete;
  ~Event() { (void)cudaEventDestroy(event_); }
  void record(cudaStream_t stream) { check(cudaEventRecord(event_, stream), "an event"); }
  void hold(cudaStream_t stream) { check(cudaStreamWaitEvent(stream, event_, 0), "a wait for an event"); }
  void wait() { check(cudaEventSynchronize(event_), "what is before an event"); }

 private:
  cudaEvent_t event_ = nullptr;
};

// A stream of copies into three buffers in turns: a copy waits for the products that read its buffer last, and for
// nothing else, so copies run ahead through the layers. It reads registered memory where that lies. What else there is
// goes through a ring of pinned pieces, which the CPU's threads fill while others are copied.
//
// One for the nodes that compute on a stream, one at a time. The last of them frees its memory.
class WeightStream {
 public:
  static std::shared_ptr<WeightStream> of(cudaStream_t products) {
    static std::mutex lock;
    static auto* all = new std::map<cudaStream_t, std::weak_ptr<WeightStream>>;
    const std::lock_guard<std::mutex> guard(lock);
    std::weak_ptr<WeightStream>& known = (*all)[products];
    std::shared_ptr<WeightStream> found = known.lock();
    if (!found) known = found = std::make_shared<WeightStream>(products);
    return found;
  }
  explicit WeightStream(cudaStream_t products) : products_(products) {
    check(cudaStreamCreateWithFlags(&copies_, cudaStreamNonBlocking), "a stream");
  }
  WeightStream(const WeightStream&) = delete;
  ~WeightStream() {
    release();
    (void)cudaStreamDestroy(copies_);
  }

  // Enqueues the copies of a batch; what is enqueued on the products' stream from now on finds it at the address.
  // `layer`: whose threads fill pinned pieces.
  const uint8_t* send(const WeightBatch& batch, void* layer) {
    require(batch.most);
    last_ = (last_ + 1) % kBuffers;
    Buffer& buffer = buffers_[last_];
    buffer.read.hold(copies_);
    if (registered(batch))
      for (const HostPiece& piece : batch.pieces) copy(buffer.memory + piece.at, piece.from, piece.bytes);
    else
      copy_by_ring(batch, layer, buffer.memory);
    buffer.filled.record(copies_);
    buffer.filled.hold(products_);
    return buffer.memory;
  }
  // What reads the last batch is enqueued.
  void sent_is_read() { buffers_[last_].read.record(products_); }

  // Whether it takes less time to copy experts like these than to have the CPU compute `rows` of each. Both are
  // measured when somebody asks for the first time.
  bool pays(const WeightBatch& batch, void* layer, double rows) {
    if (byte_seconds_ == 0) {
      for (int i = 0; i < 2; ++i) byte_seconds_ = seconds_of(batch, layer) / static_cast<double>(batch.bytes);  // warm
      row_seconds_ = host->row_seconds(layer);
    }
    return byte_seconds_ < rows * row_seconds_;
  }

 private:
  static constexpr int kBuffers = 3, kPieces = 4;
  static constexpr int64_t kPieceBytes = int64_t{64} << 20;

  struct Buffer {
    uint8_t* memory = nullptr;
    Event filled, read;
  };
  struct Piece {
    std::unique_ptr<SharedMemory> memory;
    Event copied;
  };

  // Buffers of so many bytes each.
  void require(int64_t bytes) {
    if (bytes <= bytes_) return;
    release();
    const BesideCaptures beside;
    for (Buffer& buffer : buffers_) {
      if (cudaMalloc(reinterpret_cast<void**>(&buffer.memory), static_cast<size_t>(bytes)) == cudaSuccess) continue;
      buffer.memory = nullptr;
      (void)cudaGetLastError();  // whoever launches next would take it for its own
      release();
      fail("the device has no %lld bytes of memory left", static_cast<long long>(bytes));
    }
    bytes_ = bytes;
  }
  void release() {
    (void)cudaStreamSynchronize(copies_);
    (void)cudaStreamSynchronize(products_);
    const BesideCaptures beside;
    for (Buffer& buffer : buffers_) (void)cudaFree(buffer.memory), buffer.memory = nullptr;
    for (Piece& piece : pieces_) piece.memory.reset();
    bytes_ = 0;
  }

  static bool registered(const void* at) {
    cudaPointerAttributes found{};
    return cudaPointerGetAttributes(&found, at) == cudaSuccess && found.type == cudaMemoryTypeHost;
  }
  static bool registered(const WeightBatch& batch) {
    const auto whole = [](const HostPiece& piece) {
      return registered(piece.from) && registered(piece.from + piece.bytes - 1);
    };
    return std::all_of(batch.pieces.begin(), batch.pieces.end(), whole);
  }
  void copy(uint8_t* to, const void* from, int64_t bytes) {
    check(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault, copies_), "weights of experts");
  }
  void copy_by_ring(const WeightBatch& batch, void* layer, uint8_t* to) {
    const int64_t room = std::min(kPieceBytes, bytes_);
    for (int64_t start = 0; start < batch.bytes; start += room) {
      Piece& piece = pieces_[turn_++ % kPieces];
      if (!piece.memory) piece.memory = std::make_unique<SharedMemory>(static_cast<size_t>(room));
      piece.copied.wait();
      const int64_t bytes = std::min(room, batch.bytes - start);
      const HostGather wanted{batch.pieces.data(), batch.pieces.size(), start, bytes, piece.memory->start()};
      if (!host->gather(layer, wanted)) fail("the host has no memory left for weights on their way");
      copy(to + start, piece.memory->start(), bytes);
      piece.copied.record(copies_);
    }
  }
  double seconds_of(const WeightBatch& batch, void* layer) {
    check(cudaStreamSynchronize(copies_), "what is before a copy");
    const auto start = std::chrono::steady_clock::now();
    send(batch, layer);
    check(cudaStreamSynchronize(copies_), "a copy");
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }

  cudaStream_t products_, copies_ = nullptr;
  Buffer buffers_[kBuffers];
  Piece pieces_[kPieces];
  int64_t bytes_ = 0;  // of a buffer
  int last_ = 0;
  unsigned turn_ = 0;
  double byte_seconds_ = 0, row_seconds_ = 0;  // of a copy; of a row that the CPU computes, for each byte of its expert
};

}  // namespace
}  // namespace trigraph::TRIGRAPH_ISA
