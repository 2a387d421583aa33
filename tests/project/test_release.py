"""What a release promises: workflows that parse, one version, all platforms, links that an index can follow."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from readme import absolute
from release import check_files, check_versions, section
from wheels import LARGEST, glibc_of

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
VERSION, HOME = PROJECT["version"], PROJECT["urls"]["Repository"]
FILES = [
    f"trigraph-{VERSION}-py3-none-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl",
    f"trigraph-{VERSION}-py3-none-manylinux_2_27_aarch64.manylinux_2_28_aarch64.whl",
    f"trigraph-{VERSION}-py3-none-macosx_11_0_arm64.whl",
    f"trigraph-{VERSION}-py3-none-win_amd64.whl",
    f"trigraph_cuda-{VERSION}-py3-none-manylinux_2_28_x86_64.whl",
    f"trigraph-{VERSION}.tar.gz",
]


@pytest.fixture
def dist(tmp_path: Path) -> Path:
    for name in FILES:
        (tmp_path / name).write_bytes(b"")
    return tmp_path


def test_a_whole_release(dist: Path) -> None:
    assert list(check_files(f"v{VERSION}", dist)) == []


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        (f"trigraph-{VERSION}-py3-none-linux_x86_64.whl", "a wheel for linux_x86_64 is unexpected"),
        (f"trigraph-{VERSION}-py3-none-manylinux_2_35_x86_64.whl", "takes glibc 2.35; at most 2.28"),
        (f"other-{VERSION}-py3-none-win_amd64.whl", "other: a wheel for win_amd64 is unexpected"),
        ("trigraph-9.9.9-py3-none-win_amd64.whl", "its version is not that of the tag"),
        ("SHA256SUMS", "neither a wheel nor a source archive"),
        ("trigraph-9.9.9.tar.gz", "2 source archives; expected one"),
    ],
)
def test_a_file_that_does_not_belong(dist: Path, name: str, sentence: str) -> None:
    (dist / name).write_bytes(b"")
    assert any(sentence in wrong for wrong in check_files(f"v{VERSION}", dist))


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_missing(dist: Path, name: str) -> None:
    (dist / name).unlink()
    (wrong,) = check_files(f"v{VERSION}", dist)
    assert "is missing" in wrong or wrong == "0 source archives; expected one"


def test_a_file_that_is_too_large(dist: Path) -> None:
    with (dist / FILES[0]).open("wb") as file:
        file.truncate(LARGEST + 1)
    (wrong,) = check_files(f"v{VERSION}", dist)
    assert f"{LARGEST + 1:,} bytes" in wrong


def test_versions_and_changes() -> None:
    changes = f"# Changes\n\n## [{VERSION}] - 2026-11-28\n\n### Added\n\n- One.\n\n## [0.0.1] - 2026-01-01\n\n- Old.\n"
    assert list(check_versions(f"v{VERSION}", changes, HOME)) == []
    assert section(changes, VERSION) == "### Added\n\n- One.\n"
    wrong = list(check_versions("v9.9.9", changes, "https://example.org/other"))
    assert [("tag" in text, "Repository" in text, "date" in text) for text in wrong] == [
        (True, False, False), (False, True, False), (True, False, False), (False, True, False), (False, False, True),
    ]  # fmt: skip
    assert list(check_versions(f"v{VERSION}", changes.replace("2026-11-28", "unreleased"), None)) == [
        f"CHANGELOG.md: no section of {VERSION} with a date"
    ]


def test_headings_of_the_changelog() -> None:
    lines = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").splitlines()
    versions = [line for line in lines if line.startswith("## ")]
    assert versions and all(re.fullmatch(r"## \[(Unreleased\]|\d+\.\d+\.\d+\] - \d{4}-\d\d-\d\d)", v) for v in versions)
    kinds = {line[4:] for line in lines if line.startswith("### ")}
    assert kinds <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security", "Not run on a GPU yet"}


def test_names_of_c_libraries() -> None:
    assert glibc_of(FILES[0]) == (2, 27) and glibc_of(FILES[2]) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[a](docs/x.md#y)", "[a](H/blob/v1/docs/x.md#y)"),
        ("![p](docs/p.svg)", "![p](H/raw/v1/docs/p.svg)"),
        ("[![p](docs/p.svg)](docs/x.md)", "[![p](H/raw/v1/docs/p.svg)](H/blob/v1/docs/x.md)"),
        ('<img alt="a" src="docs/p.svg">', '<img alt="a" src="H/raw/v1/docs/p.svg">'),
        ("[a](https://example.org) [b](#part)", "[a](https://example.org) [b](#part)"),
    ],
)
def test_links_of_the_readme_become_absolute(text: str, expected: str) -> None:
    assert absolute(text, "H", "v1") == expected


def test_an_index_shows_no_relative_link() -> None:
    text = absolute((ROOT / "README.md").read_text(encoding="utf-8"), HOME, f"v{VERSION}")
    targets = re.findall(r'\]\(([^)\s]+)\)|(?:src|srcset)="([^"]+)"', text)
    assert targets and all(target.startswith(("https://", "#")) for pair in targets for target in pair if target)


def test_one_place_names_the_repository() -> None:
    cuda = tomllib.loads((ROOT / "packaging/cuda/pyproject.toml").read_text())["project"]
    assert cuda["urls"]["Repository"] == HOME
    assert all(url.startswith(HOME) for name, url in PROJECT["urls"].items() if name != "Documentation")


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.name)
def test_workflows(file: Path, tmp_path: Path) -> None:
    """Each is YAML, its shell parses, and the files that it names are here; actionlint agrees where it is installed."""
    jobs = yaml.safe_load(file.read_text(encoding="utf-8"))["jobs"]
    steps = [step for job in jobs.values() for step in job["steps"]]
    for shell in [step["run"] for step in steps if "run" in step]:
        done = subprocess.run(["bash", "-n", "-c", shell], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert all(
            (ROOT / name).is_file()
            for name in re.findall(r"python (tools/\S+)|(\.ci/\S+)", shell)
            for name in name
            if name
        )
        targets = [word for word in shell.split()[1:2] if shell.startswith("make ") and "/" not in word]
        assert all(f"\n{target}:" in (ROOT / "Makefile").read_text() for target in targets), shell
    if shutil.which("actionlint"):
        subprocess.run(["actionlint", file], check=True)
