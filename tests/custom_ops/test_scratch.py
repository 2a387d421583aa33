"""What the tests see of an operator's scratch memory on the CPU: NaNs in each use, and writes beside it."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = """
#include "scratch.h"
struct One;
struct Other;
int main(int, char** arguments) {
  const int at = std::atoi(arguments[1]);
  {
    const trigraph::ScratchLoan loan;
    auto* other = static_cast<float*>(trigraph::scratch<Other>(12));
    auto* one = static_cast<float*>(trigraph::scratch<One>(40));
    if (one[0] == one[0] || other[2] == other[2]) return 1;
    one[at] = 1;
  }
  const trigraph::ScratchLoan loan;
  const auto* again = static_cast<float*>(trigraph::scratch<One>(24));
  return again[0] != again[0] && again[5] != again[5] ? 0 : 2;
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Writes one element of ten, whose number it is given, in an operator's call; then there is another call."""
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    if compiler is None:
        pytest.skip("no C++ compiler")
    folder = tmp_path_factory.mktemp("scratch")
    (folder / "main.cc").write_text(PROGRAM)
    out = folder / "program"
    subprocess.run(
        [compiler, "-std=c++17", "-I", str(ROOT / "custom_ops"), str(folder / "main.cc"), "-o", str(out)], check=True
    )
    return out


@pytest.mark.parametrize(("at", "words"), [(9, ""), (10, "wrote behind"), (-1, "wrote before"), (25, "wrote behind")])
def test_writes_are_seen(program: Path, at: int, words: str) -> None:
    environment = os.environ | {"TRIGRAPH_CHECK_SCRATCH": "1"}
    done = subprocess.run([program, str(at)], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode == 0) == (not words), done.stderr
    assert words in done.stderr
