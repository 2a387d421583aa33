#include <cmath>

#include "cases.h"

namespace gpu_kernels {
namespace {

constexpr DType f32 = DType::f32, f16 = DType::f16, u8 = DType::u8, i32 = DType::i32, i64 = DType::i64;
constexpr int64_t kPage = 256;

// Bytes of a row of `width` weights.
int64_t row_bytes(const std::string& type, int64_t width) {
  if (type == "F32") return 4 * width;
  if (type == "Q8_0") return width / 32 * 34;
  return width / 256 * (type == "Q4_K" ? 144 : type == "Q5_K" ? 176 : 210);
}

}  // namespace

Input weight(const std::string& type, int64_t rows, int64_t width, int64_t experts) {
  Input input{type == "F32" ? f32 : u8, {rows, type == "F32" ? width : row_bytes(type, width)}, Fill::blocks, 0, type};
  if (type == "F32") input.fill = Fill::normal;
  if (experts) input.dims.insert(input.dims.begin(), experts);
  return input;
}

Case products(const std::string& name, int64_t width, const std::vector<Matrix>& matrices) {
  Case made{name, "BlockMatMul", {{"activations", "int8"}}, {{f32, {-1, width}, Fill::normal}}, {}, 0};
  std::string types;
  for (const Matrix& m : matrices) {
    types += (types.empty() ? "" : ",") + std::string(m.type);
    made.inputs.push_back(weight(m.type, m.rows, width));
    made.outputs.push_back({f32, {-1, m.rows}});
    made.bytes += static_cast<double>(m.rows * row_bytes(m.type, width));
  }
  made.attributes.insert({"types", types});
  return made;
}

namespace {

Case norm(const Model& m) {
  const Input x{f32, {-1, m.hidden}, Fill::normal};
  return {"norm",
          "RMSNorm",
          {{"eps", 1e-6}},
          {x, {f32, {m.hidden}, Fill::positive}, x},
          {{f32, {-1, m.hidden}}, {f32, {-1, m.hidden}}},
          0};
}

Case delta_rule(const Model& m, int64_t sequences) {
  const int64_t channels = (2 * m.k_heads + m.v_heads) * m.dim, values = m.v_heads * m.dim;
  const double state = 8.0 * m.v_heads * m.dim * m.dim;  // read once, written once
  return {"delta rule",
          "GatedDeltaNet",
          {{"k_heads", static_cast<double>(m.k_heads)}, {"eps", 1e-6}, {"tiled", 1}, {"commit", 0}},
          {{f32, {-1, channels}, Fill::normal},
           {f32, {-1, values}, Fill::normal},
           {f32, {-1, m.v_heads}, Fill::normal},
           {f32, {-1, m.v_heads}, Fill::normal},
           {f32, {channels, 4}, Fill::normal},
           {f32, {m.v_heads}, Fill::normal},
           {f32, {m.v_heads}, Fill::negative},
           {f32, {m.dim}, Fill::positive},
           {f32, {sequences, m.v_heads, m.dim, m.dim}, Fill::normal},
           {f32, {sequences, 3 + kPending, channels}, Fill::normal},
           {f32, {sequences, kPending, 2 * m.v_heads}, Fill::number, 0.25},
           {i32, {-2}, Fill::starts},
           {i32, {-2}, Fill::past, 8192},
           {i32, {-2}, Fill::accepted, kPending},
           {i32, {-2}, Fill::slot},
           {i32, {-2}, Fill::slot}},
          {{f32, {-1, values}}, {f32, {}, 8}, {f32, {}, 9}, {f32, {}, 10}},
          state,
          state};
}

}  // namespace

std::vector<Input> cache(const Model& m, int64_t sequences) {
  const int64_t pages = m.context / kPage;
  const Input entries{f16, {sequences * pages, kPage, m.kv_heads, m.head_dim}, Fill::normal};
  return {entries,
          entries,
          {i32, {-2}, Fill::starts},
          {i32, {-2}, Fill::past, static_cast<double>(m.context)},
          {i32, {-2, pages}, Fill::pages}};
}

Attributes rotary() { return {{"rope_dims", 64}, {"rope_theta", 1e7}, {"eps", 1e-6}}; }

Case attention(const Model& m, int64_t sequences) {
  std::vector<Input> inputs{{f32, {-1, 2 * m.heads * m.head_dim}, Fill::normal}, {f32, {m.head_dim}, Fill::positive}};
  for (const Input& input : cache(m, sequences)) inputs.push_back(input);
  const double entries = 4.0 * m.context * m.kv_heads * m.head_dim;
  return {"attention", "PagedAttention", rotary(), inputs, {{f32, {-1, m.heads * m.head_dim}}}, entries, entries};
}

Case entries(const Model& m, int64_t sequences) {
  const int64_t width = m.kv_heads * m.head_dim;
  std::vector<Input> inputs{
      {f32, {-1, width}, Fill::normal}, {f32, {-1, width}, Fill::normal}, {f32, {m.head_dim}, Fill::positive}};
  for (const Input& input : cache(m, sequences)) inputs.push_back(input);
  return {"entries", "PagedKVWrite", rotary(), inputs, {{f16, {}, 3}, {f16, {}, 4}}, 0};
}

Case experts(const Model& m) {
  const auto used = static_cast<double>(m.used);
  const double bytes =
      used * static_cast<double>(2 * m.ffn * row_bytes("Q4_K", m.hidden) + m.hidden * row_bytes("Q6_K", m.ffn));
  return {"experts",
          "GroupedExpertFFN",
          {{"gate_type", "Q4_K"}, {"up_type", "Q4_K"}, {"down_type", "Q6_K"}, {"activations", "int8"}},
          {{f32, {-1, m.hidden}, Fill::normal},
           {i64, {-1, m.used}, Fill::ids, static_cast<double>(m.experts)},
           {f32, {-1, m.used}, Fill::positive},
           weight("Q4_K", m.ffn, m.hidden, m.experts),
           weight("Q6_K", m.hidden, m.ffn, m.experts),
           weight("Q4_K", m.ffn, m.hidden, m.experts),
           {f32, {-1, m.hidden}, Fill::normal},
           {f32, {-1, 1}, Fill::normal}},
          {{f32, {-1, m.hidden}}},
          bytes,
          0,
          bytes * static_cast<double>(m.experts) / used};
}

namespace {

Case gated(const Model& m) {
  return {"down",
          "GatedBlockMatMul",
          {{"type", "Q6_K"}, {"activations", "int8"}},
          {{f32, {-1, m.ffn}, Fill::normal}, {f32, {-1, m.ffn}, Fill::normal}, weight("Q6_K", m.hidden, m.ffn)},
          {{f32, {-1, m.hidden}}},
          static_cast<double>(m.hidden * row_bytes("Q6_K", m.ffn))};
}

}  // namespace

double bytes_moved(const Case& of, int64_t rows, int64_t sequences) {
  if (of.most_bytes > 0)  // what is picked at random, by some row
    return of.most_bytes * (1 - std::pow(1 - of.bytes / of.most_bytes, static_cast<double>(rows)));
  return of.bytes + static_cast<double>(sequences - 1) * of.bytes_of_sequence;
}

std::vector<Matrix> delta_rule_matrices(const Model& m) {
  const int64_t channels = (2 * m.k_heads + m.v_heads) * m.dim;
  return {{"Q4_K", channels}, {"Q4_K", m.v_heads * m.dim}, {"Q8_0", m.v_heads}, {"Q8_0", m.v_heads}};
}

std::vector<Matrix> attention_matrices(const Model& m) {
  const int64_t kv = m.kv_heads * m.head_dim;
  return {{"Q4_K", 2 * m.heads * m.head_dim}, {"Q4_K", kv}, {"Q6_K", kv}};
}

// Of a mixture of experts: the router, and the shared expert's gate and projections.
std::vector<Matrix> ffn_matrices(const Model& m) {
  if (!m.experts) return {{"Q4_K", m.ffn}, {"Q4_K", m.ffn}};
  return {{"F32", m.experts}, {"F32", 1}, {"Q8_0", m.ffn}, {"Q8_0", m.ffn}};
}

const std::vector<Model>& models() {
  static const std::vector<Model> all{{"small", 256, 512, 4, 1, 64, 2, 4, 64, 256, 8, 2, 512},
                                      {"odd", 768, 1003, 8, 2, 160, 8, 16, 48, 768, 21, 5, 512},
                                      {"qwen3.6-35b-a3b", 2048, 248320, 16, 2, 256, 16, 32, 128, 512, 256, 8, 4096},
                                      {"qwen3.6-27b", 5120, 248320, 24, 4, 256, 16, 48, 128, 17408, 0, 0, 4096}};
  return all;
}

std::vector<Case> cases_of(const Model& m, int64_t sequences) {
  const int64_t values = m.v_heads * m.dim, width = m.heads * m.head_dim;
  std::vector<Case> all{{"embedding",
                         "BlockGather",
                         {{"type", "Q4_K"}},
                         {{i64, {-1}, Fill::ids, static_cast<double>(m.vocab)}, weight("Q4_K", m.vocab, m.hidden)},
                         {{f32, {-1, m.hidden}}},
                         0},
                        norm(m),
                        products("delta rule's projections", m.hidden, delta_rule_matrices(m)),
                        delta_rule(m, sequences),
                        products("delta rule's output", values, {{"Q5_K", m.hidden}}),
                        products("attention's projections", m.hidden, attention_matrices(m)),
                        entries(m, sequences),
                        attention(m, sequences),
                        products("attention's output", width, {{"Q4_K", m.hidden}}),
                        products("head", m.hidden, {{"Q6_K", m.vocab}}),
                        {"top token",
                         "TopToken",
                         {{"probability", 1}},
                         {{f32, {-1, m.vocab}, Fill::normal}},
                         {{i64, {-1}}, {f32, {-1}}},
                         0}};
  all.push_back(products(m.experts ? "router and shared expert" : "gate and up", m.hidden, ffn_matrices(m)));
  if (m.experts) {
    all.push_back({"router",
                   "Router",
                   {{"k", static_cast<double>(m.used)}, {"normalize", 1}},
                   {{f32, {-1, m.experts}, Fill::normal}},
                   {{i64, {-1, m.used}}, {f32, {-1, m.used}}},
                   0});
    all.push_back(experts(m));
  }
  all.push_back(gated(m));
  add_stream_cases(m, sequences, all);
  add_fused_cases(m, sequences, all);
  return all;
}

}  // namespace gpu_kernels
