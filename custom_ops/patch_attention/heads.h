// Heads of patches as products read them: queries and keys turned by the patch's place, keys and values in panels.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "../cu_seqlens.h"
#include "../paged_attention/angles.h"
#include "signature.h"
#include "tile.h"

namespace trigraph::TRIGRAPH_ISA {

constexpr int64_t kPatchSplit = 256;  // keys that share one softmax, as in PagedAttention
static_assert(kPatchSplit % kPatchColumns == 0);

// Patches of a call, and where their heads lie in qkv [patches, 3, heads, width].
struct Patches {
  const float* qkv;
  int64_t count, heads, width;
  const float* angles;  // [patches, width]: cosines, then sines, of each pair
  SequenceStarts images;

  // Values of a head are padded to whole parts, keys of an image to whole panels.
  int64_t value_width() const { return round_up(width, kPartLanes); }
  int64_t begin(int64_t image) const { return images.start[image]; }
  int64_t length(int64_t image) const { return images.start[image + 1] - images.start[image]; }
  // The head of the query (0), key (1) or value (2).
  const float* head(int64_t patch, int64_t kind, int64_t number) const {
    return qkv + ((patch * 3 + kind) * heads + number) * width;
  }
  // out = the query or key, turned, times scale.
  void turn(int64_t patch, int64_t kind, int64_t number, float scale, float* TRIGRAPH_RESTRICT out) const {
    const int64_t half = width / 2;
    const float *x = head(patch, kind, number), *cosine = angles + patch * width, *sine = cosine + half;
    for (int64_t i = 0; i < half; ++i) {
      const float a = x[i] * scale, b = x[half + i] * scale;
      out[i] = a * cosine[i] - b * sine[i];
      out[half + i] = b * cosine[i] + a * sine[i];
    }
  }
};

// The angles of patches [first, last), for Patches::angles.
inline void turn_angles(const Tensor& places, const std::vector<double>& frequency, int64_t first, int64_t last,
                        float* angles) {
  const auto quarter = static_cast<int64_t>(frequency.size()), half = 2 * quarter;
  for (int64_t patch = first; patch < last; ++patch)
    for (int64_t axis = 0; axis < 2; ++axis) {
      const auto place = static_cast<double>(places.as<int32_t>()[axis * places.dims[1] + patch]);
      float* out = angles + patch * 2 * half + axis * quarter;
      for (int64_t j = 0; j < quarter; ++j) {
        const Angle a = angle(place * frequency[j]);
        out[j] = static_cast<float>(a.cosine);
        out[half + j] = static_cast<float>(a.sine);
      }
    }
}

// A head's keys and values of all images. Keys: of each image panels [width][kPatchColumns] of consecutive keys.
// Values: of each image splits, and in each panels [keys][kPatchColumns] of columns.
struct PackedHead {
  float *keys, *values;

  static int64_t keys_before(const Patches& patches, int64_t image) {
    return patches.begin(image) + image * (kPatchColumns - 1);  // enough for those that pad the images before
  }
  static int64_t floats(const Patches& patches) {
    const int64_t keys = round_up(keys_before(patches, patches.images.count) * patches.width, 16);
    return keys + round_up(patches.count * patches.value_width(), 16);
  }
  static PackedHead at(const Patches& patches, float* memory) {
    const int64_t keys = round_up(keys_before(patches, patches.images.count) * patches.width, 16);
    return {memory, memory + keys};
  }
  float* keys_of(const Patches& patches, int64_t image, int64_t split) const {
    return keys + (keys_before(patches, image) + split * kPatchSplit) * patches.width;
  }
  float* values_of(const Patches& patches, int64_t image, int64_t split) const {
    return values + (patches.begin(image) + split * kPatchSplit) * patches.value_width();
  }

  // Packs the keys and values of one split of an image.
  void pack(const Patches& patches, int64_t number, int64_t image, int64_t split) const {
    const int64_t first = patches.begin(image) + split * kPatchSplit;
    const int64_t count = std::min(kPatchSplit, patches.length(image) - split * kPatchSplit);
    float turned[PatchAttentionSignature::kMostWidth];
    float* panel = keys_of(patches, image, split);
    for (int64_t p = 0; p < count; p += kPatchColumns, panel += kPatchColumns * patches.width)
      for (int64_t j = 0; j < kPatchColumns; ++j) {
        if (p + j < count)
          patches.turn(first + p + j, 1, number, 1.0f, turned);
        else
          std::fill(turned, turned + patches.width, 0.0f);
        for (int64_t i = 0; i < patches.width; ++i) panel[i * kPatchColumns + j] = turned[i];
      }
    float* to = values_of(patches, image, split);
    for (int64_t column = 0; column < patches.value_width();) {
      int64_t parts = kPatchParts;
      while (column + parts * kPartLanes > patches.value_width()) --parts;
      const int64_t columns = parts * kPartLanes, here = std::min(columns, patches.width - column);
      for (int64_t p = 0; p < count; ++p, to += columns) {
        std::memcpy(to, patches.head(first + p, 2, number) + column, static_cast<size_t>(here) * sizeof(float));
        std::fill(to + here, to + columns, 0.0f);
      }
      column += columns;
    }
  }
};

}  // namespace trigraph::TRIGRAPH_ISA
