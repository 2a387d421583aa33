// Some queries of an image with one head, which walk its keys in splits of kPatchSplit, each with a softmax of its own,
// merged in order. So a row's bits depend on its query and on its image alone.
#pragma once

#include "../softmax.h"
#include "heads.h"

namespace trigraph::TRIGRAPH_ISA {

constexpr int64_t kBlockRows = 48;  // queries of a block, whose scores of a split stay in L2
static_assert(kBlockRows % kPatchRows == 0);

// Queries [first, first + count) of an image.
struct PatchBlock {
  int64_t image, first, count;
};

// The softmax of a block's rows over some keys.
struct PatchSoftmax {
  float* values;  // [kBlockRows, value width]: sums of exp(score - largest) * value
  float largest[kBlockRows], sum[kBlockRows];
};

struct PatchWalk {
  const Patches& patches;
  int64_t number;  // of the head
  PackedHead packed;
  float* out;  // [patches, heads * width]

  static int64_t floats(const Patches& patches) {
    return kBlockRows * (patches.width + kPatchSplit + 2 * patches.value_width());
  }

  void run(const PatchBlock& block, float* memory) const {
    const int64_t width = patches.value_width(), keys = patches.length(block.image);
    float *queries = memory, *scores = queries + kBlockRows * patches.width;
    PatchSoftmax total{scores + kBlockRows * kPatchSplit, {}, {}}, next{total.values + kBlockRows * width, {}, {}};
    prepare(block, queries);
    for (int64_t first = 0; first < keys; first += kPatchSplit) {
      walk(block, queries, first / kPatchSplit, scores, first ? next : total);
      if (first) merge(block.count, next, total);
    }
    for (int64_t m = 0; m < block.count; ++m) finish(block, m, total);
  }

 private:
  // The block's queries, turned and scaled: of each kPatchRows rows [width][kPatchRows]; zeros behind the last.
  void prepare(const PatchBlock& block, float* queries) const {
    const float scale = 1.0f / std::sqrt(static_cast<float>(patches.width));
    float turned[PatchAttentionSignature::kMostWidth];
    for (int64_t m = 0; m < round_up(block.count, kPatchRows); ++m) {
      if (m < block.count)
        patches.turn(patches.begin(block.image) + block.first + m, 0, number, scale, turned);
      else
        std::fill(turned, turned + patches.width, 0.0f);
      float* to = queries + m / kPatchRows * kPatchRows * patches.width + m % kPatchRows;
      for (int64_t i = 0; i < patches.width; ++i) to[i * kPatchRows] = turned[i];
    }
  }

  void walk(const PatchBlock& block, const float* queries, int64_t split, float* scores, PatchSoftmax& result) const {
    const int64_t count = std::min(kPatchSplit, patches.length(block.image) - split * kPatchSplit);
    const int64_t width = patches.value_width();
    const float *keys = packed.keys_of(patches, block.image, split),
                *values = packed.values_of(patches, block.image, split);
    for (int64_t p = 0; p < count; p += kPatchColumns)  // a panel stays in L1 while all rows use it
      for (int64_t m = 0; m < block.count; m += kPatchRows)
        multiply_tile<kPatchParts, 1, kPatchRows>(queries + m * patches.width, keys + p * patches.width, patches.width,
                                                  scores + m * kPatchSplit + p, kPatchSplit);
    for (int64_t m = 0; m < block.count; ++m) {
      const Weights weights = exponentiate(scores + m * kPatchSplit, count);
      result.largest[m] = weights.largest;
      result.sum[m] = weights.sum;
    }
    for (int64_t m = 0; m < block.count; m += kPatchRows)
      multiply_panels<kPatchSplit, 1>(scores + m * kPatchSplit, values, count, width, result.values + m * width, width);
  }

  // total = total and, after it, one more split.
  void merge(int64_t rows, const PatchSoftmax& split, PatchSoftmax& total) const {
    const int64_t width = patches.value_width();
    for (int64_t m = 0; m < rows; ++m) {
      const Merge merge(total.largest + m, total.sum + m, split.largest[m], split.sum[m]);
      const Part keep = merge.keep.part[0], take = merge.take.part[0];
      float *values = total.values + m * width, *more = split.values + m * width;
      for (int64_t i = 0; i < width; i += kPartLanes)
        store_part(values + i, fmadd(load_part(values + i), keep, mul(load_part(more + i), take)));
    }
  }

  void finish(const PatchBlock& block, int64_t m, const PatchSoftmax& total) const {
    const Part inverse = splat_part(1.0f / total.sum[m]);
    float* values = total.values + m * patches.value_width();
    for (int64_t i = 0; i < patches.value_width(); i += kPartLanes)
      store_part(values + i, mul(load_part(values + i), inverse));
    const int64_t row = patches.begin(block.image) + block.first + m;
    std::memcpy(out + (row * patches.heads + number) * patches.width, values,
                static_cast<size_t>(patches.width) * sizeof(float));
  }
};

}  // namespace trigraph::TRIGRAPH_ISA
