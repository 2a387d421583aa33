// Weights in the order of blocks/cpu/common/interleaved.h: K types as they are, and IQ2 and IQ3 types as levels.h
// has them.
#include <cstring>
#include <string_view>

#include "../../ort_api.h"
#include "levels.h"

namespace trigraph::TRIGRAPH_ISA {
namespace {

constexpr int64_t kMostRows = 16, kMostBytes = 210;  // of a block of Q6_K

// Bytes that hold four numbers of four bits each.
uint32_t spread(uint32_t x) {
  x = (x | x << 8) & 0x00ff00ff;
  return (x | x << 4) & 0x0f0f0f0f;
}
// Bit i of four as bit 4 * i + 3.
uint32_t sign_bits(uint32_t x) { return (x & 1) << 3 | (x & 2) << 6 | (x & 4) << 9 | (x & 8) << 12; }

// The numbers of the levels of elements 4 * k to 4 * k + 3 of a part, four bits each.
template <class G>
uint32_t four_levels(const uint8_t* p, int part, int k) {
  const int entry = 4 * k / G::kOf;
  const auto index = static_cast<uint16_t>(G::indices(p, part, entry / 4) >> entry % 4 * 16);
  const uint32_t numbers = G::grid()[index];
  if constexpr (G::kOf == 4) return numbers;
  const uint32_t two_bits = numbers >> k % 2 * 8 & 0xff, pairs = (two_bits | two_bits << 4) & 0x0f0f;
  return (pairs | pairs << 2) & 0x3333;
}

template <class G>
void unpack_levels(const uint8_t* p, uint8_t* out) {
  using F = Levels<G>;
  std::memset(out, 0, F::kCodesAt);
  for (int run = 0; run < F::kBlock / F::kRun; ++run)
    out[run / 2] |= static_cast<uint8_t>(G::scale(p, run) / 2 << run % 2 * 4);
  for (int part = 0; part < F::kBlock / 32; ++part) {
    const uint32_t signs = G::signs(p, part);
    uint32_t four[8];
    for (int k = 0; k < 8; ++k) four[k] = four_levels<G>(p, part, k) | sign_bits(signs >> 4 * k);
    for (int k = 0; k < 4; ++k) {
      const uint32_t bytes = spread(four[k]) | spread(four[4 + k]) << 4;
      std::memcpy(out + F::kCodesAt + 16 * part + 4 * k, &bytes, 4);
    }
  }
  std::memcpy(out + F::kDAt, p, 2);
}

struct Repacked {
  std::string_view type;
  int64_t plain_bytes, bytes;                      // of a block
  void (*unpack)(const uint8_t* p, uint8_t* out);  // nullptr: the bytes are the same
};
template <class F>
constexpr Repacked same_bytes() {
  static_assert(F::kBytes <= kMostBytes);
  return {F::kName, F::kBytes, F::kBytes, nullptr};
}
template <class G>
constexpr Repacked as_levels() {
  return {G::kName, G::kBytes, Levels<G>::kBytes, unpack_levels<G>};
}
constexpr Repacked kRepacked[] = {same_bytes<Q4_K>(), same_bytes<Q5_K>(),   same_bytes<Q6_K>(),  as_levels<IQ3_XXS>(),
                                  as_levels<IQ3_S>(), as_levels<IQ2_XXS>(), as_levels<IQ2_XS>(), as_levels<IQ2_S>()};

const Repacked* find(const char* type) {
  for (const Repacked& repacked : kRepacked)
    if (repacked.type == type) return &repacked;
  return nullptr;
}

// The words of `rows` blocks in turn, then the halves that are left.
uint8_t* interleave(const uint8_t* p, int64_t stride, int64_t rows, int64_t bytes, uint8_t* out) {
  constexpr int64_t kWord = 4;
  int64_t at = 0;
  for (; at + kWord <= bytes; at += kWord)
    for (int64_t r = 0; r < rows; ++r, out += kWord) std::memcpy(out, p + r * stride + at, kWord);
  for (int64_t r = 0; r < rows; ++r, out += bytes - at)
    std::memcpy(out, p + r * stride + at, static_cast<size_t>(bytes - at));
  return out;
}

}  // namespace
}  // namespace trigraph::TRIGRAPH_ISA

// Bytes of a plain super-block of a ggml type that can be repacked; 0 for types that stay as they are.
extern "C" TRIGRAPH_EXPORT int64_t trigraph_plain_bytes(const char* type) {
  const auto* repacked = trigraph::TRIGRAPH_ISA::find(type);
  return repacked ? repacked->plain_bytes : 0;
}

// Bytes of a super-block of a ggml type in repacked weights; 0 for types that stay as they are.
extern "C" TRIGRAPH_EXPORT int64_t trigraph_repacked_bytes(const char* type) {
  const auto* repacked = trigraph::TRIGRAPH_ISA::find(type);
  return repacked ? repacked->bytes : 0;
}

// `groups` groups of `rows` plain rows, at most 16, each of `blocks` super-blocks, from `plain` to `out`.
extern "C" TRIGRAPH_EXPORT void trigraph_repack(const char* type, const uint8_t* plain, int64_t groups, int64_t rows,
                                                int64_t blocks, uint8_t* out) {
  using namespace trigraph::TRIGRAPH_ISA;
  const Repacked& to = *find(type);
  const int64_t stride = blocks * to.plain_bytes;
  uint8_t levels[kMostRows * kMostBytes];
  for (int64_t g = 0; g < groups; ++g, plain += rows * stride)
    for (int64_t b = 0; b < blocks; ++b) {
      const uint8_t* p = plain + b * to.plain_bytes;
      if (to.unpack)
        for (int64_t r = 0; r < rows; ++r) to.unpack(p + r * stride, levels + r * to.bytes);
      out = to.unpack ? interleave(levels, to.bytes, rows, to.bytes, out) : interleave(p, stride, rows, to.bytes, out);
    }
}
