// Images as a host prepares them for vision.onnx: patches, their places, and the rows of the table of positions. They
// come as PPM files (P6) whose sides are multiples of 32 pixels, so nothing is resized here.
#pragma once

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <tuple>

#include "session.h"

constexpr int64_t kPatch = 16, kToken = 32;            // pixels of a side; a token has 2 x 2 patches
constexpr int64_t kPatchInputs = 3 * kPatch * kPatch;  // numbers of a patch
constexpr int64_t kPatchesOfToken = 4, kCorners = 4;

// Rows of an image's tokens, one after the other.
struct Picture {
  int64_t rows = 0, columns = 0;  // tokens
  std::vector<float> embeddings;

  int64_t tokens() const { return rows * columns; }
};

struct Pixels {
  int64_t height = 0, width = 0;
  std::vector<unsigned char> values;  // red, green and blue of each pixel, row by row

  unsigned char at(int64_t row, int64_t column, int64_t colour) const {
    return values[static_cast<size_t>((row * width + column) * 3 + colour)];
  }
};

inline Pixels read_ppm(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string kind;
  Pixels found;
  int most = 0;
  if (!(file >> kind >> found.width >> found.height >> most) || kind != "P6" || most != 255 ||
      !std::isspace(file.get()))
    throw std::runtime_error(path + ": is not a PPM file with 8 bits a colour");
  if (found.width < 1 || found.height < 1 || found.width % kToken || found.height % kToken ||
      found.width * found.height > (1 << 24))
    throw std::runtime_error(path + ": its sides must be multiples of 32 pixels, resize it first");
  found.values.resize(static_cast<size_t>(found.width * found.height * 3));
  if (!file.read(reinterpret_cast<char*>(found.values.data()), static_cast<std::streamsize>(found.values.size())))
    throw std::runtime_error(path + ": is cut off");
  return found;
}

// The vision tower of a package.
class Tower {
 public:
  Tower(OrtEnv* env, const std::filesystem::path& package, const std::string& library, int threads)
      : graph_(env, package / "vision.onnx", library, threads) {
    std::ostringstream text;
    text << std::ifstream(package / "manifest.json").rdbuf();
    const std::string manifest = text.str();
    side_ = static_cast<int64_t>(numbers(manifest, "table_side", 1)[0]);
    mean_ = numbers(manifest, "mean", 3);
    deviation_ = numbers(manifest, "std", 3);
  }

  Picture see(const Pixels& pixels) {
    const int64_t rows = pixels.height / kToken, columns = pixels.width / kToken;
    const int64_t count = rows * columns * kPatchesOfToken;
    std::vector<float> patches;
    std::vector<int32_t> places(static_cast<size_t>(2 * count)), table(static_cast<size_t>(kCorners * count));
    std::vector<float> weights(table.size());
    for (int64_t i = 0; i < count; ++i) {
      // Tokens row by row, and in each of them the patches row by row.
      const int64_t token = i / kPatchesOfToken;
      const int64_t row = token / columns * 2 + i % 4 / 2, column = token % columns * 2 + i % 2;
      add_patch(patches, pixels, row * kPatch, column * kPatch);
      places[static_cast<size_t>(i)] = static_cast<int32_t>(row);
      places[static_cast<size_t>(count + i)] = static_cast<int32_t>(column);
      const auto [top, bottom, down] = stretched(row, 2 * rows);
      const auto [left, right, across] = stretched(column, 2 * columns);
      const int64_t corners[kCorners] = {top * side_ + left, top * side_ + right, bottom * side_ + left,
                                         bottom * side_ + right};
      const double shares[kCorners] = {(1 - down) * (1 - across), (1 - down) * across, down * (1 - across),
                                       down * across};
      for (int64_t corner = 0; corner < kCorners; ++corner) {
        table[static_cast<size_t>(corner * count + i)] = static_cast<int32_t>(corners[corner]);
        weights[static_cast<size_t>(corner * count + i)] = static_cast<float>(shares[corner]);
      }
    }
    return {rows, columns, run(count, patches, places, table, weights)};
  }

 private:
  // Where a patch lies in the table, stretched so that the corners meet: the rows around it, and the part of the
  // second.
  std::tuple<int64_t, int64_t, double> stretched(int64_t place, int64_t patches) const {
    const double at = static_cast<double>(place) * (static_cast<double>(side_ - 1) / static_cast<double>(patches - 1));
    const int64_t low = std::min(static_cast<int64_t>(at), side_ - 1);
    return {low, std::min(low + 1, side_ - 1), at - static_cast<double>(low)};
  }

  void add_patch(std::vector<float>& patches, const Pixels& pixels, int64_t top, int64_t left) const {
    for (int64_t colour = 0; colour < 3; ++colour) {
      const float mean = static_cast<float>(mean_[static_cast<size_t>(colour)]);
      const float deviation = static_cast<float>(deviation_[static_cast<size_t>(colour)]);
      for (int64_t row = 0; row < kPatch; ++row)
        for (int64_t column = 0; column < kPatch; ++column) {
          const float level = static_cast<float>(pixels.at(top + row, left + column, colour) * (1 / 255.0));
          patches.push_back((level - mean) / deviation);
        }
    }
  }

  std::vector<float> run(int64_t count, const std::vector<float>& patches, const std::vector<int32_t>& places,
                         const std::vector<int32_t>& table, const std::vector<float>& weights) {
    const auto f32 = ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;
    const auto i32 = ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32;
    const std::vector<int32_t> ends{0, static_cast<int32_t>(count)};
    std::map<std::string, Tensor> inputs;
    inputs.try_emplace("patches", f32, Dims{count, kPatchInputs}, patches);
    inputs.try_emplace("places", i32, Dims{2, count}, places);
    inputs.try_emplace("table_rows", i32, Dims{kCorners, count}, table);
    inputs.try_emplace("table_weights", f32, Dims{kCorners, count}, weights);
    inputs.try_emplace("cu_seqlens", i32, Dims{2}, ends);
    std::map<std::string, const OrtValue*> values;
    for (const auto& [name, tensor] : inputs) values[name] = tensor.value();
    const auto results = graph_.run(values, {});
    const float* rows = data<float>(results.at("embeddings"));
    const int64_t width = graph_.outputs[0].dims[1];
    return {rows, rows + count / kPatchesOfToken * width};
  }

  // The numbers behind a key of the manifest, which has each of these keys once.
  static std::vector<double> numbers(const std::string& manifest, const std::string& key, size_t count) {
    const size_t at = manifest.find("\"" + key + "\":");
    if (at == std::string::npos) throw std::runtime_error("manifest.json has no " + key);
    std::string rest = manifest.substr(at + key.size() + 3, 200);
    std::replace_if(rest.begin(), rest.end(), [](char c) { return c == '[' || c == ','; }, ' ');
    std::istringstream stream(rest);
    std::vector<double> found(count);
    for (double& number : found)
      if (!(stream >> number)) throw std::runtime_error("manifest.json has no numbers as " + key);
    return found;
  }

  Graph graph_;
  int64_t side_ = 0;
  std::vector<double> mean_, deviation_;
};
