"""Numbers of a step that cannot be overflow nowhere before they are refused, in what kernels compute ahead of that."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TILES = r"""
#include "paged_attention/partials.cuh"
using namespace trigraph::TRIGRAPH_ISA;

ErrorRecord* trigraph::TRIGRAPH_ISA::error_record() { return nullptr; }

int main() {
  const int32_t ends[] = {INT32_MIN, -201326588, -1, 0, 1, 4, 1 << 30, INT32_MAX};
  int32_t starts[3], past[2], table[2] = {};
  const auto tensor = [](int32_t* data, std::initializer_list<int64_t> shape) {
    trigraph::Tensor made;
    made.data = data, made.type = trigraph::DType::i32;
    for (int64_t extent : shape) made.dims[made.rank++] = extent;
    return made;
  };
  const trigraph::Tensor cache = tensor(nullptr, {1, 16, 1, 16});
  const Ragged sequences(tensor(starts, {3}), tensor(past, {2}), tensor(table, {2, 1}), 4, CacheShape(cache, cache),
                         Operator::paged_attention);
  const int32_t groups[4] = {};
  const Partials partials{nullptr, 4, 1, nullptr};
  int64_t seen = 0;
  for (int32_t a : ends) for (int32_t b : ends) for (int32_t c : ends) for (int32_t d : ends) for (int32_t e : ends) {
    starts[0] = a, starts[1] = b, starts[2] = c, past[0] = d, past[1] = e;
    for (const Lists& lists : {Lists{nullptr, 0, 0}, Lists{groups, 1, 4}})
      for (unsigned index : {0u, 1u, 7u}) {
        const AttendTile tile(sequences, lists, 3, 4, index);
        seen += tile.count + tile.splits() + (partials.of<4>(tile, tile.splits(), 16) != nullptr);
      }
  }
  return seen == 1;
}
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the emulator of CUDA needs Linux")
def test_tiles_of_attention(tmp_path: Path) -> None:
    """Any int32 in `cu_seqlens` and `past_lens`."""
    (tmp_path / "tiles.cc").write_text(TILES)
    emulator, program = ROOT / "tests" / "cuda" / "emulator", tmp_path / "tiles"
    command = [os.environ.get("CXX", "c++"), "-std=c++17", "-DTRIGRAPH_ISA=cuda", f"-I{ROOT / 'custom_ops'}"]
    command += ["-fsanitize=signed-integer-overflow", "-fno-sanitize-recover=all"]
    command += ["-include", str(emulator / "cuda_emulator.h")]
    subprocess.run([*command, tmp_path / "tiles.cc", emulator / "host_calls.cc", "-o", program], check=True)
    done = subprocess.run([program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
