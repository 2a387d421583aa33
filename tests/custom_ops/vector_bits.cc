// Runs what Gated DeltaNet, attention, activations, residual streams, n-grams and the indexer are made of on fixed
// inputs, and prints a hash of each result. Built for several instruction sets by test_emulated_sets.py: the lines must
// be the same.
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "bias_activation/activate.h"
#include "gated_delta_net/scan.h"
#include "indexer/keys.h"
#include "ngrams/arithmetic.h"
#include "paged_attention/angles.h"
#include "paged_attention/int8_scores.h"
#include "paged_attention/tile.h"
#include "patch_attention/block.h"
#include "streams/arithmetic.h"

using namespace trigraph::TRIGRAPH_ISA;

namespace {

using Floats = std::vector<float>;

// The same numbers everywhere, in [-range, range).
Floats numbers(int64_t count, float range, uint32_t seed = 1) {
  Floats out(static_cast<size_t>(count));
  for (float& x : out) {
    seed = seed * 1664525 + 1013904223;
    x = (static_cast<float>(seed >> 8) * 0x1p-23f - 1) * range;
  }
  return out;
}

template <class T>
void report(const std::string& name, const std::vector<T>& values) {
  uint64_t hash = 14695981039346656037u;
  const auto* bytes = reinterpret_cast<const unsigned char*>(values.data());
  for (size_t i = 0; i < values.size() * sizeof(T); ++i) hash = (hash ^ bytes[i]) * 1099511628211u;
  std::printf("%s %016llx\n", name.c_str(), static_cast<unsigned long long>(hash));
}

template <class F>
void report_lanes(const char* name, const Floats& x, F&& f) {
  Floats out(x.size());
  for (size_t i = 0; i < x.size(); i += VL) store(&out[i], f(load(&x[i])));
  report(name, out);
}

void functions() {
  for (float range : {1e-3f, 1.0f, 30.0f, 200.0f}) {
    const Floats x = numbers(4096, range);
    report_lanes("exp", x, [](vf v) { return exp(v); });
    report_lanes("silu", x, [](vf v) { return silu(v); });
    report_lanes("softplus", x, [](vf v) { return softplus(v); });
    report_lanes("gelu by tanh", x, [](vf v) { return activate<Activation::gelu_tanh>(v); });
    report_lanes("gelu by erf", x, [](vf v) { return activate<Activation::gelu_erf>(v); });
    Floats sums, four(4);
    for (size_t i = 0; i + 4 * VL <= x.size(); i += 4 * VL) {
      for (size_t j = 0; j < 4; ++j) sums.push_back(reduce_add(load(&x[i + j * VL])));
      reduce_add4(load(&x[i]), load(&x[i + VL]), load(&x[i + 2 * VL]), load(&x[i + 3 * VL]), four.data());
      sums.insert(sums.end(), four.begin(), four.end());
    }
    report("sums", sums);
  }
  std::vector<uint16_t> halves(1 << 16), back(halves.size());
  for (size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<uint16_t>((i & 0x7c00) == 0x7c00 ? 0 : i);
  Floats wide(halves.size());
  for (size_t i = 0; i < halves.size(); i += VL) store(&wide[i], load_f16(&halves[i]));
  report("halves to float", wide);
  for (float& x : wide) x *= 1.00037f;
  for (size_t i = 0; i < halves.size(); i += VL) store_f16(&back[i], load(&wide[i]));
  report("floats to half", back);
}

void gated_delta_net(int64_t dim) {
  constexpr int64_t kTokens = 5, kCommitted = 2;
  const Floats raw = numbers((kTokens + 3) * dim, 2), taps = numbers(4 * dim, 1), norm = numbers(dim, 1, 2),
               other_taps = numbers(4 * dim, 1, 7), a = numbers(VL, 1);
  std::vector<const float*> columns;
  for (int64_t t = 0; t < kTokens + 3; ++t) columns.push_back(t ? &raw[t * dim] : nullptr);
  Floats keys(kTokens * dim), queries(kTokens * dim), y(kTokens * dim), o(kTokens * dim);
  convolve(columns.data(), kTokens, 0, dim, taps.data(), keys.data());
  const Floats values = keys;
  convolve(columns.data(), kTokens, 0, dim, other_taps.data(), queries.data());
  for (int64_t t = 0; t < kTokens; ++t) {
    normalize(&keys[t * dim], dim, 1e-6f, 1);
    normalize(&queries[t * dim], dim, 1e-6f, 0.25f);
  }
  Floats decay(VL), beta(VL);
  gates(&raw[0], &raw[1], &taps[0], a.data(), kTokens, decay.data(), beta.data());
  decays(decay.data(), VL);
  std::vector<Token> tokens;
  for (int64_t t = 0; t < kTokens; ++t) {
    const float *k = &keys[t * dim], *q = t < kCommitted ? nullptr : &queries[t * dim];
    tokens.push_back({k, &values[t * dim], q, q ? &o[t * dim] : nullptr, decay[t], beta[t], q ? dot(q, k, dim) : 0});
  }
  Floats state = numbers(dim * dim, 1, 3), scratch(static_cast<size_t>(scan_bytes(dim) / 4));
  scan(tokens.data(), kTokens, kCommitted, state.data(), state.data(), scratch.data(), dim);
  for (int64_t t = kCommitted; t < kTokens; ++t)
    gated_norm(&o[t * dim], &raw[t * dim], norm.data(), dim, 1e-6f, t % 2, &y[t * dim]);
  report("state " + std::to_string(dim), state);
  report("output " + std::to_string(dim), y);
}

template <class T, int ROWS>
void attention(int64_t width, int64_t positions) {
  const Floats q = numbers(ROWS * width, 1), wide = numbers(positions * width, 2, 5);
  std::vector<T> cache(wide.size());
  for (size_t i = 0; i < wide.size(); ++i)
    if constexpr (sizeof(T) == 2)
      cache[i] = float_to_half(wide[i]);
    else
      cache[i] = wide[i];
  std::vector<const T*> list(static_cast<size_t>(positions + kAhead), cache.data());
  for (int64_t p = 0; p < positions; ++p) list[p] = &cache[p * width];
  const Entries<T> entries{list.data(), 0, positions};
  Floats scores(ROWS * kSplit), out(ROWS * width), sums;
  dot<ROWS>(q.data(), entries, positions, width, scores.data());
  for (int m = 0; m < ROWS; ++m) {
    const Weights weights = exponentiate(&scores[m * kSplit], positions);
    sums.insert(sums.end(), {weights.largest, weights.sum});
  }
  weighted_sum<ROWS>(scores.data(), entries, 0, positions, width, out.data());
  const std::string name = std::to_string(sizeof(T)) + " " + std::to_string(ROWS) + " " + std::to_string(width);
  report("softmax " + name, sums);
  report("attended " + name, out);
}

// Rounded queries with heads one stride apart, but for the last ones.
void rounded_attention(int64_t width, int64_t positions, int64_t rows) {
  const int64_t bytes = width / kQ8Width * kQ8Bytes, floats = int8_query_floats(width);
  const Floats q = numbers(rows * width, 1), wide = numbers(positions * width, 2, 5);
  std::vector<Q8> cache(static_cast<size_t>(2 * positions * bytes));
  std::vector<const Q8*> list(static_cast<size_t>(positions + kAhead), cache.data());
  for (int64_t p = 0; p < positions; ++p) {
    Q8* head = &cache[static_cast<size_t>(2 * (p < positions - 3 ? p : 2 * positions - 4 - p) * bytes)];
    list[p] = head;
    for (int64_t i = 0; i < width; i += kQ8Width, head += kQ8Bytes) quantise_block(&wide[p * width + i], head);
  }
  Floats memory(rows * floats + 16), scores(rows * kSplit);
  auto* queries = reinterpret_cast<float*>((reinterpret_cast<uintptr_t>(memory.data()) + 63) / 64 * 64);
  for (int64_t m = 0; m < rows; ++m) round_query(&q[m * width], width, queries + m * floats);
  trigraph::Tensor entries;
  entries.type = trigraph::DType::u8, entries.rank = 4;
  entries.dims[0] = 1, entries.dims[1] = positions, entries.dims[2] = 2, entries.dims[3] = bytes;
  int8_scores(queries, rows, list.data(), positions, CacheShape(entries, entries), scores.data());
  Floats found;
  for (int64_t m = 0; m < rows; ++m) found.insert(found.end(), &scores[m * kSplit], &scores[m * kSplit] + positions);
  report("rounded " + std::to_string(width), found);
}

// Two images, the second one of several splits.
void patch_attention(int64_t width) {
  constexpr int64_t kHeads = 2, kSecond = 7, kCount = 7 + 530;
  const Floats qkv = numbers(kCount * 3 * kHeads * width, 2);
  std::vector<int32_t> places(2 * kCount), starts{0, kSecond, kCount};
  for (int64_t i = 0; i < 2 * kCount; ++i) places[i] = static_cast<int32_t>(i * 7 % 61);
  const auto tensor = [](std::vector<int32_t>& values) {
    trigraph::Tensor made;
    made.data = values.data(), made.rank = 1, made.dims[0] = static_cast<int64_t>(values.size());
    return made;
  };
  trigraph::Tensor by_axis = tensor(places);
  by_axis.rank = 2, by_axis.dims[0] = 2, by_axis.dims[1] = kCount;
  std::vector<double> frequencies;
  for (int64_t j = 0; j < width / 4; ++j)
    frequencies.push_back(frequency(exact_log(1e4), j, width / 2, RopeScaling{1, 0, 0, 1}));
  Floats angles(kCount * width), out(kCount * kHeads * width);
  turn_angles(by_axis, frequencies, 0, kCount, angles.data());
  const Patches patches{qkv.data(), kCount, kHeads, width, angles.data(), SequenceStarts(tensor(starts), kCount)};
  Floats memory(PackedHead::floats(patches)), own(PatchWalk::floats(patches));
  const PackedHead packed = PackedHead::at(patches, memory.data());
  for (int64_t head = 0; head < kHeads; ++head)
    for (int64_t image = 0; image < 2; ++image) {
      const int64_t length = patches.length(image);
      for (int64_t i = 0; i < length; i += kPatchSplit) packed.pack(patches, head, image, i / kPatchSplit);
      for (int64_t i = 0; i < length; i += kBlockRows)
        PatchWalk{patches, head, packed, out.data()}.run({image, i, std::min(kBlockRows, length - i)}, own.data());
    }
  report("patch attention " + std::to_string(width), out);
}

void widened() {
  const Floats x = numbers(8 * kQ8Width, 3);
  std::vector<Q8> head(8 * kQ8Bytes);
  for (int64_t b = 0; b < 8; ++b) quantise_block(&x[b * kQ8Width], &head[b * kQ8Bytes]);
  Floats wide(x.size());
  widen(head.data(), 8 * kQ8Width, wide.data());
  report("widened", wide);
}

void angles() {
  for (const RopeScaling& scaling : {RopeScaling{1, 0, 0, 1}, RopeScaling{4, 14, 22, 1.14}}) {
    Floats turns;
    for (int64_t position : {0, 1, 77, 4095, 1 << 20, 2147483647})
      for (int64_t i = 0; i < 32; ++i) {
        const Angle a = angle(static_cast<double>(position) * frequency(exact_log(1e7), i, 64, scaling));
        turns.insert(turns.end(), {static_cast<float>(a.cosine * scaling.magnitude), static_cast<float>(a.sine)});
      }
    report("angles", turns);
  }
}

void streams(int64_t hidden) {
  for (int64_t count : {2, 4}) {
    const Floats x = numbers(count * hidden, 3), logits = numbers(count * hidden, 8, 2), block = numbers(hidden, 2, 3);
    Floats sum(count * hidden), normed(count * hidden), mean(hidden);
    for (int64_t c = 0; c < count; ++c) {
      add_block(&x[c * hidden], block.data(), logits[c], count, hidden, &sum[c * hidden]);
      normalize(&sum[c * hidden], &logits[c * hidden], hidden, 1e-6f, &normed[c * hidden]);
    }
    mean_of_streams(normed.data(), logits.data(), count, hidden, mean.data());
    const std::string name = std::to_string(count) + " " + std::to_string(hidden);
    report("streams " + name, sum);
    report("normed streams " + name, normed);
    report("mean of streams " + name, mean);
  }
}

void ngrams(int64_t hidden) {
  constexpr int64_t kTokens = 5, kDilation = 3, kTaps = NgramMixSignature::kTaps, kHistory = (kTaps - 1) * kDilation;
  const Floats x = numbers(kTokens * hidden, 2), key = numbers(kTokens * hidden, 1, 2),
               query = numbers(kTokens * hidden, 1, 3), value = numbers(hidden, 2, 4), norm = numbers(hidden, 1, 5),
               taps = numbers(hidden * kTaps, 1, 6), history = numbers(hidden, 2, 7);
  Floats y(kTokens * hidden), made(kTokens * hidden);
  std::vector<const float*> columns(kHistory, nullptr);
  columns.back() = history.data();
  for (int64_t t = 0; t < kTokens; ++t) {
    gate_stream(&x[t * hidden], &key[t * hidden], &query[t * hidden], value.data(), norm.data(), hidden, 1e-6f,
                &y[t * hidden], &made[t * hidden]);
    columns.push_back(&made[t * hidden]);
  }
  convolve_channels(columns.data(), kTokens, kDilation, taps.data(), 0, hidden, hidden, y.data());
  report("columns of n-grams " + std::to_string(hidden), made);
  report("n-grams " + std::to_string(hidden), y);
}

template <class T>
void indexer(int64_t width) {
  constexpr int64_t kRows = 3, kHeads = 4, kGroups = 33, kSize = 4;
  const Floats q = numbers(kRows * kHeads * width, 1), raw = numbers(kGroups * kSize * width, 2, 3);
  Floats pooled(kGroups * width), memory(kRows * kHeads * kSplit), scores(kRows * kGroups);
  std::vector<T> keys(pooled.size());
  std::vector<const T*> places(kGroups + kAhead, keys.data());
  for (int64_t g = 0; g < kGroups; ++g) {
    const float* own = &raw[(g * kSize + kSize - 1) * width];
    const auto earlier = [&](int64_t n, int64_t c, T* memory) -> const T* {
      store_key(memory, load(own - n * width + c));
      return memory;
    };
    pool_keys<T>(own, kSize, width, earlier, &pooled[g * width]);
    for (int64_t c = 0; c < width; c += VL) store_key(&keys[g * width + c], load(&pooled[g * width + c]));
    places[g] = &keys[g * width];
  }
  score_keys(q.data(), kRows, kHeads, places.data(), kGroups, width, memory.data(), scores.data(), kGroups);
  const std::string name = std::to_string(sizeof(T)) + " " + std::to_string(width);
  report("index keys " + name, keys);
  report("index scores " + name, scores);
}

}  // namespace

int main() {
  functions();
  for (int64_t dim : {16, 48, 80, 128}) gated_delta_net(dim);
  for (int64_t width : {16, 80, 256}) {
    attention<float, 1>(width, 7);
    attention<uint16_t, 4>(width, 24);
    attention<uint16_t, 3>(width, 5);
  }
  for (int64_t width : {32, 96, 256, 288}) rounded_attention(width, 53, 13);
  for (int64_t width : {4, 20, 64, 72}) patch_attention(width);
  widened();
  angles();
  for (int64_t hidden : {5, 64, 250}) streams(hidden), ngrams(hidden);
  for (int64_t width : {16, 48, 128}) indexer<float>(width), indexer<uint16_t>(width);
}
