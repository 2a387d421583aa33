"""A model's own suggestion of how to sample: from its file to the defaults of requests."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from support.command import Run, assert_one_line_error
from support.models.gguf_bytes import Entry
from support.models.random_gguf import changed
from trigraph.exporter import export, read_manifest
from trigraph.models.errors import TrigraphError
from trigraph.models.sampling import SuggestedSampling, suggested_sampling
from trigraph.runtime import Sampling, load


def suggesting(folder: Path, **values: Any) -> Path:
    def add(pairs: dict[str, Any], tensors: dict[str, Entry]) -> None:
        pairs.update({f"general.sampling.{key}": value for key, value in values.items()})

    return changed(folder, add)


def test_defaults_are_the_models(trigraph: Run, operator_library: Path, tmp_path: Path) -> None:
    source = suggesting(tmp_path, temp=0.5, top_k=7, top_p=0.75, min_p=0.25, penalty_repeat=1.5, penalty_last_n=9)
    engine = load(source)
    expected = Sampling(0.5, 7, 0.75, 0.25, 1.5, penalty_window=9)
    assert engine.sampling == expected
    request = engine.generate([1, 2])
    assert request.options.sampling == expected
    seen = trigraph("run", source, "-p", "a", "-n", 1, "--raw", "--json", "--top-k", 0, "--seed", 3)
    assert seen.status == 0


def test_a_model_without_a_suggestion(tiny_package: Path, operator_library: Path) -> None:
    assert load(tiny_package).sampling == Sampling()


def test_a_package_of_an_earlier_version(copied_package: Path, tmp_path: Path) -> None:
    package = tmp_path / "package"
    shutil.copytree(copied_package, package)
    manifest = json.loads((package / "manifest.json").read_text())
    assert set(manifest.pop("sampling").values()) == {None}
    (package / "manifest.json").write_text(json.dumps(manifest))
    assert read_manifest(package).sampling == SuggestedSampling()


@pytest.mark.parametrize("value", ["hot", True, [1], float("nan")])
def test_a_suggestion_that_is_no_number(value: Any) -> None:
    with pytest.raises(TrigraphError, match=r"general\.sampling\.temp is .*; it must be a number"):
        suggested_sampling({"general.sampling.temp": value})
    with pytest.raises(TrigraphError, match=r"general\.sampling\.top_k is .*; it must be an integer"):
        suggested_sampling({"general.sampling.top_k": 1.5})


def test_an_export_names_the_file_of_a_suggestion(tmp_path: Path) -> None:
    source = suggesting(tmp_path, temp=float("nan"))
    with pytest.raises(TrigraphError, match=re.escape(f"{source}: general.sampling.temp is nan")):
        export(source, tmp_path / "package")


def test_a_suggestion_out_of_range(trigraph: Run, operator_library: Path, tmp_path: Path) -> None:
    package = tmp_path / "package"
    export(suggesting(tmp_path, temp=-1.0), package)
    assert_one_line_error(
        trigraph("run", package, "-p", "a"), "general.sampling of the model's file", "temperature is -1"
    )
