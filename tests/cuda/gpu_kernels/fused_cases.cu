// The operators that sessions fuse, and the draw of tokens.
#include "cases.h"

namespace gpu_kernels {
namespace {

constexpr DType f32 = DType::f32, i32 = DType::i32, i64 = DType::i64;

// Bytes of a row of int8 in both forms, and such rows.
int64_t prepared_bytes(int64_t width) { return 2 * ((width + 255) / 256) * 320; }
Input prepared(int64_t width) { return {DType::u8, {-1, prepared_bytes(width)}, Fill::prepared}; }

// A norm of rows, prepared too.
Case norm(const Model& m) {
  const Input x{f32, {-1, m.hidden}, Fill::normal};
  return {"norm, prepared",
          "PreparedRMSNorm",
          {{"eps", 1e-6}},
          {x, {f32, {m.hidden}, Fill::positive}, x},
          {{f32, {-1, m.hidden}}, {f32, {-1, m.hidden}}, {DType::u8, {-1, prepared_bytes(m.hidden)}}},
          0};
}

// Products of rows that are prepared.
Case fused(const std::string& name, int64_t width, const std::vector<Matrix>& matrices) {
  Case made = products(name + ", prepared", width, matrices);
  made.op = "PreparedBlockMatMul";
  made.inputs.insert(made.inputs.begin() + 1, prepared(width));
  return made;
}

// The norm, and products of its rows.
Case normed(const Model& m, const std::string& name, const std::vector<Matrix>& matrices) {
  Case made = products("norm and " + name, m.hidden, matrices);
  made.op = "NormedBlockMatMul";
  const Case before = norm(m);
  made.attributes.insert(*before.attributes.begin());
  std::vector<Input> inputs = before.inputs;
  inputs.resize(5, Input{f32, {}, Fill::normal});  // no rows beside them
  made.inputs.erase(made.inputs.begin());
  made.inputs.insert(made.inputs.begin(), inputs.begin(), inputs.end());
  made.outputs.insert(made.outputs.begin(), before.outputs.begin(), before.outputs.end());
  return made;
}

Case mixture(const Model& m) {
  Case made = experts(m);
  made.name = "mixture of experts";
  made.op = "MixtureOfExperts";
  made.attributes.insert({"shared_down_type", "Q8_0"});
  made.attributes.insert({"k", static_cast<double>(m.used)});
  made.attributes.insert({"normalize", 1});
  const Input logit = made.inputs[7], none{f32, {}, Fill::number};
  made.inputs[1] = made.inputs[2] = none;
  made.inputs.resize(6);
  for (const Input& input : {Input{f32, {-1, m.ffn}, Fill::normal}, Input{f32, {-1, m.ffn}, Fill::normal}, logit})
    made.inputs.push_back(input);
  made.inputs.push_back(weight("Q8_0", m.hidden, m.ffn));
  made.inputs.push_back({f32, {-1, m.experts}, Fill::normal});
  made.inputs.push_back(prepared(m.hidden));
  return made;
}

Case entries_and_last_rows(const Model& m, int64_t sequences) {
  Case made = entries(m, sequences);
  made.name = "entries and last rows";
  made.op = "PagedKVWriteLastRows";
  made.inputs.push_back({i32, {}, Fill::number});  // no positions
  made.inputs.push_back({f32, {-1, m.hidden}, Fill::normal});
  for (const Output& output : {Output{i32, {-3}}, Output{i32, {-2}}, Output{f32, {-2, m.hidden}}})
    made.outputs.push_back(output);
  return made;
}

}  // namespace

void add_fused_cases(const Model& m, int64_t sequences, std::vector<Case>& all) {
  all.push_back(norm(m));
  all.push_back(fused("delta rule's projections", m.hidden, delta_rule_matrices(m)));
  all.push_back(fused("attention's projections", m.hidden, attention_matrices(m)));
  all.push_back(fused("head", m.hidden, {{"Q6_K", m.vocab}}));
  all.push_back(entries_and_last_rows(m, sequences));
  all.push_back(fused(m.experts ? "router and shared expert" : "gate and up", m.hidden, ffn_matrices(m)));
  if (m.experts) all.push_back(mixture(m));
  all.push_back(normed(m, "delta rule's projections", delta_rule_matrices(m)));
  all.push_back(normed(m, "attention's projections", attention_matrices(m)));
  all.push_back(normed(m, m.experts ? "router and shared expert" : "gate and up", ffn_matrices(m)));
  all.push_back(normed(m, "head", {{"Q6_K", m.vocab}}));
  all.push_back({"draw",
                 "DrawTokens",
                 {},
                 {{f32, {-1, m.vocab}, Fill::normal}, {i64, {-1}, Fill::ids, static_cast<double>(m.vocab)}},
                 {{i64, {-1}}},
                 0});
}

}  // namespace gpu_kernels
