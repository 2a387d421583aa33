// Float32 activations. The order of a sum is fixed: chains of eight vectors, which add up in order, then the lanes.
#pragma once

#include "lanes.h"

namespace trigraph::TRIGRAPH_ISA::native {

constexpr int kChain = 8;

inline vf plain_sum(vf chain, vf sum) { return add(chain, sum); }

// One chain with each of M activation rows: sum = chain * scale + sum, or chain + sum without a scale.
template <int M, class Scale>
TRIGRAPH_INLINE void add_chain(const vf* weight, const char* const* row, int64_t at, Scale&& scaled, vf* sum) {
  TRIGRAPH_UNROLL
  for (int i = 0; i < M; ++i) {
    const auto* x = reinterpret_cast<const float*>(row[i] + at);
    vf chain = mul(weight[0], load(x));
    TRIGRAPH_UNROLL
    for (int v = 1; v < kChain; ++v) chain = fmadd(weight[v], load(x + v * VL), chain);
    sum[i] = scaled(chain, sum[i]);
  }
}

// Rows a power of two apart would share sets of the cache.
constexpr int64_t kTilePartBytes = kSuper * 4 + 64;

inline void prepare_tiles(const float* x, int64_t width, void* prepared) {
  each_super(x, width, [prepared](int64_t s, const float* values) {
    std::memcpy(static_cast<char*>(prepared) + s * kTilePartBytes, values, kSuper * 4);
  });
}

// F32, F16 and BF16 weights, converted on their way to the registers.
template <class F>
struct PlainStep {
  struct Block {
    const uint8_t* weight;
    uint8_t padded[kSuper * F::kBytes];
  };
  static constexpr int kBytes = super_bytes<F>;
  static constexpr int64_t kPartBytes = kTilePartBytes;
  static constexpr int64_t kCached = 32;
  static constexpr int kPanel = 0;

  static constexpr int together(int) { return 1; }
  static int64_t header_bytes(int64_t) { return 0; }
  static void prepare(const float* x, int64_t width, void* prepared) { prepare_tiles(x, width, prepared); }

  TRIGRAPH_INLINE static void decode(const uint8_t* row, int64_t width, int64_t super, Block* out) {
    const uint8_t* p = row + super * kSuper * F::kBytes;
    const int64_t left = width - super * kSuper;
    out->weight = p;
    if (left >= kSuper) return;
    std::memset(out->padded, 0, sizeof out->padded);
    std::memcpy(out->padded, p, static_cast<size_t>(left) * F::kBytes);
    out->weight = out->padded;
  }

  template <int N, int M>
  TRIGRAPH_INLINE static void add(const Block* const* block, const char* const* row, int64_t at, int64_t, vf* sum) {
    for (int start = 0; start < kSuper; start += kChain * VL) {
      vf weight[kChain];
      TRIGRAPH_UNROLL
      for (int v = 0; v < kChain; ++v) weight[v] = load_plain<F>(block[0]->weight + (start + v * VL) * F::kBytes);
      add_chain<M>(weight, row, at + start * 4, plain_sum, sum);
    }
  }
};

// Blocks unpacked to float32 in their own order, where there is no lane order.
template <class F>
struct TileStep {
  struct Block {
    alignas(64) float weight[kSuper];
  };
  static constexpr int kBytes = super_bytes<F>;
  static constexpr int64_t kPartBytes = kTilePartBytes;
  static constexpr int64_t kCached = 24;
  static constexpr int kPanel = 3;

  static constexpr int together(int) { return 1; }
  static int64_t header_bytes(int64_t) { return 0; }
  static void prepare(const float* x, int64_t width, void* prepared) { prepare_tiles(x, width, prepared); }

  TRIGRAPH_INLINE static void decode(const uint8_t* row, int64_t width, int64_t super, Block* out) {
    const int64_t left = width - super * kSuper;
    if (left < kSuper) std::memset(out->weight, 0, sizeof out->weight);
    unpack_super<F>(row + super * kSuper / F::kBlock * F::kBytes, static_cast<int>(left < kSuper ? left : kSuper),
                    out->weight);
  }

  template <int N, int M>
  TRIGRAPH_INLINE static void add(const Block* const* block, const char* const* row, int64_t at, int64_t, vf* sum) {
    for (int start = 0; start < kSuper; start += kChain * VL) {
      vf weight[kChain];
      TRIGRAPH_UNROLL
      for (int v = 0; v < kChain; ++v) weight[v] = load(block[0]->weight + start + v * VL);
      add_chain<M>(weight, row, at + start * 4, plain_sum, sum);
    }
  }
};

#if defined(TRIGRAPH_ISA_avx512) || defined(TRIGRAPH_ISA_avx2)
// Codes in lanes become floats a byte at a time; a chain meets the scales of its lanes once.
template <class F>
struct LaneStep {
  using Block = LaneBlock;
  using Layout = typename Lanes<F>::Layout;
  static constexpr int kBytes = super_bytes<F>;
  static constexpr int64_t kPartBytes = (kSuper + kLaneNumbers) * 4;
  static constexpr int64_t kCached = 24;
  static constexpr int kPanel = 3;

  static constexpr int together(int) { return 1; }
  static int64_t header_bytes(int64_t) { return 0; }

  static void prepare(const float* x, int64_t width, void* prepared) {
    each_super(x, width, [prepared](int64_t s, const float* values) {
      auto* out = reinterpret_cast<float*>(static_cast<char*>(prepared) + s * kPartBytes);
      for (int vector = 0; vector < 4 * kGroups; ++vector)
        for (int byte = 0; byte < 4; ++byte)
          for (int lane = 0; lane < VL; ++lane)
            out[(vector * 4 + byte) * VL + lane] = values[Layout::element(vector / 4, vector % 4, lane) + byte];
      if (F::kMin) lane_sums<F>(values, out, out + kSuper);
    });
  }

  TRIGRAPH_INLINE static void decode(const uint8_t* row, int64_t width, int64_t super, Block* out) {
    decode_lanes<F>(row, width, super, out);
  }

  template <int N, int M>
  TRIGRAPH_INLINE static void add(const Block* const* block, const char* const* row, int64_t at, int64_t, vf* sum) {
    constexpr int kChains = kSuper / (kChain * VL);
    TRIGRAPH_UNROLL
    for (int c = 0; c < kChains; ++c) {
      vf weight[kChain];
      expand<F>(*block[0], c, weight);
      const vf scale = chain_scale(*block[0], c);
      add_chain<M>(
          weight, row, at + c * kChain * VL * 4, [scale](vf chain, vf s) { return fmadd(chain, scale, s); }, sum);
    }
    if constexpr (F::kMin) {
      TRIGRAPH_UNROLL
      for (int i = 0; i < M; ++i)
        sum[i] = add_mins<F>(*block[0], reinterpret_cast<const float*>(row[i] + at) + kSuper, sum[i]);
    }
  }
};
template <class F>
using FloatStep = LaneStep<F>;
#else
template <class F>
using FloatStep = TileStep<F>;
#endif

}  // namespace trigraph::TRIGRAPH_ISA::native
