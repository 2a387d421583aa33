"""`trigraph run --receipt` and `trigraph verify`."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import pytest

from support.command import Run
from trigraph.runtime import Receipt

PROMPT = ("-p", "In the beginning", "--raw", "-n", "12", "-s", "3", "--ignore-eos")


@pytest.fixture
def receipt(trigraph: Run, tiny_package: Path, tmp_path: Path) -> Path:
    path = tmp_path / "receipt.json"
    done = trigraph("run", tiny_package, *PROMPT, "--receipt", path)
    assert done.status == 0 and path.exists()
    return path


def test_a_receipt_is_equal(trigraph: Run, tiny_package: Path, receipt: Path) -> None:
    done = trigraph("verify", receipt, tiny_package)
    assert (done.status, done.out) == (0, "equal: 12 tokens, and the logits that they were chosen from\n")
    found = json.loads(trigraph("verify", receipt, tiny_package, "--json").out)
    assert found == {"tokens": 12, "difference": None, "token": None, "equal": True, "signed_by": None}


def test_another_model_and_damage_end_with_status_2(
    trigraph: Run, packages: object, tiny_package: Path, receipt: Path
) -> None:
    other = packages("trained", "Q8_0", kv_type="f32")  # type: ignore[operator]
    done = trigraph("verify", receipt, other)
    assert done.status == 2 and "the receipt is of model" in done.err
    receipt.write_text(receipt.read_text().replace('"seed": 3', '"seed": 4'))
    done = trigraph("verify", receipt, tiny_package)
    assert done.status == 2 and "was changed since it was written" in done.err


def test_a_difference_ends_with_status_1(trigraph: Run, tiny_package: Path, receipt: Path) -> None:
    read = Receipt.read(receipt)
    dataclasses.replace(read, completion=(5, *read.completion[1:])).write(receipt)
    done = trigraph("verify", receipt, tiny_package)
    assert done.status == 1 and done.out.startswith("different: token 0 of the completion is 5")


def test_private_receipts(trigraph: Run, tiny_package: Path, receipt: Path, tmp_path: Path) -> None:
    private, ids = tmp_path / "private.json", tmp_path / "ids.json"
    trigraph("run", tiny_package, *PROMPT, "--receipt", private, "--receipt-private")
    assert "prompt" not in json.loads(private.read_text())
    done = trigraph("verify", private, tiny_package)
    assert done.status == 2 and "give the prompt's token ids with --prompt" in done.err
    ids.write_text(json.dumps(json.loads(receipt.read_text())["prompt"]))
    for prompt in (ids, receipt):
        assert trigraph("verify", private, tiny_package, "--prompt", prompt).status == 0
    for wrong in ("[1, 2]", "{", '{"prompt": ["a"]}', "[1.5]"):
        ids.write_text(wrong)
        assert trigraph("verify", private, tiny_package, "--prompt", ids).status == 2


def test_what_cannot_be_is_said_before_anything_is_computed(trigraph: Run, tiny_package: Path, tmp_path: Path) -> None:
    cases = {
        ("-p", "x", "--receipt", tmp_path / "missing" / "r.json"): "cannot be written",
        ("-p", "x", "--receipt-private"): "need --receipt FILE",
        ("-p", "x", "--receipt", tmp_path / "r.json", "--receipt-key", tmp_path / "k"): "k: cannot be read",
    }
    for arguments, sentence in cases.items():
        done = trigraph("run", tiny_package, *arguments)
        assert done.status == 2 and sentence in done.err, done
    done = trigraph("run", tiny_package, "--receipt", tmp_path / "r.json", terminal=True)
    assert done.status == 2 and "--receipt needs a prompt" in done.err


def test_a_folder_of_receipts(trigraph: Run, tiny_package: Path, receipt: Path, tmp_path: Path) -> None:
    """The model is loaded once; what differs, and what cannot be told, has a line of its own."""
    folder = tmp_path / "receipts"
    folder.mkdir()
    done = trigraph("verify", folder, tiny_package)
    assert done.status == 2 and "has no receipts; their names would end with .json" in done.err
    for name in ("a", "b"):
        shutil.copy(receipt, folder / f"{name}.json")
    done = trigraph("verify", folder, tiny_package)
    assert (done.status, done.out) == (0, "equal: 2 of 2 receipts, 24 tokens\n")
    Receipt.read(receipt).private().write(folder / "c.json")
    done = trigraph("verify", folder, tiny_package)
    private = f"{folder / 'c.json'}: cannot be verified: is private, without its prompt; give the prompt's token ids"
    assert (
        done.status == 2 and done.out.startswith(private) and done.out.endswith("equal: 2 of 3 receipts, 24 tokens\n")
    )
    read = Receipt.read(receipt)
    dataclasses.replace(read, completion=(5, *read.completion[1:])).write(folder / "b.json")
    lines = trigraph("verify", folder, tiny_package, "--json")
    found = {Path(line["file"]).stem: line for line in map(json.loads, lines.out.splitlines())}
    assert lines.status == 1 and found["a"]["equal"] and found["b"]["token"] == 0 and "private" in found["c"]["error"]
    done = trigraph("verify", folder, tiny_package, "--prompt", receipt)
    assert done.status == 2 and "--prompt is of one receipt" in done.err
