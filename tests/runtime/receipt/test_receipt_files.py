"""Files that are not receipts, or no longer what was written, and flipped bits of all that a receipt is of."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFReader

from support.texts.hostile_grammars import fan
from trigraph.exporter import read_manifest
from trigraph.models.decode import decode
from trigraph.models.errors import TrigraphError
from trigraph.models.tiny import TINY_GGUF
from trigraph.runtime import Engine, Options, Receipt, Sampling, load

FLIPS = 1000
SAMPLED = Sampling(1.1, top_k=0, top_p=1.0, seed=5)


@pytest.fixture(scope="module")
def engine(tiny_package: Path) -> Engine:
    return load(tiny_package, threads=1, context=64)


@pytest.fixture(scope="module")
def receipt(engine: Engine) -> Receipt:
    request = engine.generate("And God said", Options(SAMPLED, 24, ignore_eos=True, stop=("é",), receipt=True))
    request.run()
    return engine.receipt(request)


def sealed(content: Any) -> str:
    """JSON with the hash that the reference describes."""
    if isinstance(content, dict):
        rest = {name: value for name, value in content.items() if name not in ("prompt", "sha256", "signature")}
        text = json.dumps(rest, sort_keys=True, separators=(",", ":"))
        content = {**content, "sha256": hashlib.sha256(text.encode()).hexdigest()}
    return json.dumps(content)


def with_field(name: str, value: Any) -> Callable[[dict[str, Any]], Any]:
    """A change of a field; `options.seed` is a field of a field, and a function changes what is there."""

    def change(content: dict[str, Any]) -> dict[str, Any]:
        place, *path = content, *name.split(".")
        for part in path[:-1]:
            place = place[part]
        place[path[-1]] = value(place[path[-1]]) if callable(value) else value
        return content

    return change


def without(name: str) -> Callable[[dict[str, Any]], Any]:
    return lambda content: {key: value for key, value in content.items() if key != name}


BAD: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "a list": (lambda content: [content], "is not a receipt"),
    "another format": (with_field("format", "trigraph session"), "is not a receipt"),
    "a later version": (with_field("version", 3), "version is 3, this program reads 1 and 2"),
    "no version": (without("version"), "version is None"),
    "another field": (with_field("text", "In the"), "has fields that receipts of version 1 do not have"),
    "another option": (with_field("options.mirostat", 2), "has fields that receipts of version 1 do not have"),
    "no rows": (without("rows"), "key 'rows' is missing"),
    "no model": (without("model"), "key 'model' is missing"),
    "a model that is text": (with_field("model", "tiny"), "key 'model' is 'tiny', which has the wrong type"),
    "options that are a list": (with_field("options", []), "key 'options' is"),
    "text for a number": (with_field("options.top_k", "20"), "key 'options.top_k' is '20', which has the wrong type"),
    "truth for a number": (with_field("options.top_k", True), "key 'options.top_k' is"),
    "a fraction of a token": (with_field("completion", [1.5]), "key 'completion.0.' is '1.5'"),
    "a bias of three": (with_field("options.logit_bias", [[1, 2.0, 3]]), "key 'options.logit_bias.0.' is"),
    "too many biases": (with_field("options.logit_bias", [[7, 1.0]] * 65_537), "logit_bias has more than 65,536 items"),
    "a huge token": (with_field("completion", lambda ids: [*ids[1:], 10**4000]), "is not a token id"),
    "a negative token": (with_field("prompt", [-1]), "-1 is not a token id"),
    "another prompt": (with_field("prompt", [1, 2]), "prompt_sha256 differs"),
    "a row too few": (with_field("rows", lambda rows: rows[8:]), "rows must have 8 hexadecimal digits for each"),
    "rows of other digits": (with_field("rows", lambda rows: "x" * len(rows)), "rows must have 8 hexadecimal"),
    "a short hash": (with_field("logits_sha256", "00"), "logits_sha256 is '00'; it must have 64"),
    "an unknown end": (with_field("finish_reason", "tired"), "finish_reason is 'tired'; it must be one of stop,"),
    "a signature of one key": (with_field("signature", {"public_key": "00"}), "key 'signature.value' is missing"),
    "a short signature": (
        with_field("signature", {"public_key": "00", "value": "00"}),
        "signature is not a key of 64 and a value of 128",
    ),
}
UNUSABLE: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "temperature": (with_field("options.temperature", -1.0), "temperature is -1.0; it must be 0 or more"),
    "huge temperature": (with_field("options.temperature", 10**400), "a number of 1329 bits; it must be a number"),
    "seed": (with_field("options.seed", 2**64), "seed is 18446744073709551616"),
    "bias": (with_field("options.logit_bias", [[10**9, 1.0]]), "logit_bias is for token 1000000000"),
    "constraint": (with_field("options.constraint", {"type": "poem", "text": ""}), "constraint.type is 'poem'"),
    "grammar": (with_field("options.constraint", {"type": "regex", "text": "("}), "the regular expression cannot be"),
    "schema": (
        with_field("options.constraint", {"type": "json_schema", "text": json.dumps(fan("items"))}),
        "the JSON schema cannot be used: it is nested too deeply",
    ),
    "stop": (with_field("options.stop", ["a" * 40_000] * 2), "stop has 80,000 characters in all; it must have at most"),
    "budget": (with_field("options.reasoning_budget", -1), "reasoning_budget is -1"),
    "token": (with_field("completion", lambda ids: [*ids[1:], 10**9]), "token ids must be from 0 to 2047"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_receipts(receipt: Receipt, name: str) -> None:
    change, sentence = BAD[name]
    with pytest.raises(TrigraphError, match=sentence):
        Receipt.parse(sealed(change(json.loads(receipt.as_text()))))


@pytest.mark.parametrize(
    ("name", "items"),
    [("prompt", [7]), ("options.stop_tokens", [7]), ("options.stop", ["a"]), ("options.logit_bias", [[7, None]])],
)
def test_long_lists_are_read_at_once(
    receipt: Receipt, name: str, items: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not an item at a time: files of eight megabytes may be forged."""
    text, steps = sealed(with_field(name, items * 1000)(json.loads(receipt.as_text()))), 0

    def counting(function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any) -> Any:
            nonlocal steps
            steps += 1
            return function(*arguments)

        return counted

    monkeypatch.setattr("trigraph.models.decode.decode", counting(decode))
    monkeypatch.setattr("copy.deepcopy", counting(copy.deepcopy))
    if name == "prompt":
        with pytest.raises(TrigraphError, match="prompt_sha256 differs"):
            Receipt.parse(text)
    else:
        assert Receipt.parse(text)
    assert 0 < steps < 100


