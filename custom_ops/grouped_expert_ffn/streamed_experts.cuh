// Experts of the host whose weights the device takes for one step: with many rows that is faster than the CPU.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <vector>

#include "grouped_products.cuh"

namespace trigraph::TRIGRAPH_ISA {
namespace {

constexpr int64_t kManyTokens = 65;                  // of a step that may do so: more than one that is captured has
constexpr int64_t kStagedBytes = int64_t{64} << 20;  // of weights that are on the device at a time

// Whether a step's weights go to the device: as measured, unless TRIGRAPH_STREAM_EXPERTS is 0 or 1.
class StreamRule {
 public:
  enum class Side { host, device, device_timed };

  static StreamRule& of_machine() {
    static StreamRule rule;
    return rule;
  }
  // `rows`: of an expert, on average. The side that nothing is known of is tried, and each of them now and then.
  Side side(double rows) {
    if (const char* forced = std::getenv("TRIGRAPH_STREAM_EXPERTS")) return *forced == '1' ? Side::device : Side::host;
    const double row = row_, byte = byte_;
    if (!(row > 0)) return Side::host;
    if (!(byte > 0)) return Side::device_timed;
    const bool host = byte >= rows * row, other = ++steps_ % kTrial == 0;
    return host != other ? Side::host : other ? Side::device_timed : Side::device;
  }
  // Seconds that the CPU took for so many bytes times rows, and a copy for so many bytes.
  void host_took(double seconds, double byte_rows) { blend(row_, seconds / byte_rows); }
  void copy_took(double seconds, double bytes) { blend(byte_, seconds / bytes); }

 private:
  static constexpr unsigned kTrial = 64;
  static void blend(std::atomic<double>& known, double found) { known = known > 0 ? (known + found) / 2 : found; }

  std::atomic<double> row_{0}, byte_{0};  // seconds for each byte of an expert; 0: not yet known
  std::atomic<unsigned> steps_{0};
};

// grid: [parts of a row, pairs]. Products of the experts in `table` go from their sorted index to their pair's own.
__global__ void __launch_bounds__(kThreads) collect(const float* products, const int* sorted, const int* used,
                                                    const int64_t* ids, const int* table, int width, float* rows) {
  const int column = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  const int64_t pair = blockIdx.y;
  if (column >= width || !*used || table[ids[pair]] < 0) return;
  rows[pair * width + column] = products[int64_t{sorted[pair]} * width + column];
}

// Copies some experts' weights to the device, and makes the rows of their pairs; again and again, for all of them.
class StreamedExperts {
 public:
  // `whole`: all experts, in the host's memory; `numbers`: those to compute.
  StreamedExperts(const ExpertStacks& whole, const std::vector<int>& numbers, int64_t staged_bytes, const Arena& arena,
                  cudaStream_t stream)
      : whole_(whole),
        numbers_(numbers),
        arena_(arena),
        stream_(stream),
        fused_(whole.up.stride == whole.gate.stride && inside(whole.up.data, whole.gate)) {
    const int64_t bytes = whole.gate.stride + (fused_ ? 0 : whole.up.stride) + whole.down.stride;
    most_ = std::max<int64_t>(1, std::min<int64_t>(staged_bytes / bytes, static_cast<int64_t>(numbers.size())));
  }

  // rows [pairs, width] of the pairs whose expert is among the numbers; `token`: the first one's number.
  void multiply(const TokenRows& tokens, const int64_t* ids, int64_t experts, int64_t token, bool timed, float* rows) {
    const int64_t pairs = tokens.count * tokens.k, width = whole_.width;
    const auto room = [this](const Matrices& matrices) { return arena_.take<uint8_t>(most_ * matrices.stride); };
    const Arena::Memory gate = room(whole_.gate), down = room(whole_.down);
    const Arena::Memory up = arena_.take<uint8_t>(fused_ ? 0 : most_ * whole_.up.stride);
    const Arena::Memory table = arena_.take<int>(experts), plan_memory = arena_.take<int>(Plan::size(pairs, most_));
    const Arena::Memory products = arena_.take<float>(pairs * width);
    const Plan plan(plan_memory.as<int>(), pairs, most_);
    ExpertStacks staged = whole_;
    staged.experts = most_;
    staged.gate.data = gate.as<uint8_t>(), staged.down.data = down.as<uint8_t>();
    staged.up.data = fused_ ? staged.gate.data + (whole_.up.data - whole_.gate.data) : up.as<uint8_t>();
    for (size_t first = 0; first < numbers_.size(); first += static_cast<size_t>(most_)) {
      const size_t count = std::min(static_cast<size_t>(most_), numbers_.size() - first);
      copy(first, count, staged, timed && !first);
      std::vector<int> slots(static_cast<size_t>(experts), -1);
      for (size_t i = 0; i < count; ++i) slots[static_cast<size_t>(numbers_[first + i])] = static_cast<int>(i);
      to_device(table.as<int>(), slots.data(), slots.size() * sizeof(int));
      launch(bucket, 1, kBucketThreads, 0, stream_, ids, pairs, tokens.k, experts, table.as<int>(), token, plan,
             error_record());
      TRIGRAPH_ISA::multiply(staged, tokens, plan, products.as<float>(), arena_, stream_);
      launch(collect, dim3(blocks_of(width, kThreads), static_cast<unsigned>(pairs)), kThreads, 0, stream_,
             products.as<float>(), plan.sorted, plan.used, ids, table.as<int>(), static_cast<int>(width), rows);
    }
  }

 private:
  static bool inside(const uint8_t* data, const Matrices& matrices) {
    return data >= matrices.data && data < matrices.data + matrices.stride;
  }
  void copy(size_t first, size_t count, const ExpertStacks& staged, bool timed) const {
    if (timed) check(cudaStreamSynchronize(stream_), "what is before a copy");
    const auto start = std::chrono::steady_clock::now();
    copy(first, count, whole_.gate, staged.gate);
    if (!fused_) copy(first, count, whole_.up, staged.up);
    copy(first, count, whole_.down, staged.down);
    if (!timed) return;
    check(cudaStreamSynchronize(stream_), "a copy");
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    const int64_t bytes = whole_.gate.stride + (fused_ ? 0 : whole_.up.stride) + whole_.down.stride;
    StreamRule::of_machine().copy_took(taken.count(), static_cast<double>(bytes) * static_cast<double>(count));
  }
  // Neighbours in one copy.
  void copy(size_t first, size_t count, const Matrices& whole, const Matrices& staged) const {
    for (size_t i = 0, end; i < count; i = end) {
      const int number = numbers_[first + i];
      for (end = i + 1; end < count && numbers_[first + end] == number + static_cast<int>(end - i);) ++end;
      to_device(const_cast<uint8_t*>(staged.data) + static_cast<int64_t>(i) * staged.stride,
                whole.data + number * whole.stride, (end - i) * static_cast<size_t>(whole.stride));
    }
  }
  // The host's memory has been read when this returns, as none of it is pinned.
  void to_device(void* to, const void* from, size_t bytes) const {
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_), "weights of experts");
  }

  const ExpertStacks whole_;
  const std::vector<int>& numbers_;
  const Arena& arena_;
  cudaStream_t stream_;
  bool fused_;  // gate holds gate|up
  int64_t most_;
};

}  // namespace
}  // namespace trigraph::TRIGRAPH_ISA
