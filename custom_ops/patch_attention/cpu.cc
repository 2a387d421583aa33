// PatchAttention: every patch of an image attends to all of its patches.
//
// Keys and values are packed once for each image and head; then blocks of queries walk them. Memory grows with the
// patches, not with their square.
#include "block.h"
#include "progress.h"

namespace trigraph::TRIGRAPH_ISA {
namespace {

constexpr int64_t kPackedFloats = int64_t{1} << 24;  // 64 MiB of heads that are packed at a time, or one head
constexpr int64_t kAngleRows = 64;

// Rows of all images in blocks of at most `most`.
std::vector<PatchBlock> blocks_of(const Patches& patches, int64_t most) {
  std::vector<PatchBlock> all;
  for (int64_t image = 0; image < patches.images.count; ++image)
    for (int64_t i = 0; i < patches.length(image); i += most)
      all.push_back({image, i, std::min(most, patches.length(image) - i)});
  return all;
}

// As many heads at a time as fit the memory for packed ones: all are packed, then all blocks walk them.
void attend(const Context& context, const Patches& patches, float* out) {
  struct Packed;
  const std::vector<PatchBlock> blocks = blocks_of(patches, kBlockRows), splits = blocks_of(patches, kPatchSplit);
  const auto block_count = static_cast<int64_t>(blocks.size()), split_count = static_cast<int64_t>(splits.size());
  const int64_t floats = PackedHead::floats(patches);
  const int64_t most = std::clamp<int64_t>(kPackedFloats / floats, 1, patches.heads);
  auto* memory = static_cast<float*>(scratch<Packed>(static_cast<size_t>(most * floats) * sizeof(float)));
  for (int64_t first = 0; first < patches.heads; first += most) {
    const int64_t heads = std::min(most, patches.heads - first);
    const auto packed = [&](int64_t i) { return PackedHead::at(patches, memory + i * floats); };
    context.parallel_for(heads * split_count, [&](int64_t task) {
      const PatchBlock& split = splits[task % split_count];
      packed(task / split_count).pack(patches, first + task / split_count, split.image, split.first / kPatchSplit);
    });
    context.parallel_for(heads * block_count, [&](int64_t task) {
      struct Memory;
      auto* own = static_cast<float*>(scratch<Memory>(static_cast<size_t>(PatchWalk::floats(patches)) * sizeof(float)));
      const int64_t head = task / block_count;
      PatchWalk{patches, first + head, packed(head), out}.run(blocks[task % block_count], own);
    });
  }
}

struct PatchAttention : PatchAttentionSignature {
  using PatchAttentionSignature::PatchAttentionSignature;

  void compute(const Context& context) const {
    const Tensor qkv = context.input(0), places = context.input(1);
    const int64_t width = check(qkv, places), count = qkv.dims[0];
    const SequenceStarts images(context.input(2), count);
    for (int64_t i = 0; i < 2 * count; ++i)
      if (const int32_t place = places.as<int32_t>()[i]; place < 0)
        fail("input places[%lld][%lld] is %d, below 0", static_cast<long long>(i / count),
             static_cast<long long>(i % count), place);
    const Tensor y = context.output(0, {count, heads * width});
    if (!count) return;
    std::vector<double> frequencies;
    for (int64_t j = 0; j < width / 4; ++j)
      frequencies.push_back(frequency(exact_log(theta), j, width / 2, {1, 0, 0, 1}));
    struct Angles;
    auto* angles = static_cast<float*>(scratch<Angles>(static_cast<size_t>(count * width) * sizeof(float)));
    context.parallel_for((count + kAngleRows - 1) / kAngleRows, [&](int64_t i) {
      turn_angles(places, frequencies, i * kAngleRows, std::min(count, (i + 1) * kAngleRows), angles);
    });
    attend(context, {qkv.as<float>(), count, heads, width, angles, images}, y.as<float>());
    ++patch_attentions;
  }
};

}  // namespace

const OrtCustomOp* patch_attention() {
  static const Op<PatchAttention> op;
  return &op;
}

}  // namespace trigraph::TRIGRAPH_ISA
