"""Short runs of the fuzzers; `cd tests && python -m fuzz TARGET --count N` makes long ones."""

from __future__ import annotations

import copy
import random
import sys
from pathlib import Path

import pytest

from fuzz.campaign import run_campaign
from fuzz.damage import damage_bytes, damage_json

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "win32", reason="the fuzzers limit a child process as POSIX can"),
]


@pytest.mark.parametrize(
    ("target", "count"),
    [
        ("headers", 3000), ("towers", 1500), ("drafters", 1500), ("images", 3000), ("packages", 150),
        ("sessions", 300), ("operators", 300), ("constraints", 150), ("answers", 400), ("grammars", 50), ("texts", 80),
    ],
)  # fmt: skip
def test_no_defects(target: str, count: int, operator_library: Path) -> None:
    report = run_campaign(target, count, seed=7)
    print(report)
    assert not report.defects, str(report)
    assert report.outcomes.total() == count
    assert report.outcomes["refused"] > count / 10


def test_no_reply_is_misread() -> None:
    report = run_campaign("replies", 1500, seed=7)
    print(report)
    assert not report.defects, str(report)
    assert min(report.outcomes[kind] for kind in ("exact", "damaged", "garbled")) > 200


def test_a_campaign_survives_crashes_and_reports_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fuzzer that raises, crashes, hangs, allocates and is slow now and then."""
    (tmp_path / "fuzz").mkdir()
    (tmp_path / "fuzz/__init__.py").write_text(
        f"import sys, os.path\n__path__.append({str(Path(__file__).parents[1] / 'fuzz')!r})\n"
    )
    (tmp_path / "fuzz/headers.py").write_text(
        "import os, time\n"
        "from trigraph.models.errors import TrigraphError\n"
        "class Fuzzer:\n"
        "    def __init__(self, folder): pass\n"
        "    def run(self, seed, case):\n"
        "        print('noise on stdout')\n"
        "        start = time.process_time()\n"
        "        if case == 2: raise RuntimeError('wrong')\n"
        "        if case == 3: os.abort()\n"
        "        if case == 4: time.sleep(600)\n"
        "        if case == 5: bytearray(1 << 30)\n"
        "        if case == 6: raise TrigraphError('a' * 5000)\n"
        "        while case == 7 and time.process_time() < start + 1.2: pass\n"
        "        if case == 8:\n"
        "            os.write(2, b'noise\\nbatch.h:86:29: runtime error: overflow\\n' + b'#1 frame\\n' * 1000)\n"
        "            os._exit(1)\n"
        "        return 'fine'\n"
    )
    monkeypatch.setattr("fuzz.campaign._TESTS", tmp_path)
    monkeypatch.setattr("fuzz.campaign.HANG_SECONDS", 10.0)
    report = run_campaign("headers", 9)
    assert set(report.defects) == {2, 3, 4, 5, 7, 8}
    for case, text in {2: "wrong", 3: "status -6", 4: "no result", 5: "MemoryError", 7: "took", 8: "overflow"}.items():
        assert text in report.defects[case]
    assert report.outcomes == {"fine": 2, "defect": 3, "crash": 3, "refused": 1}
    assert "runtime error: overflow" in str(report)


def test_damage_is_the_same_each_time() -> None:
    document = {"a": [1, 2.5, "x", {"b": None}], "c": {"d": [True] * 3}}
    for seed in range(200):
        first, second = (damage_bytes(random.Random(seed), bytes(range(100))) for _ in range(2))
        assert first == second
        one, other = (repr(damage_json(random.Random(seed), copy.deepcopy(document))) for _ in range(2))
        assert one == other
