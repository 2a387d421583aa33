"""`trigraph doctor --device webgpu`: what it says of a GPU that is near, of one that is not, and of one that fails."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from support.command import Run
from trigraph.models.errors import TrigraphError
from trigraph.runtime.doctor import examine

_NEAR = {"distance": 1.1e-4, "changed_by": []}


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the process on a GPU that is not there says of the two models; an exception fails."""
    said: list[Any] = [_NEAR, _NEAR]
    run = examine._run

    def answered(module: str, device: str, folders: Iterable[Path], environment: Mapping[str, str]) -> Any:
        if module != "near":
            return run(module, device, folders, environment)
        assert device == "webgpu" and all((folder / "verify.onnx").exists() for folder in folders)
        if isinstance(said[0], Exception):
            raise said[0]
        return said

    monkeypatch.setattr(examine, "_run", answered)
    monkeypatch.setattr(examine, "open_devices", lambda name: [SimpleNamespace(name=name, arithmetic="another one")])
    monkeypatch.setattr(examine, "instruction_sets", tuple)
    monkeypatch.setattr(examine, "make_packages", lambda folder: {})
    return said


def test_near(device: list[Any], trigraph: Run) -> None:
    result = trigraph("doctor", "--device", "webgpu")
    assert result.status == 0
    assert result.out.splitlines()[2].startswith(
        "webgpu  near: logits within 1.1e-04 of the CPU's; no draft, cut or companion changes a bit"
    )


def test_far(device: list[Any], trigraph: Run) -> None:
    device[:] = [{"distance": 0.5, "changed_by": []}, {"distance": 1e-4, "changed_by": ["drafts", "companions"]}]
    result = trigraph("doctor", "--device", "webgpu")
    assert result.status == 1
    assert "differs in logits of the trained model, by 5.0e-01, bits of a dense model after drafts" in result.out
    assert "bits of a dense model after companions" in result.out


def test_failure(device: list[Any], trigraph: Run) -> None:
    device[0] = TrigraphError("the GPU went away")
    result = trigraph("doctor", "--device", "webgpu")
    assert (result.status, "does not run: the GPU went away" in result.out) == (1, True)
