"""`tools/versus.py`: what it refuses before the work, and llama.cpp's steps beside ours."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import versus
from support.models.packages import Packages
from tool import run_tool
from trigraph.runtime.bench import BenchOptions, bench
from versus import STEP_PEERS


@pytest.mark.parametrize(
    ("arguments", "missing", "text"),
    [
        (["--versus", "llama.cpp"], "llama_cpp", "pip install llama-cpp-python"),
        (["--versus", "ik_llama-rtr"], "ik_llama_cpp", "pip install ik-llama-cpp-python"),
        (["--versus", "vllm"], None, "without --requests it is one of llama.cpp, ik_llama, ik_llama-rtr"),
        (["--requests", "4", "--versus", "llama.cpp"], "xllamacpp", "pip install xllamacpp"),
        (["--requests", "4", "--versus", "ik_llama"], None, "with --requests it is one of llama.cpp, llama.cpp-mtp"),
        (["--requests", "4", "--versus", "llama.cpp", "--accept", "0.5"], None, "leave it out with --requests"),
    ],
)
def test_mistakes_are_found_before_the_work(
    tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], missing: str | None, text: str
) -> None:
    if missing is not None:
        monkeypatch.setitem(sys.modules, missing, None)
    monkeypatch.setattr("trigraph.runtime.cli.measure.cached_package", lambda *_: pytest.fail("the work began"))
    monkeypatch.setattr(sys, "argv", ["versus.py", str(tiny_gguf), *arguments])
    with pytest.raises(SystemExit, match=text):
        run_tool(versus.versus)


def test_steps_beside_llama_cpp(packages: Packages, operator_library: Path) -> None:
    pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed: nothing to compare with")
    options = BenchOptions(prompt=8, tokens=0, verify_tokens=(1, 2), repetitions=1)
    results = bench(packages("trained", "Q8_0"), options, [STEP_PEERS["llama.cpp"].open]).results
    kinds = {(r.engine, r.name) for r in results}
    assert kinds == {(e, n) for e in ("trigraph", "llama.cpp") for n in ("prefill", "decode", "verify", "draft")}
