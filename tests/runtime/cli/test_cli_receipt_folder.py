"""`trigraph verify FOLDER`: each receipt is judged by itself, whatever the others are."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from support.command import Run
from trigraph import runtime
from trigraph.models.errors import TrigraphError
from trigraph.models.tiny import TINY_GGUF
from trigraph.runtime import Receipt
from trigraph.runtime.cli import receipt_cases
from trigraph.runtime.receipt.receipt import ids_sha256

Write = Callable[..., Path]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "receipts").mkdir()
    return tmp_path / "receipts"


@pytest.fixture
def write(trigraph: Run, tiny_package: Path, folder: Path, tmp_path: Path) -> Write:
    """`write("a.json", model)`: a receipt of a short completion, or one forged of it with other fields."""
    made: dict[Path, Receipt] = {}

    def receipt(name: str, model: Path = tiny_package, prompt: Sequence[int] = (), **other: Any) -> Path:
        if model not in made:
            path = tmp_path / "made.json"
            asked = ("-p", "In the beginning", "--raw", "-n", 4, "-s", 3, "--ignore-eos")
            assert trigraph("run", model, *asked, "--receipt", path).status == 0
            made[model] = Receipt.read(path)
        found = made[model]
        if prompt:
            other |= {"prompt": tuple(prompt), "prompt_sha256": ids_sha256(prompt)}
        if "kv_type" in other:
            other["model"] = dataclasses.replace(found.model, kv_type=other.pop("kv_type"))
        dataclasses.replace(found, **other).write(folder / name)
        return folder / name

    return receipt


@pytest.fixture
def contexts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Of the engines that were loaded."""
    found: list[int] = []

    def load(*arguments: Any, **settings: Any) -> Any:
        found.append(settings["context"])
        return loaded(*arguments, **settings)

    loaded = runtime.load
    monkeypatch.setattr(receipt_cases, "load", load)
    return found


def lines(trigraph: Run, folder: Path, model: Path) -> tuple[int, dict[str, dict[str, Any]]]:
    done = trigraph("verify", folder, model, "--json")
    return done.status, {Path(line["file"]).name: line for line in map(json.loads, done.out.splitlines())}


def test_an_absurd_prompt_fails_alone(
    trigraph: Run, tiny_package: Path, folder: Path, write: Write, contexts: list[int]
) -> None:
    for name in ("a.json", "c.json"):
        write(name)
    absurd = write("b.json", prompt=[5] * 300_000)
    status, found = lines(trigraph, folder, tiny_package)
    assert status == 2 and [line.get("equal") for line in found.values()] == [True, None, True]
    assert "300,004 tokens of prompt and completion; the model was exported for at most" in found["b.json"]["error"]
    assert max(contexts) < 100
    done = trigraph("verify", absurd, tiny_package)
    assert done.status == 2 and f"error: {absurd}: has 300,004 tokens" in done.err


def test_models_are_loaded_as_receipts_ask_for(
    trigraph: Run, packages: Any, folder: Path, write: Write, contexts: list[int]
) -> None:
    """The first file is not the measure of the others, nor are forged ones, for which nothing is loaded."""
    write("a.json", packages("trained", "Q8_0", kv_type="f32"))
    for name in ("b.json", "c.json"):
        write(name)
    write("d.json", packages("trained", "Q8_0", activations="float32"))
    write("e.json", kv_type="f9")
    write("f.json", kv_type="q8_0")
    status, found = lines(trigraph, folder, TINY_GGUF)
    assert [name for name, line in found.items() if line.get("equal")] == ["a.json", "b.json", "c.json", "d.json"]
    assert status == 1 and not found["f.json"]["equal"]
    assert "f9" in found["e.json"]["error"]
    assert len(contexts) == 4


def test_an_engine_that_cannot_be_loaded_is_told_of_its_receipts(
    trigraph: Run, tiny_package: Path, folder: Path, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a GPU has no memory for the longest one."""
    write("a.json", prompt=[5] * 2000)
    write("b.json")

    def load(*arguments: Any, context: int, **settings: Any) -> Any:
        if context > 1000:
            raise TrigraphError(f"no memory for {context} tokens")
        return loaded(*arguments, context=context, **settings)

    loaded = runtime.load
    monkeypatch.setattr(receipt_cases, "load", load)
    monkeypatch.setattr(receipt_cases, "_SHORT", 512)
    status, found = lines(trigraph, folder, tiny_package)
    assert status == 2
    assert found["a.json"]["error"] == "no memory for 2004 tokens" and found["b.json"]["equal"]


def test_a_receipt_of_another_model_loads_nothing(
    trigraph: Run, packages: Any, tiny_package: Path, folder: Path, write: Write, contexts: list[int]
) -> None:
    path = write("a.json", kv_type="f32", prompt=[5] * 2000)
    done = trigraph("verify", folder, tiny_package)
    assert done.status == 2 and done.out.startswith(f"{path}: cannot be verified: the receipt is of model")
    assert not contexts


def test_what_is_wrong_with_the_model_is_said_once(trigraph: Run, folder: Path, write: Write, tmp_path: Path) -> None:
    shutil.copy(write("a.json"), folder / "b.json")
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF")
    for model in (broken, tmp_path / "missing" / "x.gguf"):
        done = trigraph("verify", folder, model)
        assert done.status == 2 and done.out == "" and done.err.startswith(f"error: {model}: ")
        assert done.err.count("\n") == 1
