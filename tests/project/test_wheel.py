"""A wheel works outside the checkout, with no Python and no C++ of it in sight."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

from support.pages.bundle import page_bundle
from trigraph.runtime import Options, Sampling, load

ROOT = Path(__file__).parents[2]
PROMPT = "In the beginning"
PAGE = {".html", ".css", ".js", ".svg", ".txt", ".woff2"}

# The build shares its folder with an editable installation: it compiles what changed only.
pytestmark = pytest.mark.slow


def run(*command: str | Path, folder: Path, path: str = "") -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TRIGRAPH_")}
    environment |= {"PYTHONPATH": path} if path else {}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for module in ("pip", "scikit_build_core"):
        if find_spec(module) is None:
            pytest.skip(f"{module} is missing")
    page_bundle()
    folder = tmp_path_factory.mktemp("wheel")
    pip = (sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder)
    run(*pip, ROOT, folder=folder)
    (path,) = folder.glob("*.whl")
    return path


def test_content(wheel: Path) -> None:
    name, version, python, abi, platform = wheel.stem.split("-")
    assert (name, python, abi) == ("trigraph", "py3", "none") and platform != "any"
    with zipfile.ZipFile(wheel) as archive:
        files = set(archive.namelist())
        metadata = archive.read(f"trigraph-{version}.dist-info/METADATA").decode()
    packed = {path for path in files if path.startswith("trigraph/")}
    missing = {
        f"trigraph/{path.relative_to(ROOT).as_posix()}"
        for package in ("models", "exporter", "runtime", "custom_ops")
        for path in (ROOT / package).rglob("*")
        if path.suffix in {".py", ".gguf", ".json", ".typed"} | PAGE and path.name != "CMakeLists.txt"
    } - packed
    assert not missing
    assert {f"trigraph/{path.name}" for path in (ROOT / "src" / "trigraph").glob("*.*")} <= packed
    other = {".py", ".typed", ".md", ".gguf", ".jinja", ".json", ".so", ".dylib", ".dll"}
    assert {Path(path).suffix for path in packed} <= other | PAGE
    assert "trigraph/exporter/CONTRACT.md" in packed
    assert {f"trigraph/runtime/server/page/bundle/{name}" for name in ("libraries.js", "LICENSES.txt")} <= packed
    assert f"Version: {version}" in metadata.splitlines()


def test_export_and_generate(wheel: Path, tiny_gguf: Path, tmp_path: Path, operator_library: Path) -> None:
    target = tmp_path / "installed"
    run(sys.executable, "-m", "pip", "install", "--no-deps", "--target", target, wheel, folder=tmp_path)
    # Without `site` an editable installation of the checkout cannot step in; dependencies are found all the same.
    path = os.pathsep.join((str(target), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")))

    def python(program: str, *arguments: str) -> str:
        return run(sys.executable, "-S", "-c", program, *arguments, folder=tmp_path, path=path)

    def trigraph(*arguments: str) -> str:
        return python("from trigraph.runtime.cli.app import main; main()", *arguments)

    places = "import trigraph.runtime, trigraph.custom_ops as c; print(trigraph.runtime.__file__, c.library_path())"
    assert all(Path(place).is_relative_to(target) for place in python(places).split())
    assert python("import trigraph; print(trigraph.__file__, trigraph.load.__name__)").split() == [
        str(target / "trigraph" / "__init__.py"),
        "load",
    ]
    assert trigraph("--version").split() == ["trigraph", wheel.stem.split("-")[1]]
    trigraph("export", str(tiny_gguf), "-o", "package", "--copy-weights")
    answer = json.loads(trigraph("run", "package", "-p", PROMPT, "--raw", "-n", "24", "--temp", "0", "--json"))
    options = Options(Sampling(temperature=0), max_tokens=24, speculate=False)
    assert answer["text"] == load(tmp_path / "package").generate(PROMPT, options).run()
