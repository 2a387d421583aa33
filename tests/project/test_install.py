"""What installing promises: one ONNX Runtime, matching versions, units and container files that are read."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest
import typer
from packaging.requirements import Requirement
from packaging.version import Version

from requirements import requirements
from trigraph import custom_ops
from trigraph.models.errors import TrigraphError
from trigraph.runtime.cli.app import app
from trigraph.runtime.cli.arguments import ModelArguments
from trigraph.runtime.cli.config_file import ConfigFile
from trigraph.runtime.cli.sampling_arguments import SamplingArguments

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "examples" / "deploy"


def project(folder: str) -> dict[str, object]:
    content: dict[str, object] = tomllib.loads((ROOT / folder / "pyproject.toml").read_text())["project"]
    return content


def test_the_stand_in_for_onnxruntime_gpu() -> None:
    """It satisfies the requirement of trigraph, and asks for the same versions of onnxruntime."""
    ours, stand_in = project("."), project("packaging/cpu")
    wanted = {r.name: r for r in map(Requirement, ours["dependencies"]) if r.name.startswith("onnxruntime")}  # type: ignore[call-overload]
    assert stand_in["name"] == "onnxruntime-gpu"
    assert Version(str(stand_in["version"])) in wanted["onnxruntime-gpu"].specifier
    (asked,) = map(Requirement, stand_in["dependencies"])  # type: ignore[call-overload]
    assert (asked.name, asked.specifier) == ("onnxruntime", wanted["onnxruntime"].specifier)


def test_nothing_asks_an_index_for_a_name_that_is_not_ours() -> None:
    asking = re.compile(r"pip install [^\n`]*?(?<![./\w-])'?trigraph\b(?![-/.])")
    files = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    files += [
        file
        for folder in ("models", "exporter", "custom_ops", "runtime", "examples", "tools")
        for file in (ROOT / folder).rglob("*.py")
    ]
    told = {str(file.relative_to(ROOT)): asking.findall(file.read_text(encoding="utf-8")) for file in files}
    assert len(files) > 300 and not {name: found for name, found in told.items() if found}
    assert asking.search("pip install 'trigraph[serve]'") and asking.search("pip install trigraph")
    assert not asking.search("pip install './dist/trigraph-0.1.0.whl[serve]'")


def test_the_cuda_wheel_has_the_version_of_trigraph() -> None:
    ours, cuda = project("."), project("packaging/cuda")
    assert cuda["version"] == ours["version"] and cuda["dependencies"] == [f"trigraph=={ours['version']}"]


@pytest.mark.parametrize("folder", [".", "packaging/cuda"])
def test_wheels_bear_the_notice_of_the_grids(folder: str) -> None:
    names = project(folder)["license-files"]
    texts = [(ROOT / folder / name).read_text() for name in names]  # type: ignore[attr-defined]
    assert any("The ggml authors" in text for text in texts) and any("Permission is hereby" in text for text in texts)


def test_another_version_of_the_cuda_wheel_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"trigraph": "0.1.0", "trigraph-cuda": "0.1.1"}
    monkeypatch.setattr(custom_ops, "version", versions.__getitem__)
    with pytest.raises(
        TrigraphError, match=r"trigraph-cuda is of version 0\.1\.1 and trigraph of 0\.1\.0; install the"
    ):
        custom_ops.library_path("cuda")

    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(custom_ops, "version", missing)
    monkeypatch.setenv("TRIGRAPH_LIBRARY_DIR", "/nowhere")
    with pytest.raises(TrigraphError, match="TRIGRAPH_LIBRARY_DIR is /nowhere"):
        custom_ops.library_path("cuda")


def test_the_systemd_unit(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    unit = tmp_path / "trigraph.service"
    unit.write_text((DEPLOY / "trigraph.service").read_text().replace("/opt/trigraph/bin/trigraph", sys.executable))
    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_example_configuration() -> None:
    group: Any = typer.main.get_command(app)
    command = group.commands["serve"]
    context = command.context_class(command, info_name="serve")
    options = [name[2:] for p in command.get_params(context) for name in p.opts if name.startswith("--")]
    config = ConfigFile.read(DEPLOY / "server.toml")
    read = {name: value for name, value, _ in config.options(options)}
    assert (read["port"], read["models-memory"]) == (8080, "40G")
    models = config.models(ModelArguments(), SamplingArguments())
    assert models["large"][0].context == 65536 and str(models["large"][0].model).endswith(":Q4_K_M")
    assert models["small"][1].temperature == 0.2


@pytest.mark.parametrize("name", ["Dockerfile", "Dockerfile.cuda"])
def test_container_files_name_files_that_exist(name: str) -> None:
    for line in (DEPLOY / name).read_text().splitlines():
        words = line.split()
        if words[:1] == ["COPY"] and not words[1].startswith("--from"):
            assert all((ROOT / source).exists() for source in words[1:-1]), line


def test_requirements_of_an_extra_are_those_of_the_extras_that_it_names() -> None:
    table = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    listed = requirements(table, "serve")
    assert set(table["dependencies"]) < set(listed) and not any(each.startswith("trigraph") for each in listed)
    extras = table["optional-dependencies"]
    for name in ("grammar", "hub", "images"):
        assert set(extras[name]) <= set(listed)
    assert "uvicorn>=0.40" in listed and not set(extras["ray"]) & set(listed)
