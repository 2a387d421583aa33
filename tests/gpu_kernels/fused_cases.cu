// The operators that sessions fuse, and the draw of tokens.
#include "cases.h"

namespace gpu_kernels {
namespace {

constexpr DType f32 = DType::f32, i32 = DType::i32, i64 = DType::i64;
constexpr size_t kProducts = 4;  // of a BlockMatMul, at most

// A norm with its residual, and the products of its rows.
Case normed(const std::string& name, const Model& m, const std::vector<Matrix>& matrices) {
  Case made = products("norm and " + name, m.hidden, matrices);
  const Input x = made.inputs[0], absent{};
  made.op = "NormedBlockMatMul";
  for (const auto& [key, number] : {std::pair{"eps", 1e-6}, {"router", -1.0}, {"k", 0.0}, {"normalize", 0.0}})
    made.attributes.insert({key, number});
  made.inputs.insert(made.inputs.begin() + 1, {{f32, {m.hidden}, Fill::positive}, x, absent, absent});
  made.outputs.insert(made.outputs.begin(), 2, {f32, {-1, m.hidden}});
  return made;
}

// With the choice of experts by the logits that are the first product.
Case routed(const Model& m) {
  Case made = normed("router and shared expert", m, ffn_matrices(m));
  made.attributes.at("router").number = 0;
  made.attributes.at("k").number = static_cast<double>(m.used);
  made.attributes.at("normalize").number = 1;
  made.outputs.resize(2 + kProducts);
  made.outputs.push_back({i64, {-1, m.used}});
  made.outputs.push_back({f32, {-1, m.used}});
  return made;
}

Case mixture(const Model& m) {
  Case made = experts(m);
  made.name = "mixture of experts";
  made.op = "MixtureOfExperts";
  made.attributes.insert({"shared_down_type", "Q8_0"});
  const Input logit = made.inputs[7];
  made.inputs.resize(6);
  for (const Input& input : {Input{f32, {-1, m.ffn}, Fill::normal}, Input{f32, {-1, m.ffn}, Fill::normal}, logit})
    made.inputs.push_back(input);
  made.inputs.push_back(weight("Q8_0", m.hidden, m.ffn));
  return made;
}

Case entries_and_last_rows(const Model& m, int64_t sequences) {
  Case made = entries(m, sequences);
  made.name = "entries and last rows";
  made.op = "PagedKVWriteLastRows";
  made.inputs.push_back({f32, {-1, m.hidden}, Fill::normal});
  for (const Output& output : {Output{i32, {-3}}, Output{i32, {-2}}, Output{f32, {-2, m.hidden}}})
    made.outputs.push_back(output);
  return made;
}

}  // namespace

void add_fused_cases(const Model& m, int64_t sequences, std::vector<Case>& all) {
  all.push_back(normed("delta rule's projections", m, delta_rule_matrices(m)));
  all.push_back(normed("attention's projections", m, attention_matrices(m)));
  all.push_back(normed("head", m, {{"Q6_K", m.vocab}}));
  all.push_back(entries_and_last_rows(m, sequences));
  if (m.experts) {
    all.push_back(routed(m));
    all.push_back(mixture(m));
  } else {
    all.push_back(normed("gate and up", m, ffn_matrices(m)));
  }
  all.push_back({"draw",
                 "DrawTokens",
                 {},
                 {{f32, {-1, m.vocab}, Fill::normal}, {i64, {-1}, Fill::ids, static_cast<double>(m.vocab)}},
                 {{i64, {-1}}},
                 0});
}

}  // namespace gpu_kernels
