"""What clients of llama-server send, in each form that it takes, and what they read of an error."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import numpy as np
import pytest

from support.servers.scripted import serving
from trigraph.runtime import Engine, Options, Sampling, load
from trigraph.runtime.receipt.receipt import Receipt
from trigraph.runtime.server.app import ServedModel
from trigraph.runtime.server.llama.completion import native_completion
from trigraph.runtime.server.routes import _JOBS
from trigraph.runtime.server.settings import Settings

PROMPT = "In the beginning"
ASKED = {"prompt": PROMPT, "n_predict": 3, "temperature": 0, "return_tokens": True}
MESSAGES = [{"role": "user", "content": "Hi"}]
SETTINGS = Settings(model="tiny", aliases=("small", "fast"), path="models/tiny.gguf", port=0)


@pytest.fixture(scope="module")
def engine(tiny_package: Path) -> Engine:
    return load(tiny_package, threads=1, context=256)


@pytest.fixture(scope="module")
def client(engine: Engine) -> Iterator[httpx.Client]:
    with serving(engine, SETTINGS) as address, httpx.Client(base_url=address, timeout=60) as made:
        yield made


def text(part: str) -> dict[str, str]:
    return {"type": "text", "text": part}


PARTS = {"content": [text("In the "), text("beginning")]}


def ids(engine: Engine) -> list[int]:
    return engine.tokenizer.encode(PROMPT)


def forms(engine: Engine) -> list[tuple[Any, int]]:
    """Prompts that are all the same text, and how many there are; 0: one, which is not in a list."""
    first, *others = ids(engine)
    rest = engine.tokenizer.decode(others)
    mixed = [first, rest]
    return [
        (PROMPT, 0),
        ([PROMPT], 1),
        (ids(engine), 0),
        ([ids(engine), PROMPT], 2),
        (mixed, 0),
        ([mixed, mixed], 2),
        ({"prompt_string": PROMPT}, 0),
        ([PROMPT, {"prompt_string": PROMPT}, ids(engine), mixed, PARTS], 5),
        (PARTS, 0),
        ({"prompt_string": PROMPT, "multimodal_data": []}, 0),
    ]


WRONG_PROMPTS: list[Any] = [
    [],
    [[]],
    "",
    {},
    {"content": "a string"},
    {"content": []},
    {"content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]},
    {"content": [{"type": "text"}]},
    {"prompt_string": "a", "content": [text("a")]},
    {"prompt_string": "a <__media__>", "multimodal_data": ["AAAA"]},
    [1, {"prompt_string": "a"}],
    [1, [2]],
    [10**9],
    [-1],
    1.5,
    None,
]


def test_a_text_beside_no_parts_is_named(client: httpx.Client) -> None:
    refused = client.post("/completion", json={"prompt": {"prompt_string": "a", "content": []}})
    assert "both of prompt_string and content" in refused.json()["error"]["message"]


def test_every_form_of_a_prompt(client: httpx.Client, engine: Engine) -> None:
    expected = engine.generate(PROMPT, Options(Sampling(temperature=0), max_tokens=3)).run()
    row = engine.embed(PROMPT)
    row = row / np.linalg.norm(row)
    for prompt, count in forms(engine):
        found = client.post("/completion", json={**ASKED, "prompt": prompt}).json()
        assert isinstance(found, list) == (count > 0), prompt
        for each in found if count else [found]:
            assert each["content"] == expected, prompt
        completed = client.post("/v1/completions", json={"prompt": prompt, "max_tokens": 3, "temperature": 0}).json()
        assert [choice["text"] for choice in completed["choices"]] == [expected] * max(1, count), prompt
        embedded = client.post("/v1/embeddings", json={"input": prompt}).json()
        assert len(embedded["data"]) == max(1, count) and embedded["usage"]["prompt_tokens"] == max(1, count) * len(
            ids(engine)
        )
        for path, field in (("/embeddings", "input"), ("/embedding", "content")):
            rows = client.post(path, json={field: prompt}).json()
            assert [entry["index"] for entry in rows] == [*range(max(1, count))]
            for entry, data in zip(rows, embedded["data"], strict=True):
                assert entry["embedding"] == [data["embedding"]] and np.allclose(data["embedding"], row, atol=1e-6)
    for prompt in WRONG_PROMPTS:
        for path, field in (
            *(("/completion", "prompt"), ("/v1/completions", "prompt"), ("/v1/embeddings", "input")),
            ("/embedding", "content"),
        ):
            refused = client.post(path, json={field: prompt})
            error = refused.json().get("error")
            assert refused.status_code == 400 and (error["param"] or field).startswith(field), (path, prompt)


def test_embeddings_as_they_are(client: httpx.Client, engine: Engine) -> None:
    for pooling in ("last", "mean"):
        asked = {"content": PROMPT, "pooling": pooling, "embd_normalize": -1}
        (found,) = client.post("/embedding", json=asked).json()
        assert np.array_equal(np.float32(found["embedding"][0]), engine.embed(PROMPT, pooling))
    for wrong in ({"embd_normalize": 3}, {"pooling": "none"}, {"input": None, "content": None}):
        assert client.post("/embedding", json={"content": PROMPT, **wrong}).status_code == 400


def test_biases_of_texts(client: httpx.Client) -> None:
    def tokens(bias: Any) -> list[int]:
        found = client.post("/completion", json={**ASKED, "logit_bias": bias}).json()
        assert "tokens" in found, found
        return list(found["tokens"])

    plain = client.post("/completion", json=ASKED).json()["tokens"]
    wine = client.post("/tokenize", json={"content": " wine"}).json()["tokens"]
    assert set(tokens({" wine": 100})) <= set(wine)
    assert tokens({" wine": 100}) == tokens([[" wine", 100]]) == tokens({str(token): 100 for token in wine})
    spelt = client.post("/detokenize", json={"tokens": plain[:1]}).json()["content"]
    for banned in ({spelt: False}, {str(plain[0]): False}, [[spelt, False]], {spelt: -100, str(plain[0]): -100}):
        assert tokens(banned)[0] != plain[0]
    assert tokens({}) == tokens([]) == plain
    for wrong in ({"": 1}, [["", 1]], {" wine": True}, {" wine": None}, {" wine": "x"}, {"9" * 18: 1}):
        refused = client.post("/completion", json={**ASKED, "logit_bias": wrong})
        assert refused.status_code == 400 and "logit_bias" in refused.json()["error"]["message"], wrong
    for many in ({f"a{i}": 1 for i in range(10_001)}, [[f"a{i}", 1] for i in range(10_001)]):
        refused = client.post("/completion", json={**ASKED, "logit_bias": many})
        assert refused.status_code == 400 and "10,001 texts" in refused.json()["error"]["message"]
    long = client.post("/completion", json={**ASKED, "logit_bias": {300_000 * "a ": 1}})
    assert long.status_code == 400 and "100,000 tokens" in long.json()["error"]["message"]


@pytest.mark.parametrize(
    ("bias", "told"),
    [
        (None, []),
        ({"5": 2}, [{"token": 5, "bias": 2.0}]),
        ([[5, False], [6, -1.5]], [{"token": 5, "bias": None}, {"token": 6, "bias": -1.5}]),
    ],
)
def test_biases_are_told(client: httpx.Client, bias: Any, told: list[dict[str, Any]]) -> None:
    found = client.post("/completion", json={**ASKED, "n_predict": 1, "logit_bias": bias}).json()
    assert found["generation_settings"]["logit_bias"] == told


def test_choices_share_what_is_told_of_biases(engine: Engine) -> None:
    """Those of 128 choices took three gigabytes."""
    body = json.dumps({**ASKED, "n_predict": 0, "n": 2, "logit_bias": {"5": 2}}).encode()
    first, second = native_completion(ServedModel(engine, SETTINGS), body).written()
    assert first["generation_settings"]["logit_bias"] is second["generation_settings"]["logit_bias"]


LONG = 400 * "a "
TOO_LONG: dict[str, dict[str, Any]] = {
    "/completion": {"prompt": LONG},
    "/completions": {"prompt": [PROMPT, LONG]},
    "/embedding": {"content": LONG},
    "/embeddings": {"input": [LONG]},
    "/chat/completions": {"messages": [{"role": "user", "content": LONG}]},
    "/v1/completions": {"prompt": LONG, "stream": True},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": LONG}], "stream": True},
    "/v1/embeddings": {"input": LONG},
    "/v1/responses": {"input": LONG},
}


@pytest.mark.parametrize("path", TOO_LONG)
def test_a_prompt_beyond_the_context(client: httpx.Client, path: str) -> None:
    refused = client.post(path, json=TOO_LONG[path])
    error = refused.json()["error"]
    assert refused.status_code == 400 and error["code"] == "context_length_exceeded"
    assert error["n_ctx"] == 256 and error["n_prompt_tokens"] > 400
    if path.startswith("/v1/"):
        assert error["type"] == "invalid_request_error" and "maximum context length is 256" in error["message"]
    else:
        assert error["type"] == "exceed_context_size_error"
        assert "exceeds the available context size (256 tokens)" in error["message"]


RECEIPTS: dict[str, tuple[dict[str, Any], bool]] = {
    "/v1/chat/completions": ({"messages": MESSAGES, "max_tokens": 3}, True),
    "/v1/completions": ({"prompt": "a", "max_tokens": 3}, True),
    "/completion": ({"prompt": "a", "n_predict": 3}, True),
    "/infill": ({"input_prefix": "a", "input_suffix": "b"}, False),  # this vocabulary has no tokens for it
    "/v1/responses": ({"input": "a"}, False),
    "/v1/messages": ({"messages": MESSAGES, "max_tokens": 3}, False),
    "/v1/embeddings": ({"input": "a"}, False),
    "/embedding": ({"content": "a"}, False),
}


def test_receipts_are_given_or_refused(client: httpx.Client, engine: Engine) -> None:
    assert RECEIPTS.keys() == _JOBS.keys(), "a new route gives receipts, or refuses to"
    for path, (body, gives) in RECEIPTS.items():
        answer = client.post(path, json={**body, "receipt": True})
        assert (answer.status_code == 200) == gives, (path, answer.text)
        if gives:
            answered = answer.json()
            receipt = Receipt.parse(json.dumps(answered.get("choices", [answered])[0]["receipt"]))
            assert len(receipt.completion) == 3 and engine.verify(receipt).equal
        elif path != "/infill":
            assert "receipt is" in answer.json()["error"]["message"]
        if path != "/infill":
            assert client.post(path, json={**body, "receipt": False}).status_code == 200
    private = client.post("/completion", json={"prompt": "secret", "n_predict": 3, "receipt": "private"}).json()
    assert "secret" not in json.dumps(private["receipt"]) and not private["receipt"].get("prompt")


def test_counts_of_a_chat(client: httpx.Client) -> None:
    for path in ("/v1/chat/completions", "/chat/completions"):
        for messages in (MESSAGES, [*MESSAGES, {"role": "assistant", "content": "Hello"}]):
            used = client.post(path, json={"messages": messages, "max_tokens": 1}).json()["usage"]["prompt_tokens"]
            counted = client.post(f"{path}/input_tokens", json={"messages": messages, "temperature": 0}).json()
            assert counted == {"object": "response.input_tokens", "input_tokens": used}
    long = {"messages": [{"role": "user", "content": LONG}]}
    assert client.post("/v1/chat/completions/input_tokens", json=long).json()["input_tokens"] > 400
    assert client.post("/v1/chat/completions/input_tokens", json={"messages": []}).status_code == 400


def test_properties(client: httpx.Client, engine: Engine) -> None:
    found = client.get("/props").json()
    assert found["model_path"] == "models/tiny.gguf" and found["model_alias"] == "tiny"
    assert found["default_generation_settings"]["params"]["seed"] == -1 and found["is_sleeping"] is False
    assert found["eos_token"] == engine.tokenizer.text_of(min(engine.tokenizer.stop_ids))
    with serving(engine, Settings(port=0, seed=42)) as address:
        props = httpx.get(f"{address}/props").json()
        assert props["default_generation_settings"]["params"]["seed"] == 42 and props["model_path"] == "trigraph"


def test_names_of_a_model(client: httpx.Client) -> None:
    (model,) = client.get("/v1/models").json()["data"]
    assert model["id"] == "tiny" and model["aliases"] == ["tiny", "small", "fast"]
    assert [client.get(f"/v1/models/{name}").json()["id"] for name in model["aliases"]] == 3 * ["tiny"]
    assert client.get("/v1/models/other").status_code == 404


def events(client: httpx.Client, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    lines = client.post(path, json={**body, "stream": True}).text.splitlines()
    return [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_timings_in_streams(client: httpx.Client, path: str) -> None:
    body: dict[str, Any] = {"max_tokens": 3, "prompt": PROMPT} if "chat" not in path else {"messages": MESSAGES}
    body["max_tokens"] = 3
    timed = [
        ["timings" in event for event in events(client, path, {**body, **more})]
        for more in (
            {},
            {"timings_per_token": True},
            {"stream_options": {"include_usage": True}},
        )
    ]
    alone, each, with_usage = timed
    for told in (alone, with_usage):
        assert told == [*[False] * (len(told) - 1), True]
    assert each == [path == "/v1/completions", *[True] * (len(each) - 1)], "the chunk of the role has nothing to tell"


def test_a_completion_that_fills_the_context(client: httpx.Client) -> None:
    asked = {"prompt": PROMPT, "n_predict": -1, "ignore_eos": True}
    found = client.post("/completion", json=asked).json()
    assert found["truncated"] is True and found["stop_type"] == "limit"
    assert found["tokens_predicted"] + found["tokens_evaluated"] in (256, 257)
    assert client.post("/completion", json=ASKED).json()["truncated"] is False
