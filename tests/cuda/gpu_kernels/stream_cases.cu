// The operators of residual streams and of the indexer, at a model's width.
#include "cases.h"

namespace gpu_kernels {
namespace {

constexpr DType f32 = DType::f32, f16 = DType::f16, i32 = DType::i32;
constexpr int64_t kStreams = 4, kHeads = 4, kWidth = 128;  // heads and width of index keys
constexpr int64_t kGroup = 4;                              // positions
constexpr int64_t kUnsure = 32;                            // groups at a text's end that no list names

// Groups that a row sees: an eighth of its text's.
int64_t top_of(const Model& m) { return m.context / kGroup / 8; }

Attributes with_group(Attributes attributes) {
  attributes.insert({"group", static_cast<double>(kGroup)});
  return attributes;
}

// An index, and where its sequences lie.
std::vector<Input> index(const Model& m, int64_t sequences) {
  std::vector<Input> found = cache(m, sequences);
  found.erase(found.begin());
  found[0].dims = {found[0].dims[0], found[0].dims[1], kWidth};
  return found;
}

Case index_keys(const Model& m, int64_t sequences) {
  std::vector<Input> inputs{{f32, {-1, kWidth}, Fill::normal}, {f32, {kWidth}, Fill::positive}};
  for (const Input& input : index(m, sequences)) inputs.push_back(input);
  return {"index keys", "PagedIndexWrite", with_group(rotary()), inputs, {{f16, {}, 2}}, 0};
}

Case selection(const Model& m, int64_t sequences) {
  std::vector<Input> inputs{{f32, {-1, kHeads * kWidth}, Fill::normal}, {f32, {kWidth}, Fill::positive}};
  for (const Input& input : index(m, sequences)) inputs.push_back(input);
  Attributes attributes = with_group(rotary());
  attributes.insert({"top", static_cast<double>(top_of(m))});
  const int64_t elements = m.context / kGroup * kWidth;
  const double keys = 2.0 * static_cast<double>(elements);
  return {"selection", "PagedSelect", attributes, inputs, {{i32, {-1, top_of(m)}}}, keys, keys};
}

Case selected_attention(const Model& m, int64_t sequences) {
  Case made = attention(m, sequences);
  made.name = "attention over lists";
  made.attributes = with_group(made.attributes);
  const int64_t apart = (m.context / kGroup - kUnsure) / top_of(m);
  made.inputs.push_back({i32, {}, Fill::number});
  made.inputs.push_back({i32, {-1, top_of(m)}, Fill::groups, static_cast<double>(apart)});
  made.bytes = made.bytes_of_sequence = made.bytes / 8;
  return made;
}

Case stream_norm(const Model& m) {
  const Input x{f32, {-1, kStreams * m.hidden}, Fill::normal};
  return {"norm of streams",
          "StreamNorm",
          {{"streams", static_cast<double>(kStreams)}, {"eps", 1e-6}},
          {x,
           {f32, {kStreams * m.hidden}, Fill::positive},
           {f32, {-1, m.hidden}, Fill::normal},
           {f32, {-1, kStreams}, Fill::normal}},
          {{f32, {-1, kStreams * m.hidden}}, {f32, {-1, kStreams * m.hidden}}},
          0};
}

Case stream_mean(const Model& m) {
  const Input x{f32, {-1, kStreams * m.hidden}, Fill::normal};
  return {"mean of streams",
          "StreamMean",
          {{"streams", static_cast<double>(kStreams)}},
          {x, x},
          {{f32, {-1, m.hidden}}},
          0};
}

}  // namespace

void add_stream_cases(const Model& m, int64_t sequences, std::vector<Case>& all) {
  for (const Case& made : {index_keys(m, sequences), selection(m, sequences), selected_attention(m, sequences),
                           stream_norm(m), stream_mean(m)})
    all.push_back(made);
}

}  // namespace gpu_kernels
