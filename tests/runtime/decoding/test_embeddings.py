"""Embeddings: the hidden rows of a text, whatever way they are computed."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import numpy as np
import pytest

from support.oracles.llama import Llama
from support.servers.scripted import serving
from trigraph.models.tiny import TINY_GGUF
from trigraph.runtime import Engine, TrigraphError, load
from trigraph.runtime.server.settings import Settings

TEXT = "In the beginning God created the heaven and the earth."


@pytest.fixture(scope="module")
def engine(tiny_package: Path) -> Engine:
    return load(tiny_package, threads=1, chunk=16)


@pytest.fixture(scope="module")
def client(engine: Engine) -> Iterator[httpx.Client]:
    with serving(engine, Settings(model="tiny", port=0)) as address:
        yield httpx.Client(base_url=address)


def test_rows_are_those_of_prompts(engine: Engine) -> None:
    ids = engine.tokenizer.encode(TEXT)
    rows = engine.embed(ids, "none")
    assert rows.shape == (len(ids), len(engine.embed(TEXT))) and rows.dtype == np.float32
    for end in (1, 2, 8, 9, len(ids)):
        engine.cache.clear()
        assert (engine.embed(ids[:end]) == rows[end - 1]).all(), "prefilled, and not verified"
        assert (engine.embed(ids[:end]) == rows[end - 1]).all(), "from the cache"
    mean = engine.embed(TEXT, "mean")
    assert mean.dtype == np.float32 and np.allclose(mean, rows.mean(axis=0), atol=1e-6)


def test_short_and_wrong_texts(engine: Engine) -> None:
    assert (engine.embed([7], "mean") == engine.embed([7])).all()
    assert len(engine.embed([5] * (engine.context - 1), "none")) == engine.context - 1
    for wrong, message in (([], "0 tokens"), ([5] * engine.context, "takes at most"), ([engine.vocab], "token ids")):
        for pooling in ("last", "mean"):
            with pytest.raises(TrigraphError, match=message):
                engine.embed(wrong, pooling)
    with pytest.raises(TrigraphError, match="pooling is 'cls'; it must be one of last, mean, none"):
        engine.embed(TEXT, "cls")


def test_the_official_client(client: httpx.Client, engine: Engine) -> None:
    openai = pytest.importorskip("openai", reason="openai is not installed")
    official = openai.OpenAI(base_url=f"{client.base_url}/v1", api_key="none", max_retries=0)
    texts = [TEXT, "And the sea"]
    found = official.embeddings.create(model="tiny", input=texts)  # asks for base64
    for text, data in zip(texts, found.data, strict=True):
        row = engine.embed(text)
        assert math.isclose(np.linalg.norm(data.embedding), 1, rel_tol=1e-5)
        assert np.allclose(data.embedding, row / np.linalg.norm(row), atol=1e-6)
    assert found.usage.prompt_tokens == sum(len(engine.tokenizer.encode(text)) for text in texts)
    one = official.embeddings.create(model="tiny", input=engine.tokenizer.encode(TEXT), encoding_format="float")
    assert one.data[0].embedding == found.data[0].embedding and len(one.data) == 1


def test_fields(client: httpx.Client, engine: Engine) -> None:
    def asked(**fields: Any) -> httpx.Response:
        return client.post("/v1/embeddings", json={"input": TEXT, **fields})

    mean = engine.embed(TEXT, "mean")
    assert np.allclose(asked(pooling="mean").json()["data"][0]["embedding"], mean / np.linalg.norm(mean), atol=1e-6)
    encoded = asked(encoding_format="base64").json()["data"][0]["embedding"]
    assert np.frombuffer(base64.b64decode(encoded), "<f4").tolist() == asked().json()["data"][0]["embedding"]
    for fields, param in (
        (dict(input=[]), "input"),
        (dict(input=["a"] * 2049), "input"),
        (dict(input=[[1], [10**6]]), "input"),
        (dict(dimensions=4), "dimensions"),
        (dict(pooling="cls"), "pooling"),
    ):
        refused = asked(**fields)
        assert refused.status_code == 400 and refused.json()["error"]["param"] == param, refused.text
    assert client.post("/v1/embeddings", json={"input": [TEXT] * 70}).json()["data"][69]["index"] == 69


@pytest.mark.parametrize("pooling", ["last", "mean"])
def test_llama_cpp_agrees(engine: Engine, pooling: str) -> None:
    oracle = Llama(TINY_GGUF, pooling=pooling.upper())
    ids = engine.tokenizer.encode(TEXT)
    row = engine.embed(ids, pooling)
    cosine = float(oracle.embedding(ids) @ row) / np.linalg.norm(row)
    assert cosine > 0.995, "llama.cpp rounds activations to 8 bits"
