// The command line.
#pragma once

#include <cstdint>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

struct Options {
  std::filesystem::path package;
  std::string library;  // empty: a portable package, run without operator library
  int tokens = 32, drafts = 3, threads = 1;
  size_t chunk = 512;       // tokens of a prompt in one prefill
  bool bits = false;        // print a hash of all logits and hidden rows
  int64_t text_start = -1;  // stands before the start of a text, where n-grams look
  std::vector<std::string> prompts, images;
};

inline Options parse(int count, char** arguments) {
  Options options;
  for (int i = 1; i < count; ++i) {
    const std::string argument = arguments[i];
    const auto value = [&] {
      if (++i == count) throw std::runtime_error(argument + " needs a value");
      return std::string(arguments[i]);
    };
    if (argument == "--library") {
      options.library = value();
    } else if (argument == "--tokens") {
      options.tokens = std::stoi(value());
    } else if (argument == "--drafts") {
      options.drafts = std::stoi(value());
    } else if (argument == "--threads") {
      options.threads = std::stoi(value());
    } else if (argument == "--bits") {
      options.bits = true;
    } else if (argument == "--text-start") {
      options.text_start = std::stoll(value());
    } else if (argument == "--image") {
      options.images.push_back(value());
    } else if (argument == "--chunk") {
      options.chunk = std::stoul(value());
    } else if (options.package.empty()) {
      options.package = argument;
    } else {
      options.prompts.push_back(argument);
    }
  }
  if (options.prompts.empty() || options.tokens < 1 || options.chunk < 1)
    throw std::runtime_error(
        "usage: trigraph_host PACKAGE [--library FILE] [--tokens N] [--drafts N] [--bits] [--image PPM] "
        "[--text-start ID] ID,IMAGE,ID,... ...");
  return options;
}
