// Texts in the making, and the rows of theirs that a step takes.
#pragma once

#include <cstdint>
#include <vector>

using Ids = std::vector<int64_t>;

// One text. Committed tokens are in the state; the last of `kept` is not: the next verify begins with it.
struct Text {
  int32_t slot;
  int32_t length = 0;         // committed tokens
  int32_t accepted = 0;       // tokens of the last verify that the next one commits
  Ids kept;                   // the model's choices for the positions up to `length`, from the last round
  std::vector<float> before;  // for each of `kept`, the hidden row of the token before it
  Ids answer;
};

// The rows of one step, sequence after sequence.
struct Batch {
  Ids ids;
  std::vector<int32_t> cu_seqlens{0}, past_lens, accepted, slots;
  std::vector<float> hidden;

  void add(const Text& text, const Ids& tokens, int32_t past, const std::vector<float>& before) {
    ids.insert(ids.end(), tokens.begin(), tokens.end());
    cu_seqlens.push_back(static_cast<int32_t>(ids.size()));
    past_lens.push_back(past);
    accepted.push_back(text.accepted);
    slots.push_back(text.slot);
    hidden.insert(hidden.end(), before.begin(), before.end());
  }

  // Positions of all tokens, or of the last one of each text, on three axes: text has three equal ones.
  std::vector<int32_t> positions(bool last) const {
    std::vector<int32_t> found;
    for (int axis = 0; axis < 3; ++axis)
      for (size_t i = 0; i < slots.size(); ++i) {
        const int32_t tokens = cu_seqlens[i + 1] - cu_seqlens[i];
        for (int32_t row = last ? tokens - 1 : 0; row < tokens; ++row) found.push_back(past_lens[i] + row);
      }
    return found;
  }
};
