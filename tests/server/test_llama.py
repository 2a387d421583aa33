"""llama-server's own routes: what its clients send and read, and the shapes that llama.cpp's server gives itself."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from support.fakes.engine import METADATA
from support.oracles.llama import Llama
from support.servers.scripted import PLAIN_TEMPLATE, replying, serving
from trigraph.models.tiny import TINY_GGUF
from trigraph.models.tokenizer import tokenizer_json
from trigraph.runtime import Engine, Options, Sampling, load
from trigraph.runtime.server.settings import Settings
from trigraph.runtime.text.tokenizer import Tokenizer

PROMPT = "In the beginning"
ASKED = {"prompt": PROMPT, "n_predict": 12, "temperature": 0}
# Of samplers that we do not have, and of what only llama.cpp counts.
NOT_OURS = {"generation_settings", "timings"}
FILL = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|repo_name|>", "<|file_sep|>"]


@pytest.fixture(scope="module")
def engine(tiny_package: Path) -> Engine:
    return load(tiny_package, threads=1)


@pytest.fixture(scope="module")
def client(engine: Engine) -> Iterator[httpx.Client]:
    with serving(engine, Settings(model="tiny", port=0)) as address, httpx.Client(base_url=address, timeout=60) as made:
        yield made


@pytest.fixture(scope="module")
def theirs() -> Llama:
    return Llama(TINY_GGUF)


def streamed(client: httpx.Client, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    lines = client.post(path, json={**body, "stream": True}).text.splitlines()
    return [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]


def test_completion(client: httpx.Client, engine: Engine) -> None:
    found = client.post("/completion", json=ASKED).json()
    request = engine.generate(PROMPT, Options(Sampling(temperature=0), max_tokens=12))
    assert found["content"] == request.run() and found["tokens"] == []
    assert (found["tokens_predicted"], found["stop_type"], found["stop"]) == (12, "limit", True)
    assert found["tokens_evaluated"] == len(request.prompt) and found["prompt"] == PROMPT
    assert client.post("/completions", json={**ASKED, "return_tokens": True}).json()["tokens"] == request.ids
    *parts, last = streamed(client, "/completion", ASKED)
    assert "".join(part["content"] for part in parts) == request.text and last["content"] == ""
    assert [token for part in [*parts, last] for token in part["tokens"]] == request.ids
    assert last["stop"] and not any(part["stop"] for part in parts)
    assert "timings" in last and not any("timings" in part for part in parts)


def test_prompts_of_texts_and_ids(client: httpx.Client, engine: Engine) -> None:
    ids = engine.tokenizer.encode(PROMPT)
    one = client.post("/completion", json=ASKED).json()["content"]
    assert client.post("/completion", json={**ASKED, "prompt": ids}).json()["content"] == one
    assert client.post("/completion", json={**ASKED, "prompt": [ids[0], engine.tokenizer.decode(ids[1:])]}).json()[
        "content"
    ] == (one)
    several = client.post("/completion", json={**ASKED, "prompt": [PROMPT, ids, "x"]}).json()
    assert [found["index"] for found in several] == [0, 1, 2] and several[0]["content"] == several[1]["content"] == one
    wrong: list[Any] = [[], [[]], "", [engine.vocab], {"x": 1}]
    for prompt in wrong:
        refused = client.post("/completion", json={**ASKED, "prompt": prompt})
        assert refused.status_code == 400 and "prompt" in refused.json()["error"]["message"]


def test_probabilities_are_llamas(client: httpx.Client, theirs: Llama) -> None:
    body = {**ASKED, "n_probs": 5, "return_tokens": True}
    ours, expected = client.post("/completion", json=body).json(), theirs.post("/completion", body)
    assert ours["content"] == expected["content"] and ours["tokens"] == expected["tokens"]
    for mine, other in zip(ours["completion_probabilities"], expected["completion_probabilities"], strict=True):
        assert (mine["id"], mine["token"], mine["bytes"]) == (other["id"], other["token"], other["bytes"])
        assert mine["logprob"] == pytest.approx(other["logprob"], abs=0.5), "it rounds activations to 8 bits"
        assert mine.keys() == other.keys() and mine["top_logprobs"][0].keys() == other["top_logprobs"][0].keys()
    parts = streamed(client, "/completion", body)
    given = [entry for part in parts for entry in part.get("completion_probabilities", ())]
    assert given == ours["completion_probabilities"]


def test_shapes_are_llamas(client: httpx.Client, theirs: Llama) -> None:
    body = {**ASKED, "n_probs": 1}
    ours, expected = client.post("/completion", json=body).json(), theirs.post("/completion", body)
    assert expected.keys() <= ours.keys(), expected.keys() - ours.keys()
    for name in expected.keys() - NOT_OURS:
        assert type(ours[name]) is type(expected[name]), name
    known = ("content", "tokens_predicted", "tokens_evaluated", "prompt", "stop_type", "stopping_word", "truncated")
    assert [ours[name] for name in known] == [expected[name] for name in known]
    assert ours["timings"].keys() >= expected["timings"].keys()


def test_stops_and_selected_fields(client: httpx.Client) -> None:
    text = client.post("/completion", json=ASKED).json()["content"]
    asked = {**ASKED, "stop": [text[5:9]], "response_fields": ["content", "stopping_word", "generation_settings/seed"]}
    found = client.post("/completion", json={**asked, "seed": 3}).json()
    assert found == {"content": text[:5], "stopping_word": text[5:9], "generation_settings/seed": 3}


@pytest.mark.parametrize("path", ["/completion", "/v1/chat/completions", "/chat/completions"])
def test_progress_of_a_prompt(client: httpx.Client, engine: Engine, path: str) -> None:
    body: dict[str, Any] = {"n_predict": 3, "return_progress": True, "timings_per_token": True}
    long = 100 * "In the beginning God created the heaven and the earth. "
    body |= {"prompt": long} if path == "/completion" else {"messages": [{"role": "user", "content": long}]}
    engine.cache.clear()
    parts = streamed(client, path, body)
    told = [part["prompt_progress"] for part in parts if "prompt_progress" in part]
    done = [progress["processed"] for progress in told]
    assert done == sorted({*done}) and done[-1] == told[-1]["total"] > 0 and len(done) > 2
    timed = [part["timings"] for part in parts if "prompt_progress" in part]
    assert (done[0], told[0]["time_ms"], timed[0]["prompt_n"], timed[0]["prompt_ms"]) == (0, 0, 0, 0.0)
    assert [each["prompt_n"] for each in timed] == done
    again = [part["prompt_progress"] for part in streamed(client, path, body) if "prompt_progress" in part]
    assert 0 < again[0]["cache"] == again[0]["processed"] and again[-1]["processed"] == again[-1]["total"]
    assert all("timings" in part for part in parts if "role" not in part.get("choices", [{"delta": ()}])[0]["delta"])


def test_questions(client: httpx.Client, engine: Engine) -> None:
    props = client.get("/props").json()
    assert props["default_generation_settings"]["n_ctx"] == engine.context and props["model_alias"] == "tiny"
    assert props["total_slots"] == len(client.get("/slots").json()) == engine.steps.state.sequences
    messages = [{"role": "user", "content": "Hi <|x|>"}]
    text = client.post("/apply-template", json={"messages": messages}).json()["prompt"]
    assert text == engine.chat_template().render(messages)
    assert client.get("/version").json().keys() == {"version"}
    for path in ("/v1/health", "/health", "/ping"):
        assert client.get(path).json() == {"status": "ok"}
    assert client.post("/ping").status_code == 200
    assert client.get("/models").json() == client.get("/v1/models").json()
    counted = client.post("/responses/input_tokens", json={"input": "Hi"}).json()
    used = client.post("/responses", json={"input": "Hi", "max_output_tokens": 1}).json()["usage"]["input_tokens"]
    assert counted == {"object": "response.input_tokens", "input_tokens": used}
    asked = {"messages": messages, "max_tokens": 2}
    assert client.post("/chat/completions", json=asked).json()["object"] == "chat.completion"


def test_keys_guard_all_but_health() -> None:
    with serving(replying("Yes.", template=PLAIN_TEMPLATE), Settings(port=0, api_keys=("key",))) as address:
        for path in ("/props", "/slots", "/models", "/version", "/v1/models/x", "/openapi.json"):
            assert httpx.get(f"{address}{path}").status_code == 401, path
        for path in ("/completion", "/completions", "/infill", "/chat/completions", "/responses", "/apply-template"):
            assert httpx.post(f"{address}{path}", json={}).status_code == 401, path
        for path in ("/health", "/v1/health", "/ping"):
            assert httpx.get(f"{address}{path}").status_code == 200, path


def with_tokens(engine: Engine) -> Engine:
    """The engine with tokens for text in the middle, in place of bytes that no text has."""
    tokens = [*METADATA["tokenizer.ggml.tokens"]]
    assert isinstance(METADATA["tokenizer.ggml.token_type"], list)
    types = [*METADATA["tokenizer.ggml.token_type"], *[3] * len(FILL)]
    metadata = {**METADATA, "tokenizer.ggml.tokens": [*tokens, *FILL], "tokenizer.ggml.token_type": types}
    tokenizer = Tokenizer(tokenizer_json(metadata), engine.tokenizer.stop_ids)
    return Engine(replace(engine.model, tokenizer=tokenizer))


def test_infill(client: httpx.Client) -> None:
    from trigraph.runtime.server.fill_in_middle import fill_in_middle

    made = with_tokens(replying("Yes.", context=100))
    others = [("a.py", "old"), ("b.py", "new")]
    ids = fill_in_middle(made, "def f", "<|fim_suffix|>", begun=[65], others=others, param="x")
    text = "<|repo_name|>myproject\n<|file_sep|>a.py\nold<|file_sep|>b.py\nnew<|file_sep|>filename\n"
    text += "<|fim_prefix|>def fA<|fim_suffix|>"
    assert (
        made.tokenizer.decode(ids)
        == text.replace("<|repo_name|>", "")
        .replace("<|file_sep|>", "")
        .replace("<|fim_prefix|>", "")
        .replace("<|fim_suffix|>", "")
        + "<|fim_suffix|>"
    )
    marks = [token for token in ids if token >= len(METADATA["tokenizer.ggml.tokens"])]
    assert [made.tokenizer.text_of(token) for token in marks] == [
        *(FILL[3], FILL[4], FILL[4], FILL[4]),
        *(FILL[0], FILL[1], FILL[2]),
    ]
    short = fill_in_middle(made, "a", "b", others=[("a", 50 * "x"), ("b", "new")], room=40, param="x")
    assert "new" in made.tokenizer.decode(short) and "x" not in made.tokenizer.decode(short)[20:]
    refused = client.post("/infill", json={"input_prefix": "a", "input_suffix": "b"})
    assert refused.status_code == 400 and "<|fim_prefix|>" in refused.json()["error"]["message"]
    refused = client.post("/v1/completions", json={"prompt": "a", "suffix": "b"})
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "suffix"
