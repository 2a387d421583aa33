"""What an installation and a checkout promise: the order of rooms, sizes, versions, dependencies."""

import tomllib
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from support.project.imports import import_graph, violations
from support.project.sizes import long_functions
from trigraph.custom_ops import library_version

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# A room imports only from those before it, and from the top folders before its own; see support.project.imports.
ROOMS = {
    "models": ["*", "vision", "drafter", "synth", "tiny"],
    "custom_ops": [
        "__init__",
        "scripting",
        "blocks",
        "cost",
        "operator_type",
        "*",
        "registry",
        "bodies",
    ],
    "exporter": ["package", "graphs", "placement", "options", "sources", "export", "describe", "__init__"],
    "runtime": [
        "limited",
        "text",
        "images",
        "device",
        "device/parts",
        "device/cuda",
        "device/repack",
        "device/choice",
        "state",
        "execution",
        "sampling",
        "drafting",
        "requests",
        "cache",
        "scheduler",
        "receipt",
        "hub",
        "engine",
        "api",
        "__init__",
        "bench",
        "doctor",
        "audit",
        "server",
        "cli",
        "__main__",
    ],
}
# Longer, as it is a list: grids of block types.
TABLES = {"custom_ops/blocks/formats/grids.h"}
LINES_OF_A_FILE, LINES_OF_A_FUNCTION = 300, 60


def sources() -> list[Path]:
    """The sources of the checkout, relative to its root; what is built there is not among them."""
    kinds = ("*.py", "*.cc", "*.h", "*.cu", "*.cuh", "*.js")
    folders = [ROOT / folder for folder in (*ROOMS, "src", "tests", "tools", "examples")]
    return sorted(path.relative_to(ROOT) for folder in folders for kind in kinds for path in folder.rglob(kind))


def test_imports_follow_the_order_of_rooms() -> None:
    found = list(violations(import_graph(ROOT, ROOMS), ROOMS))
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("files", "sentences"),
    [
        ({"low/a.py": "", "high/b.py": "from trigraph.one.low import a"}, []),
        (
            {"low/a.py": "def f():\n    import trigraph.one.high.b", "high/b.py": ""},
            ["one/low/a.py imports one/high/b.py, but one/high is above one/low"],
        ),
        (
            {"low/a.py": "if TYPE_CHECKING:\n    from trigraph.two.c import D"},
            ["one/low/a.py imports two/c.py, but two/c is above one/low"],
        ),
        (
            {"low/a.py": "from trigraph.one.low.b import X", "low/b.py": "from trigraph.one.low import a"},
            ["a circle: one/low/a.py imports one/low/b.py, one/low/b.py imports one/low/a.py"],
        ),
        (
            {"low/__init__.py": "from trigraph.one.low.b import X", "low/b.py": "from trigraph.one.low import Y"},
            ["a circle: one/low/__init__.py imports one/low/b.py, one/low/b.py imports one/low/__init__.py"],
        ),
        (
            {
                "../two/d/v.py": "import trigraph.two.e.x",
                "../two/d/w.py": "",
                "../two/e/x.py": "",
                "../two/e/y.py": "import trigraph.two.d.w",
            },
            ["a circle: two/d/v.py imports two/e/x.py, two/e/y.py imports two/d/w.py"],
        ),
        (
            {"high/a.py": "from trigraph.one.high.attic.b import X", "high/attic/b.py": ""},
            ["one/high/a.py imports one/high/attic/b.py, but one/high/attic is above one/high"],
        ),
        ({"high/attic/b.py": "from trigraph.one.high import a", "high/out/c.py": "", "high/a.py": ""}, []),
        ({"new/a.py": ""}, ["one/new/a.py is in no room: give one/new its place in the order of one"]),
        ({"new.py": ""}, ["one/new.py is in no room: give one/new its place in the order of one"]),
    ],
)
def test_a_file_in_the_wrong_place_is_named(tmp_path: Path, files: dict[str, str], sentences: list[str]) -> None:
    for name, text in ({"../two/c.py": "D = 1"} | files).items():
        path = tmp_path / "one" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    rooms: dict[str, Sequence[str]] = {"one": ["low", "high", "high/attic"], "two": ["*"]}
    assert list(violations(import_graph(tmp_path, rooms), rooms)) == sentences


def test_no_file_is_long() -> None:
    lines = {path.as_posix(): (ROOT / path).read_text().count("\n") for path in sources()}
    assert {path for path, count in lines.items() if count > LINES_OF_A_FILE} == TABLES


def test_no_function_is_long() -> None:
    found = [sentence for path in sources() for sentence in long_functions(ROOT / path, LINES_OF_A_FUNCTION)]
    assert not found, "\n".join(found)


def test_lengths_of_functions(tmp_path: Path) -> None:
    python = "class A:\n    def short(self):\n        pass\n\n    def long(\n        self,\n    ):\n        pass\n"
    cpp = """\
namespace a {
int first = 1;

void Short(int x) {
  x = 1;
}

struct B {
  void Long(int x,
            int y) {
#if A
    x = 1;
  }
};
}  // namespace a
"""
    js = """\
export class A {
  short() {
    this.x = 1;
  }

  async long(x) {
    if (x) {
      this.x = 1;
    }
  }
}
"""
    cases = [("a.py", python, "long has 4"), ("a.cc", cpp, "void Long(int x, has 5"), ("a.js", js, "long(x) { has 5")]
    for name, text, expected in cases:
        (tmp_path / name).write_text(text)
        (sentence,) = long_functions(tmp_path / name, 3)
        assert sentence.endswith(f"{expected} lines")


@pytest.mark.parametrize("layer", [*ROOMS, "src/trigraph"])
def test_subpackages_are_typed(layer: str) -> None:
    assert (ROOT / layer / "py.typed").is_file()


def test_library_has_the_version_of_the_project() -> None:
    try:
        installed = version("trigraph")
    except PackageNotFoundError:
        pytest.skip("trigraph is not installed here: the library may come from a build by hand")
    assert installed == PROJECT["version"] == library_version()


def test_one_onnxruntime_is_required() -> None:
    wanted = [Requirement(text) for text in PROJECT["dependencies"] if text.startswith("onnxruntime")]
    machines = [("linux", "x86_64"), ("linux", "aarch64"), ("darwin", "arm64"), ("win32", "AMD64"), ("win32", "ARM64")]
    for system, machine in machines:
        here = dict(sys_platform=system, platform_machine=machine)
        chosen = [r.name for r in wanted if r.marker is None or r.marker.evaluate(here)]
        gpu = (system, machine) in (("linux", "x86_64"), ("win32", "AMD64"))
        assert chosen == ["onnxruntime-gpu" if gpu else "onnxruntime"], (system, machine)
