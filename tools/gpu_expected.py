"""What tools/gpu.py should find on an H100: the one place for predictions, and for the variants that it times.

Figures are text: `2.95`, or `240 to 490`, with ` / ` between several, and `-` for one that nobody knows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

COUNTED = "instructions and bytes"
"""docs/explanation/cuda-counts.md."""
COPIED = "bytes at 50 and 25 GB/s"
"""docs/explanation/cuda.md, Experts on both sides."""
READ = "bytes at 41 to 60 GB/s"
"""docs/howto/gpu.md, A model that does not fit, and docs/explanation/cuda.md, Experts on both sides."""


class Expected(NamedTuple):
    """Of a row of the table."""

    before: str = ""
    """On an H100, by the times in docs/explanation/cuda.md."""
    now: str = ""
    """The prediction."""
    source: str = ""
    """What it is derived from."""


class Variant(NamedTuple):
    """Another way to do the same."""

    name: str
    environment: Mapping[str, str]
    """Variables that choose it."""
    stage: str
    """Whose model and options it has: one of RUNS in gpu_runs.py, or `kernels`."""
    work: tuple[str, ...]
    """Words of gpu_model.py, or arguments of gpu_kernels."""
    expected: str = ""
    defines: str = ""
    """What a library of its own is compiled with; tools/gpu_pack.py builds it."""

    @property
    def folder(self) -> str:
        """Of that library, beside the present one."""
        return re.sub(r"\W+", "-", self.name)


COPIES, FEW_STEPS, PROMPT = ("prompt-2048",), ("decode", "verify-4"), ("hash", "prompt-4096")
VARIANTS = (
    Variant("as it is", {}, "few", FEW_STEPS),
    Variant("keys and values in q8_0", {}, "few-q8_0", (*FEW_STEPS, "prompt-4096"), "as it is, or less"),
    Variant("launch by launch", {"TRIGRAPH_CUDA_GRAPHS": "0"}, "few", FEW_STEPS, "slower"),
    Variant("no early launches", {}, "few", ("decode",), "up to 1.01 of as it is", "-DTRIGRAPH_EARLY_ROWS=0"),
    Variant("host functions begin experts", {"TRIGRAPH_HOST_CALLS": "1"}, "12gb", ("decode",), "20 to 23"),
    Variant("experts for prompts are copied", {"TRIGRAPH_STREAM_EXPERTS": "1"}, "12gb", COPIES, "- / 240 to 490"),
    Variant("experts for prompts stay", {"TRIGRAPH_STREAM_EXPERTS": "0"}, "12gb", COPIES, "slower"),
    Variant("35B in tiles of 32 rows", {}, "few", PROMPT, "- / 48 to 51"),
    Variant("35B in tiles of 64 rows", {"TRIGRAPH_TALL_TILES": "1"}, "few", PROMPT, "- / 42 to 51"),
    Variant("27B in tiles of 32 rows", {}, "few-27b", PROMPT, "- / 126 to 183"),
    Variant("27B in tiles of 64 rows", {"TRIGRAPH_TALL_TILES": "1"}, "few-27b", PROMPT, "- / 95 to 182"),
    Variant("27B with planes of bytes", {"TRIGRAPH_PLANES": "1"}, "few-27b", PROMPT, "- / 82 to 113"),
)  # fmt: skip

EXPECTED = {
    ("35b", "decode"): Expected("3.08", "2.4", COUNTED),
    ("35b", "verify of 2"): Expected("3.80"),
    ("35b", "verify of 4"): Expected("4.57", "3.7", COUNTED),
    ("35b", "verify of 8"): Expected("5.99", "5.2", COUNTED),
    ("35b", "draft"): Expected("0.24"),
    ("35b", "prompt of 4096"): Expected("- / 303", "- / 240 to 255", COUNTED),
    ("35b", "prompt of 32768"): Expected("- / 6097", "- / 5000 to 5350", COUNTED),
    ("35b", "decode of 8 sequences"): Expected("6.09", "5.3", COUNTED),
    ("35b", "decode of 16 sequences"): Expected("9.39", "8.3", COUNTED),
    ("12gb", "prompt of 2048"): Expected("3433 / 1726", "240 to 490 / 240 to 490", COPIED),
    ("12gb", "decode"): Expected("20 to 23", "9 to 12", READ),
    ("12gb", "verify of 4"): Expected("37 to 46", "26 to 37", READ),
    ("8gb", "prompt of 2048"): Expected("", "330 to 660 / 330 to 660", COPIED),
    ("27b", "decode"): Expected("11.23", "8.7", COUNTED),
    ("27b", "verify of 2"): Expected("12.17"),
    ("27b", "verify of 4"): Expected("12.03"),
    ("27b", "verify of 8"): Expected("13.02"),
    ("27b", "draft"): Expected("0.44"),
    ("27b", "prompt of 4096"): Expected("- / 1500", "- / 1010 to 1460", COUNTED),
    ("parts", "decode"): Expected("", "2.4 to 2.65", COUNTED),
    ("parts", "verify of 4"): Expected("", "3.7 to 3.95", COUNTED),
    ("layers", "decode"): Expected("", "105 to 115", READ),
    ("profile", "decode: launches, kernels, gaps"): Expected("213 / 2910 / 0", "213 / 2260 / 0", COUNTED),
    ("kernels", "copies on the device, GB/s"): Expected("2850 to 2900"),
    ("kernels", "35b: delta rule, rows 512 / 4096"): Expected("", "123 to 139 / 980 to 1110", COUNTED),
    ("llama", "35b: decode"): Expected("4.24"),
    ("llama", "35b: verify of 2"): Expected("4.91"),
    ("llama", "35b: verify of 4"): Expected("6.56"),
    ("llama", "35b: verify of 8"): Expected("9.17"),
    ("llama", "35b: prompt of 4096"): Expected("- / 450"),
    ("llama", "35b: decode of 8 sequences"): Expected("9.5"),
    ("llama", "35b: decode of 16 sequences"): Expected("18.6"),
    ("llama", "12gb: decode"): Expected("22.4"),
    ("llama", "12gb: verify of 4"): Expected("50 to 53"),
    ("llama", "12gb: prompt of 2048"): Expected("- / 435"),
    ("llama", "27b: decode"): Expected("12.6"),
    ("llama", "27b: verify of 2"): Expected("13.5"),
    ("llama", "27b: verify of 4"): Expected("18.5"),
    ("llama", "27b: verify of 8"): Expected("27.1"),
    ("llama", "27b: prompt of 4096"): Expected("- / 1521"),
}
"""By stage, and what the stage calls it. Times of models are in ms, of a prompt the first one and the best of two more;
those of a profile and of kernels in us."""

_KERNELS = """\
35b: mixture of experts | 24.9 / 50.6 / 73.2 / 125
35b: norm and delta rule's projections | 11.3 / 15.6 / 16.4 / 23.4
35b: delta rule's projections, prepared | 9.8 / 11.7 / 12.6 / 19.4
35b: delta rule's output | 4.9 / 9.1 / 10.0 / 9.0
35b: norm and router and shared expert | 7.1 / 12.9 / 13.1 / 15.1
35b: delta rule | 6.9 / - / - / -
35b: attention | 16.4 / - / - / -
35b: head, prepared | 155 / 161 / 167 / 323
35b: top token | 9.1 / 10.7 / 14 / 20
27b: norm and delta rule's projections | 32 / 36 / - / -
27b: delta rule's projections, prepared | 26 / 29 / - / -
27b: norm and gate and up | 49.7 / 53.9 / - / -
27b: gate and up, prepared | 39.9 / 48 / - / -
27b: down | 55.6 / 54 / - / -
27b: norm and head | 498 / 507 / - / -
27b: head, prepared | 392 / 499 / - / -
"""
"""Of 1, 4, 8 and 16 rows, before."""
for _line in _KERNELS.splitlines():
    _name, _, _figures = _line.partition(" | ")
    EXPECTED["kernels", _name] = Expected(_figures)
_MIXTURE = "kernels", "35b: mixture of experts"
EXPECTED[_MIXTURE] = EXPECTED[_MIXTURE]._replace(now="14 / 32 / 52 / 97", source=COUNTED)


def expected(stage: str, what: str) -> Expected:
    """What a row should be."""
    if stage == "variants":
        found = [variant for variant in VARIANTS if what.startswith(f"{variant.name}, ")]
        return Expected(now=found[0].expected) if found else Expected()
    return EXPECTED.get((stage, what), Expected())


def ratio(figures: tuple[float, ...], now: str) -> str:
    """The figure that is farthest from its prediction, in parts of that; nothing where none is predicted."""
    found = []
    for figure, text in zip(figures, now.split(" / "), strict=False):
        if numbers := re.fullmatch(r"([\d.]+)(?: to ([\d.]+))?", text):
            least, most = float(numbers[1]), float(numbers[2] or numbers[1])
            found.append(figure / most if figure > most else figure / least if figure < least else 1.0)
    return f"{max(found, key=lambda each: abs(each - 1)):.2f}" if found else ""
