#include <cstring>

#include "../../../custom_ops/cuda/platform.cuh"
#include "data.h"

namespace gpu_kernels {
namespace {

uint64_t hashed(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

// Blocks of random codes; their scales are about 0.01, so that all products are finite.
void fill_blocks(const std::string& type, uint64_t seed, std::vector<char>& bytes) {
  for (size_t i = 0; i + 8 <= bytes.size(); i += 8) {
    const uint64_t word = hashed(seed + i);
    std::memcpy(&bytes[i], &word, 8);
  }
  const size_t block = type == "Q8_0" ? 34 : type == "Q4_K" ? 144 : type == "Q5_K" ? 176 : 210;
  const uint16_t scale = 0x211f;
  for (size_t at = 0; at < bytes.size(); at += block) {
    if (type == "Q6_K") {
      std::memcpy(&bytes[at + 208], &scale, 2);
      continue;
    }
    std::memcpy(&bytes[at], &scale, 2);
    if (type != "Q8_0") std::memcpy(&bytes[at + 2], &scale, 2);
  }
}

// Rows of int8 in both forms, of which `first` is the number of the first one: super-blocks of 256 codes with the sums
// of 16, and the scales of 32.
void fill_prepared(uint64_t seed, uint64_t first, size_t row, std::vector<char>& bytes) {
  constexpr size_t kCodes = 256, kGroup = 16, kScales = kCodes + 2 * kCodes / kGroup, kStride = kScales + kCodes / 8;
  const size_t supers = row / kStride;
  const float scale = 0.01f;
  for (size_t at = 0; at < bytes.size(); at += row)
    for (size_t super = 0; super < supers; ++super) {
      char* codes = &bytes[at + super * kStride];
      for (size_t i = 0; i < kCodes; i += kGroup) {
        int16_t sum = 0;
        for (size_t k = i; k < i + kGroup; ++k) {
          codes[k] =
              static_cast<char>(static_cast<int>(hashed(seed + first * row + at + super * kCodes + k) % 255) - 127);
          sum = static_cast<int16_t>(sum + static_cast<signed char>(codes[k]));
        }
        std::memcpy(codes + kCodes + i / kGroup * sizeof sum, &sum, sizeof sum);
      }
      for (size_t i = kScales; i < kStride; i += sizeof scale) std::memcpy(codes + i, &scale, sizeof scale);
    }
}

double value_at(const Input& input, uint64_t seed, int64_t index, const Call& call) {
  const double random = static_cast<double>(hashed(seed + static_cast<uint64_t>(index)) >> 11) * 0x1p-53;
  switch (input.fill) {
    case Fill::positive:
      return 0.5 + random;
    case Fill::negative:
      return -0.5 - random;
    case Fill::ids:
      return static_cast<double>(hashed(seed + static_cast<uint64_t>(index)) % static_cast<uint64_t>(input.number));
    case Fill::number:
      return input.number;
    case Fill::starts:
      return static_cast<double>((index - call.first_sequence()) * call.own_tokens());
    case Fill::past:
      return input.number - static_cast<double>(call.tokens - call.first % call.tokens);
    case Fill::accepted:
      return call.first % call.tokens && call.tokens <= input.number ? 1 : 0;
    case Fill::groups: {
      const int64_t number = index % input.dims[1], apart = static_cast<int64_t>(input.number);
      return static_cast<double>(number * apart + static_cast<int64_t>(random * static_cast<double>(apart)));
    }
    case Fill::slot:
    case Fill::pages:
      return static_cast<double>(index);
    default:
      return 2 * random - 1;
  }
}

void store(DType type, double value, char* to) {
  const auto put = [&](auto x) { std::memcpy(to, &x, sizeof x); };
  switch (type) {
    case DType::i64:
      return put(static_cast<int64_t>(value));
    case DType::i32:
      return put(static_cast<int32_t>(value));
    case DType::f16:  // 0.5 to 1, with a sign: nothing needs other ones
      return put(static_cast<uint16_t>((value < 0 ? 0xb800 : 0x3800) | (static_cast<int>(value * 1e6) & 0x3ff)));
    default:
      return put(static_cast<float>(value));
  }
}

}  // namespace

void* Memory::reserve(size_t bytes) {
  void* memory = nullptr;
  trigraph::cuda::check(cudaMalloc(&memory, bytes ? bytes : 1), "device memory");
  all_.push_back(memory);
  return memory;
}
Memory::~Memory() {
  for (void* memory : all_) (void)cudaFree(memory);
}

void wait(void* stream) {
  trigraph::cuda::check(cudaStreamSynchronize(static_cast<cudaStream_t>(stream)), "the end of the work");
}

void copy(void* to, const void* from, size_t bytes, void* stream) {
  trigraph::cuda::check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, static_cast<cudaStream_t>(stream)),
                        "a copy");
}

std::vector<char> read(const Value& value, void* stream) {
  std::vector<char> bytes(value.bytes());
  copy(bytes.data(), value.data, bytes.size(), stream);
  wait(stream);
  return bytes;
}

Value make_value(const Input& input, uint64_t seed, const Call& call, Memory& memory, void* stream) {
  Value value{input.type, input.dims, nullptr};
  int64_t first = 0;
  if (value.dims[0] == -1) value.dims[0] = call.rows, first = call.first;
  if (value.dims[0] == -2)
    value.dims[0] = call.sequences() + (input.fill == Fill::starts), first = call.first_sequence();
  std::vector<char> bytes(value.bytes());
  if (input.fill == Fill::blocks) {
    fill_blocks(input.text, seed, bytes);
  } else if (input.fill == Fill::prepared) {
    fill_prepared(seed, static_cast<uint64_t>(first), static_cast<size_t>(value.dims[1]), bytes);
  } else {
    const auto size = static_cast<int64_t>(bytes_of(input.type)), count = static_cast<int64_t>(bytes.size()) / size;
    first *= count / value.dims[0];
    for (int64_t i = 0; i < count; ++i)
      store(input.type, value_at(input, seed, first + i, call), &bytes[static_cast<size_t>(i * size)]);
  }
  // compute-sanitizer takes an asynchronous copy of a weight's last few bytes for one of 16: zeros follow them.
  if (input.fill == Fill::blocks) bytes.resize((bytes.size() + 15) / 16 * 16);
  value.data = memory.reserve(bytes.size());
  copy(value.data, bytes.data(), bytes.size(), stream);
  wait(stream);
  return value;
}

}  // namespace gpu_kernels