def test_a_wrong_item_of_a_long_list_is_found_at_once(receipt: Receipt, monkeypatch: pytest.MonkeyPatch) -> None:
    text, steps = sealed(with_field("prompt", [7] * 100_000 + ["a"])(json.loads(receipt.as_text()))), 0

    def counted(*arguments: Any) -> Any:
        nonlocal steps
        steps += 1
        return decode(*arguments)

    monkeypatch.setattr("trigraph.models.decode.decode", counted)
    with pytest.raises(TrigraphError, match=r"key 'prompt.100000.' is 'a'"):
        Receipt.parse(text)
    assert steps < 5000


@pytest.mark.parametrize("name", UNUSABLE)
def test_receipts_that_no_model_could_give(engine: Engine, receipt: Receipt, name: str) -> None:
    change, sentence = UNUSABLE[name]
    read = Receipt.parse(sealed(change(json.loads(receipt.as_text()))))
    if name in ("grammar", "schema"):
        pytest.importorskip("llguidance", reason="llguidance is not installed: no constraints")
    with pytest.raises(TrigraphError, match=sentence):
        engine.verify(read)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "is not valid JSON"),
        ("{", "is not valid JSON"),
        ("[" * 100_000, "is not valid JSON"),
        ('{"version": ' + "9" * 5000 + "}", "is not valid JSON"),
        ('{"a": NaN}', "NaN is not a number"),
        ('{"seed": 1, "seed": 2}', "an object has a field twice"),
        ("{" + ", ".join(f'"{number}": 1' for number in range(65)) + "}", "more objects or fields than a receipt"),
        ('{"prompt": [' + "{}, " * 1000 + "{}]}", "more objects or fields than a receipt"),
        ("null", "is not a receipt"),
        ('{"format": "trigraph receipt", "version": {}}', "version is {}"),
    ],
)
def test_texts_that_are_not_receipts(text: str, sentence: str) -> None:
    with pytest.raises(TrigraphError, match=sentence):
        Receipt.parse(text, "file.json")


