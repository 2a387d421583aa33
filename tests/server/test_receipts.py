"""Receipts of the server's completions, by OpenAI's official client."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai
import pytest

from support.servers.dying_replicas import DyingReplicas
from support.servers.scripted import PLAIN_TEMPLATE, serving
from trigraph.models.errors import TrigraphError
from trigraph.runtime import Engine, Receipt, load
from trigraph.runtime.server.settings import Settings
from trigraph.runtime.text.template import ChatTemplate

MESSAGES = [{"role": "user", "content": "In the beginning"}]


@pytest.fixture(scope="module")
def engine(tiny_package: Path) -> Engine:
    model = load(tiny_package, threads=1).model
    return Engine(replace(model, template=ChatTemplate(PLAIN_TEMPLATE, {"eos_token": "\n"})))


@pytest.fixture(scope="module")
def other(tiny_package: Path) -> Engine:
    return load(tiny_package, threads=1, chunk=9, speculation=False)


@pytest.fixture(scope="module")
def client(engine: Engine) -> Iterator[Any]:
    with serving(engine) as url:
        yield openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)


def asked(client: Any, route: str, **fields: Any) -> list[dict[str, Any]]:
    """The choices of a request, as their last chunks have them in a stream."""
    extra = {"receipt": fields.pop("receipt")} if "receipt" in fields else {}
    create = client.completions.create if route == "completions" else client.chat.completions.create
    prompt = {"prompt": ["In the beginning", "And God"]} if route == "completions" else {"messages": MESSAGES}
    answer = create(model="tiny", **prompt, max_tokens=16, n=2, extra_body=extra, **fields)
    if not fields.get("stream"):
        return [choice.model_dump() for choice in answer.choices]
    chunks = [choice.model_dump() for chunk in answer for choice in chunk.choices]
    assert all("receipt" not in choice for choice in chunks if choice["finish_reason"] is None)
    return [choice for choice in chunks if choice["finish_reason"] is not None]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("route", ["completions", "chat"])
def test_each_choice_has_a_receipt(client: Any, other: Engine, route: str, stream: bool) -> None:
    choices = asked(client, route, stream=stream, receipt=True, seed=4)
    assert len(choices) == (4 if route == "completions" else 2)
    for number, choice in enumerate(choices):
        receipt = Receipt.parse(json.dumps(choice["receipt"]))
        assert receipt.options.seed == 4 + number % 2
        assert other.verify(receipt).equal
        if not stream:
            text = choice["text"] if route == "completions" else choice["message"]["content"]
            assert other.tokenizer.spell([*receipt.completion]).startswith(text)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("route", ["completions", "chat"])
def test_without_the_wish_there_is_none(client: Any, route: str, stream: bool) -> None:
    for fields in ({}, {"receipt": False}, {"receipt": None}):
        assert all("receipt" not in choice for choice in asked(client, route, stream=stream, **fields))


def test_a_private_receipt_and_wrong_wishes(client: Any, other: Engine) -> None:
    (choice, *_) = asked(client, "chat", receipt="private")
    receipt = Receipt.parse(json.dumps(choice["receipt"]))
    with pytest.raises(TrigraphError, match="give the prompt's token ids"):
        other.verify(receipt)
    wrong: Any
    for wrong in ("public", 2, {}):
        with pytest.raises(openai.BadRequestError, match="receipt"):
            asked(client, "chat", receipt=wrong)


def test_receipts_outlive_replicas(tiny_package: Path, other: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trigraph.runtime.server.cluster.remote_engine._FIRST_PAUSE", 0.0)
    monkeypatch.setattr("trigraph.runtime.server.cluster.replica._GAP", 0.0)
    replicas = DyingReplicas(load(tiny_package, threads=1))
    with serving(replicas.front()) as url:
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        choices = asked(client, "completions", receipt=True)
    assert replicas.losses
    for choice in choices:
        assert other.verify(Receipt.parse(json.dumps(choice["receipt"]))).equal


def test_the_server_signs(engine: Engine, tmp_path: Path) -> None:
    pytest.importorskip("cryptography", reason="cryptography is not installed: no signatures")
    from trigraph.runtime.receipt.signing import Signer, check_signature, read_public_key

    subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", tmp_path / "key"], check=True)
    subprocess.run(["openssl", "pkey", "-in", tmp_path / "key", "-pubout", "-out", tmp_path / "public"], check=True)
    with serving(engine, Settings(port=0, signer=Signer(tmp_path / "key"))) as url:
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        for wish in (True, "private"):
            for choice in asked(client, "completions", receipt=wish):
                receipt = Receipt.parse(json.dumps(choice["receipt"]))
                check_signature(receipt, read_public_key(tmp_path / "public"))
