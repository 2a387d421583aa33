"""What an installation and a checkout promise."""

import re
import tomllib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from trigraph.custom_ops import library_version

ROOT = Path(__file__).parents[1]
LAYERS = ["models", "custom_ops", "exporter", "runtime"]  # a folder imports only from those before it
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.mark.parametrize("layer", LAYERS)
def test_imports_follow_the_layers(layer: str) -> None:
    allowed = LAYERS[: LAYERS.index(layer) + 1]
    for path in sorted((ROOT / layer).rglob("*.py")):
        for found in re.findall(r"^\s*(?:from|import) trigraph\.(\w+)", path.read_text(), re.MULTILINE):
            assert found in allowed, f"{path.relative_to(ROOT)} imports trigraph.{found}"


@pytest.mark.parametrize("layer", LAYERS)
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