def test_files_that_are_not_receipts(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(b" " * ((8 << 20) + 1))
    (tmp_path / "bytes").write_bytes(b"\xff\xfe{}")
    for name, sentence in {"missing": "cannot be read", "large": "more than 8 MiB", "bytes": "is not"}.items():
        with pytest.raises(TrigraphError, match=f"{name}: .*{sentence}"):
            Receipt.read(tmp_path / name)
    with pytest.raises(TrigraphError, match="is not a file"):
        Receipt.read(tmp_path)


def test_a_receipt_as_the_reference_describes_it_is_read(receipt: Receipt) -> None:
    assert Receipt.parse(sealed(json.loads(receipt.as_text()))) == receipt


def test_a_flipped_bit_of_the_file_is_told(receipt: Receipt) -> None:
    data, rng = receipt.as_text().encode(), random.Random(1)
    for _ in range(FLIPS):
        place = rng.randrange(8 * len(data))
        with pytest.raises(TrigraphError):
            Receipt.parse(flipped(data, place))


@pytest.mark.slow
def test_a_flipped_bit_of_the_weights_is_told(copied_package: Path, tmp_path: Path) -> None:
    """A file of up to 16 MiB is hashed whole; of a larger one, see docs/reference/receipts.md."""
    package, rng = tmp_path / "package", random.Random(2)
    shutil.copytree(copied_package, package)
    (file,) = package.glob("*.gguf")
    size = file.stat().st_size
    with open(file, "r+b") as weights:
        for _ in range(FLIPS):
            place = rng.randrange(8 * size)
            flip(weights, place)
            with pytest.raises(TrigraphError):
                read_manifest(package)
            flip(weights, place)
    read_manifest(package)


@pytest.mark.slow
@pytest.mark.parametrize("field", ["prompt", "completion", "options"])
def test_a_flipped_bit_is_told_by_computing(engine: Engine, receipt: Receipt, field: str) -> None:
    """Whoever changed it has computed all hashes of the file anew."""
    rng = random.Random(3)
    vocabulary = engine.vocab.bit_length()
    for number in range(FLIPS):
        content = json.loads(receipt.as_text())
        if field == "options":
            content["options"]["seed"] ^= 1 << number % 64
            content["options"]["top_k"] = 1 + number // 64
        else:
            ids, bit = content[field], 1 << rng.randrange(vocabulary)
            ids[rng.randrange(len(ids))] ^= bit
        if field == "prompt":
            data = b"".join(token.to_bytes(8, "little") for token in content["prompt"])
            content["prompt_sha256"] = hashlib.sha256(data).hexdigest()
        try:
            assert not engine.verify(Receipt.parse(sealed(content))).equal, content
        except TrigraphError:  # of no token of the vocabulary
            assert max(*content["prompt"], *content["completion"]) >= engine.vocab


@pytest.mark.slow
def test_a_flipped_bit_of_weights_in_use_is_told_by_computing(receipt: Receipt, tmp_path: Path) -> None:
    """Where the model claims to be the same, as a larger one may whose hashed parts are.

    Bits of the exponent in a norm that every logit depends on; a low bit of one may be lost when activations are
    rounded to 8 bits, and the model is the same for this text.
    """
    tensor = next(tensor for tensor in GGUFReader(TINY_GGUF).tensors if tensor.name == "output_norm.weight")
    data, rng = TINY_GGUF.read_bytes(), random.Random(4)
    for _ in range(20):
        number = rng.randrange(tensor.n_elements)
        (tmp_path / "model.gguf").write_bytes(flipped(data, 8 * (tensor.data_offset + 4 * number) + 25))
        model = load(tmp_path / "model.gguf", threads=1, context=64).model
        forger = Engine(dataclasses.replace(model, identity=receipt.model))
        assert not forger.verify(receipt).equal, number
        forger.close()


def flipped(data: bytes, place: int) -> bytes:
    """The bytes with bit number `place` flipped."""
    return data[: place // 8] + bytes([data[place // 8] ^ 1 << place % 8]) + data[place // 8 + 1 :]


def flip(file: Any, place: int) -> None:
    file.seek(place // 8)
    byte = file.read(1)[0]
    file.seek(place // 8)
    file.write(bytes([byte ^ 1 << place % 8]))
    file.flush()
