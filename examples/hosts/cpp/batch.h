// Texts in the making, and the rows of theirs that a step takes.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "images.h"

using Ids = std::vector<int64_t>;
using Position = std::array<int32_t, 3>;  // time, row, column

// A prompt, and the images in it. `ids` has a 0 in the place of each of their tokens.
struct Prompt {
  Ids ids;
  std::vector<Position> positions;  // of each token
  std::vector<float> image_rows;    // of the image tokens, one after the other
  std::vector<int64_t> image_places;
  int32_t shift = 0;  // behind the prompt, positions are so much larger than places

  void add(int64_t id) {
    const int32_t at = static_cast<int32_t>(ids.size()) + shift;
    positions.push_back({at, at, at});
    ids.push_back(id);
  }

  void add(const Picture& picture) {
    const int32_t at = static_cast<int32_t>(ids.size()) + shift;
    for (int64_t token = 0; token < picture.tokens(); ++token) {
      image_places.push_back(static_cast<int64_t>(ids.size()));
      const int32_t row = static_cast<int32_t>(token / picture.columns);
      positions.push_back({at, at + row, at + static_cast<int32_t>(token % picture.columns)});
      ids.push_back(0);
    }
    image_rows.insert(image_rows.end(), picture.embeddings.begin(), picture.embeddings.end());
    shift += static_cast<int32_t>(std::max(picture.rows, picture.columns) - picture.tokens());
  }
};

// One text. Committed tokens are in the state; the last of `kept` is not: the next verify begins with it.
struct Text {
  const Prompt* prompt = nullptr;
  int32_t slot = 0;
  int32_t length = 0;         // committed tokens
  int32_t accepted = 0;       // tokens of the last verify that the next one commits
  Ids kept;                   // the model's choices for the positions up to `length`, from the last round
  std::vector<float> before;  // for each of `kept`, the hidden row of the token before it
  Ids answer;

  // The token at a place; -1 before the start, and where there are drafts.
  int64_t token(int32_t place) const {
    const auto before = static_cast<int32_t>(prompt->ids.size()), end = before + static_cast<int32_t>(answer.size());
    if (place < 0 || place >= end) return -1;
    return place < before ? prompt->ids[static_cast<size_t>(place)] : answer[static_cast<size_t>(place - before)];
  }

  // Of the token at a place: text behind the prompt has three equal ones.
  Position position(int32_t place) const {
    if (static_cast<size_t>(place) < prompt->positions.size()) return prompt->positions[static_cast<size_t>(place)];
    const int32_t at = place + prompt->shift;
    return {at, at, at};
  }
};

// The rows of one step, sequence after sequence.
struct Batch {
  Ids ids, previous;  // previous: the two tokens before each sequence's first one
  std::vector<int32_t> cu_seqlens{0}, past_lens, accepted, slots;
  std::vector<float> hidden, image_rows;
  Ids image_places;
  std::vector<Position> all;  // positions

  void add(const Text& text, const Ids& tokens, int32_t past, const std::vector<float>& before) {
    for (size_t i = 0; i < tokens.size(); ++i) all.push_back(text.position(past + static_cast<int32_t>(i)));
    ids.insert(ids.end(), tokens.begin(), tokens.end());
    cu_seqlens.push_back(static_cast<int32_t>(ids.size()));
    past_lens.push_back(past);
    for (int32_t place : {past - 2, past - 1}) previous.push_back(text.token(place));
    accepted.push_back(text.accepted);
    slots.push_back(text.slot);
    hidden.insert(hidden.end(), before.begin(), before.end());
  }

  // The image tokens among the next `count` tokens of a prompt, which are added afterwards.
  void show(const Text& text, size_t count, int64_t width) {
    const Prompt& prompt = *text.prompt;
    for (size_t i = 0; i < prompt.image_places.size(); ++i) {
      const int64_t place = prompt.image_places[i] - text.length;
      if (place < 0 || place >= static_cast<int64_t>(count)) continue;
      const auto row = prompt.image_rows.begin() + static_cast<int64_t>(i) * width;
      image_rows.insert(image_rows.end(), row, row + width);
      image_places.push_back(static_cast<int64_t>(ids.size()) + place);
    }
  }

  // Positions of all tokens, or of the last one of each text, axis after axis.
  std::vector<int32_t> positions(bool last) const {
    std::vector<int32_t> found;
    for (size_t axis = 0; axis < 3; ++axis)
      for (size_t i = 0; i < slots.size(); ++i)
        for (int32_t row = last ? cu_seqlens[i + 1] - 1 : cu_seqlens[i]; row < cu_seqlens[i + 1]; ++row)
          found.push_back(all[static_cast<size_t>(row)][axis]);
    return found;
  }
};
