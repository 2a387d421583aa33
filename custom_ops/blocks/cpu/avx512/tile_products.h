// Products of a few activation rows, from the plain layout of a GGUF file: AVX-512 with VNNI. A tile is sixteen
// super-blocks, C neighbouring ones (2 or 4) in each of 16 / C weight rows, in four groups of four rows that meet the
// same activations. The lanes of a vector hold parts of a super-block's sum; those of a tile are added up together, one
// to a lane: 4 * (r % 4) + C * (r / 4) + l for super-block l of row r.
#pragma once

#include <algorithm>

#include "../../../scratch.h"
#include "k_tiles.h"

namespace trigraph::TRIGRAPH_ISA {

struct InterleavedCodes;

template <class F, int M, int C>
class TileProduct {
 public:
  TileProduct(const uint8_t* w, int64_t n, int64_t row_bytes, int64_t width, const void* const* x)
      : w_(w), n_(n), row_bytes_(row_bytes), supers_(supers(width)) {
    const int64_t vectors = supers_ * KTile<F>::kVectors;
    auto* codes = static_cast<Ints*>(scratch<InterleavedCodes>(static_cast<size_t>(M * vectors) * sizeof(Ints)));
    for (int i = 0; i < M; ++i, codes += vectors) {
      x_[i] = static_cast<const Int8Super*>(x[i]), codes_[i] = codes;
      for (int64_t s = 0; s < supers_; ++s) KTile<F>::interleave(x_[i][s], codes + s * KTile<F>::kVectors);
    }
  }

  void product(float* const* y) const {
    const bool tiles = C == 4 && kShare % 64 == 0 && supers_ >= 16;
    Ahead ahead{w_, tiles ? row_bytes_ : kShare, tiles ? supers_ : 0};
    if (!tiles) ahead.p += (kRows - 1) * row_bytes_ + kAhead<F>;
    for (int t = 0; tiles && t < kTilesAhead; ++t) {
      for (int i = 0; i < 4 * kLines; ++i) prefetch(ahead.group(i / kLines) + i % kLines * 64);
      ahead.advance();
    }
    for (int64_t j = 0; j < n_; j += kRows) rows(j, &ahead, y);
  }

 private:
  static constexpr int kRows = 16 / C, kVectors = kChains / C, kTilesAhead = 5;
  static constexpr int kShare = 4 * F::kBytes, kLines = (kShare + 63) / 64;  // of a group

  // What comes a while after the tile in use, also that of the next call, a share for each group: tiles of long rows
  // if these are whole lines, or else all bytes as they lie in memory.
  struct Ahead {
    const uint8_t* p;
    int64_t step, supers, s = 0;  // bytes between shares; super-blocks of a row, 0 without tiles
    TRIGRAPH_INLINE const uint8_t* group(int g) const { return p + g * step; }
    TRIGRAPH_INLINE void advance() {
      p += supers ? kShare : 4 * kShare, s += C;
      if (supers && s >= supers) s = 0, p += (kRows - 1) * step;
    }
  };

  TRIGRAPH_INLINE void rows(int64_t j, Ahead* shared, float* const* y) const {
    const uint8_t* row[kRows];
    for (int r = 0; r < kRows; ++r) row[r] = w_ + (j + r < n_ ? j + r : n_ - 1) * row_bytes_;
    Floats chain[kVectors][M];
    for (auto& vector : chain)
      for (Floats& c : vector) c = floats(0);
    Ahead ahead = *shared;
    const int64_t count = supers_;
    for (int64_t s = 0; s < count; s += C) {
      Ints sum[4][M];
      KTile<F> tile;
      groups<0>(&tile, row, s, ahead, sum);
      ahead.advance();
      TRIGRAPH_UNROLL
      for (int i = 0; i < M; ++i) {
        const Int8Super* x = x_[i] + s;
        const Int8Super* const each[4] = {x, x + 1 % C, x + 2 % C, x + 3 % C};
        const Floats scales =
            _mm512_broadcast_f32x4(_mm_setr_ps(each[0]->scale, each[1]->scale, each[2]->scale, each[3]->scale));
        Floats& c = chain[s / C % kVectors][i];
        c = fmadd(scales, tile.value(KTile<F>::total(sum[0][i], sum[1][i], sum[2][i], sum[3][i]), each), c);
      }
    }
    *shared = ahead;
    const auto mask = static_cast<__mmask16>((1 << std::min<int64_t>(n_ - j, kRows)) - 1);
    for (int i = 0; i < M; ++i) _mm512_mask_storeu_ps(y[i] + j, mask, total(&chain[0][i]));
  }

  template <int g>
  TRIGRAPH_INLINE void groups(KTile<F>* tile, const uint8_t* const* row, int64_t s, const Ahead& ahead,
                              Ints (*sum)[M]) const {
    constexpr int l = g % C, kFirst = g / C * 4;
    const uint8_t* p[4];
    TRIGRAPH_UNROLL
    for (int q = 0; q < 4; ++q) p[q] = row[kFirst + q] + s * F::kBytes + l * F::kBytes;
    const auto x = [this, s](int i) TRIGRAPH_INLINE_LAMBDA { return codes_[i] + (s + l) * KTile<F>::kVectors; };
    const auto fetch = [&ahead](int q) TRIGRAPH_INLINE_LAMBDA {
      for (int i = q * kLines / 4; i < (q + 1) * kLines / 4; ++i) prefetch_here(ahead.group(g) + 64 * i);
    };
    tile->template group<M, g>(p, x, fetch, sum[g]);
    if constexpr (g < 3) groups<g + 1>(tile, row, s, ahead, sum);
  }

  // The chains of each row, added up as sum_of does it; rows in order.
  TRIGRAPH_INLINE static Floats total(const Floats* chain) {
    const auto sum = [chain](int k, int l) { return add(chain[k * M], chain[l * M]); };
    Floats all;
    if constexpr (C == 4) all = sum(0, 1), all = add(all, _mm512_permute_ps(all, 0x4e));
    if constexpr (C == 2) all = add(sum(0, 2), sum(1, 3));
    all = add(all, _mm512_permute_ps(all, 0xb1));
    const Ints lane = _mm512_setr_epi32(0, 4, 8, 12, C, C + 4, C + 8, C + 12, 2 * C, 2 * C + 4, 2 * C + 8, 2 * C + 12,
                                        3 * C, 3 * C + 4, 3 * C + 8, 3 * C + 12);
    return _mm512_permutexvar_ps(lane, all);
  }

  const uint8_t* w_;
  int64_t n_, row_bytes_, supers_;
  const Int8Super* x_[M];
  const Ints* codes_[M];
};

// Rows of an even number of super-blocks.
template <class F, int M>
void tile_rows(const uint8_t* w, int64_t n, int64_t row_bytes, int64_t width, const void* const* x, float* const* y) {
  if (supers(width) % 4 == 0)
    TileProduct<F, M, 4>(w, n, row_bytes, width, x).product(y);
  else
    TileProduct<F, M, 2>(w, n, row_bytes, width, x).product(y);
}

}  // namespace trigraph::TRIGRAPH_ISA
