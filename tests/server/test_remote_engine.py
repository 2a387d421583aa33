"""A front's streams while the replicas that compute them come and go: replicas in this process, lost at will."""

from __future__ import annotations

import asyncio
import json
import pickle
import sys
from collections.abc import AsyncGenerator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from support.fakes.engine import END, METADATA, TEMPLATE, engine_of
from support.fakes.rounds import LOGITS, tokens
from support.servers.scripted import serving
from trigraph.models.errors import TrigraphError
from trigraph.models.tokenizer import byte_alphabet, tokenizer_json
from trigraph.runtime import Engine, Options, QueueFullError, Regex, Sampling
from trigraph.runtime.cache.identity import ModelIdentity
from trigraph.runtime.cli.serve import ReplicaArguments
from trigraph.runtime.requests.handle import Handle
from trigraph.runtime.requests.logprobs import scoring
from trigraph.runtime.server.cluster.remote_engine import RemoteEngine, ReplicaLostError
from trigraph.runtime.server.cluster.replica import Description, OtherModelError, Replica, Ticket, Update
from trigraph.runtime.server.errors import ApiError
from trigraph.runtime.server.settings import Settings
from trigraph.runtime.text.tokenizer import Tokenizer

SAMPLED = Options(Sampling(temperature=0.9, seed=3), max_tokens=40, ignore_eos=True)


class Mortal:
    """Replicas of an engine, of which each dies before it has told more than so many tokens."""

    def __init__(self, *lives: int) -> None:
        self.lives = [*lives]
        self.tickets: list[Ticket] = []
        self.engines: list[Engine] = []
        self.gone = False

    async def complete(self, ticket: Ticket) -> AsyncGenerator[Update, None]:
        self.tickets.append(pickle.loads(pickle.dumps(ticket)))
        left = self.lives.pop(0) if self.lives else 10**6
        replica = Replica(new_engine())
        self.engines.append(replica.engine)
        async for update in replica.complete(self.tickets[-1]):
            if left < max(1, len(update.tokens)):
                raise ReplicaLostError
            left -= len(update.tokens)
            yield pickle.loads(pickle.dumps(update))

    async def describe(self) -> Description:
        return described()

    async def outage(self) -> str | None:
        return "no replica of the model runs" if self.gone else None


def new_engine() -> Engine:
    return engine_of(LOGITS, context=200, template=TEMPLATE)[0]


def front(*lives: int, max_waiting: int = 8) -> tuple[RemoteEngine, Mortal]:
    replicas = Mortal(*lives)
    return RemoteEngine(described(), replicas, max_waiting), replicas


def described() -> Description:
    description: Description = pickle.loads(pickle.dumps(Replica(new_engine()).describe()))
    return description


async def complete(stream: Handle) -> str:
    return "".join([piece async for piece in stream])


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trigraph.runtime.server.cluster.remote_engine._LONGEST_PAUSE", 0.0)
    monkeypatch.setattr("trigraph.runtime.server.cluster.remote_engine._FIRST_PAUSE", 0.0)
    monkeypatch.setattr("trigraph.runtime.server.cluster.replica._GAP", 0.0)


@pytest.mark.parametrize("lives", [(), (0,), (9,), (12, 3, 9), (0, 0, 20, 0, 9)])
def test_a_stream_outlives_its_replicas(lives: tuple[int, ...]) -> None:
    prompt = tokens(20)
    whole = new_engine().generate(prompt, SAMPLED)
    text = whole.run()
    engine, replicas = front(*lives)
    stream = engine.generate(prompt, SAMPLED)
    assert asyncio.run(complete(stream)) == text
    assert (stream.ids, stream.sampled) == (whole.ids, 40)
    assert stream.stats.finish_reason == "length"
    assert len(replicas.tickets) == len(lives) + 1
    assert not engine.streams
    completed = [len(ticket.completed) for ticket in replicas.tickets]
    assert completed == sorted(completed)


@pytest.mark.parametrize("lives", [(), (9,), (0, 20, 9)])
def test_scores_outlive_replicas(lives: tuple[int, ...]) -> None:
    asyncio.run(complete(stream := front(*lives)[0].generate(*scoring(tokens(60), 2))))
    assert stream.logprobs == new_engine().score(tokens(60), 2)


@pytest.mark.parametrize(
    ("pattern", "limit", "end"), [("[a-f]{3,30}", None, "stop"), ("[a-f]{5}", 5, "stop"), ("[a-f]{6}", 5, "length")]
)
def test_the_end_that_only_replicas_know_is_taken_over(pattern: str, limit: int | None, end: str) -> None:
    pytest.importorskip("llguidance", reason="llguidance is not installed: no constraints")
    asked = Options(Sampling(temperature=0), constraint=Regex(pattern), logprobs=1, max_tokens=limit)
    whole = new_engine().generate(tokens(9), asked)
    text = whole.run()
    for life in range(12):
        stream = front(life)[0].generate(tokens(9), asked)
        assert asyncio.run(complete(stream)) == text
        assert (stream.finish_reason, stream.sampled) == (end, whole.sampled)
        assert stream.logprobs[: len(stream.ids)] == whole.logprobs[: len(whole.ids)]


def test_a_request_that_brings_replicas_down_fails() -> None:
    engine, replicas = front(*[0] * 20)
    with pytest.raises(ApiError, match="10 replicas in a row were lost"):
        asyncio.run(complete(engine.generate(tokens(9), SAMPLED)))
    assert len(replicas.tickets) == 10
    assert not engine.streams


def test_a_replica_of_another_model_does_not_go_on() -> None:
    replica = Replica(new_engine())
    own = replica.describe()

    async def ask(weights: str, fingerprint: str | None) -> None:
        async for _ in replica.complete(Ticket(tokens(9), SAMPLED, (), [1, 2], weights, fingerprint)):
            pass

    asyncio.run(ask(own.identity.weights, own.fingerprint))
    asyncio.run(ask(own.identity.weights, None))
    for weights, fingerprint in (("a" * 64, None), (own.identity.weights, "f" * 16)):
        with pytest.raises(OtherModelError, match=f"fingerprint {fingerprint}"):
            asyncio.run(ask(weights, fingerprint))


class Replaced:
    """A replica of another model than the front knows of."""

    def __init__(self, engine: Engine, *, tokenizer: Tokenizer | None = None) -> None:
        identity = ModelIdentity("another", "b" * 64)
        self._replica = Replica(
            Engine(replace(engine.model, identity=identity, tokenizer=tokenizer or engine.tokenizer))
        )

    def complete(self, ticket: Ticket) -> AsyncGenerator[Update, None]:
        return self._replica.complete(ticket)

    async def describe(self) -> Description:
        found: Description = pickle.loads(pickle.dumps(self._replica.describe()))
        return found

    async def outage(self) -> str | None:
        return None


def test_a_front_follows_when_the_model_is_replaced() -> None:
    async def ask() -> None:
        engine, _ = front()
        engine.replicas = Replaced(new_engine())
        before = engine.tokenizer
        streams = [engine.generate(tokens(20), SAMPLED) for _ in range(3)]
        texts = await asyncio.gather(*map(complete, streams))
        assert texts == [new_engine().generate(tokens(20), SAMPLED).run()] * 3
        assert engine.identity.weights == "b" * 64
        assert engine.tokenizer is before

    asyncio.run(ask())


def test_a_prompt_is_not_given_to_a_model_that_reads_it_otherwise() -> None:
    async def ask() -> None:
        engine, _ = front()
        metadata = {**METADATA, "tokenizer.ggml.tokens": [*byte_alphabet(), "<|end|>", "<other>"]}
        engine.replicas = Replaced(new_engine(), tokenizer=Tokenizer(tokenizer_json(metadata), [END]))
        with pytest.raises(ApiError, match="send the request again") as raised:
            await complete(engine.generate(tokens(20), SAMPLED))
        assert raised.value.status == 503
        await complete(engine.generate(tokens(20), SAMPLED))  # by now it knows

    asyncio.run(ask())


class ReplacedAfterAToken(Replaced):
    """A replica of the model that the front knows of, which dies with the first token; from then on, the other one."""

    async def complete(self, ticket: Ticket) -> AsyncGenerator[Update, None]:
        if ticket.completed:
            async for update in super().complete(ticket):
                yield update
            return
        async for update in Replica(new_engine()).complete(ticket):
            if update.tokens:
                yield update._replace(tokens=update.tokens[:1], finish_reason=None)
                raise ReplicaLostError


def test_a_completion_that_was_begun_does_not_follow() -> None:
    engine, _ = front()
    engine.replicas = ReplacedAfterAToken(new_engine())
    with pytest.raises(ApiError, match=r"10 replicas in a row were lost .* was begun with weights"):
        asyncio.run(complete(engine.generate(tokens(20), SAMPLED)))


def test_without_ray_the_command_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "trigraph.runtime.server.cluster.deployment", raising=False)
    with pytest.raises(TrigraphError, match=r"replicas need ray: pip install 'ray\[serve\]'"):
        ReplicaArguments(replicas=2).engines(Path("model.gguf"), "model", {})


def test_cancelling_ends_the_request_at_the_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    async def leave() -> Handle:
        stream = engine.generate(tokens(20), replace(SAMPLED, max_tokens=19_000))  # seconds, unless it is cancelled
        async for _ in stream:
            break
        stream.cancel()
        while not stream.done:
            await asyncio.sleep(0.01)
        for _ in range(500):
            if not replicas.engines[0].load.running:
                break
            await asyncio.sleep(0.01)
        return stream

    monkeypatch.setitem(globals(), "new_engine", lambda: engine_of(LOGITS, context=20_000, template=TEMPLATE)[0])
    engine, replicas = front()
    stream = asyncio.run(leave())
    assert stream.stats.finish_reason == "cancelled"
    assert not replicas.engines[0].load.running
    assert not engine.streams


def test_at_most_so_many_wait() -> None:
    async def ask() -> None:
        streams = [engine.generate(tokens(9), SAMPLED) for _ in range(3)]
        streams[0].begin()
        streams[1].begin()
        assert engine.load.waiting == 2
        with pytest.raises(QueueFullError):
            streams[2].begin()
        streams[0].cancel()
        assert streams[0].done
        streams[2].begin()

    engine, _ = front(max_waiting=2)
    asyncio.run(ask())


@pytest.fixture
def clients() -> Iterator[tuple[httpx.Client, httpx.Client, Mortal]]:
    """One of an engine in this process, and one of a front whose first three replicas die."""
    engine, replicas = front(20, 0, 12)
    settings = Settings(port=0, seed=5)
    with (
        serving(new_engine(), settings) as local,
        serving(engine, settings) as remote,
        httpx.Client(base_url=local, timeout=60) as one,
        httpx.Client(base_url=remote, timeout=60) as two,
    ):
        yield one, two, replicas


def test_the_server_tells_the_same(clients: tuple[httpx.Client, httpx.Client, Mortal]) -> None:
    one, two, replicas = clients
    question = [{"role": "user", "content": "Why?"}]
    chat: dict[str, Any] = {"messages": question, "max_tokens": 50, "logprobs": True, "ignore_eos": True}
    answers = [client.post("/v1/chat/completions", json=chat).json() for client in (one, two)]
    assert answers[0]["choices"] == answers[1]["choices"]
    assert answers[0]["usage"]["completion_tokens"] == answers[1]["usage"]["completion_tokens"]
    assert len(replicas.tickets) == 4
    texts = []
    for client in (one, two):
        body = {**chat, "stream": True, "n": 2}
        with client.stream("POST", "/v1/chat/completions", json=body) as response:
            chunks = [json.loads(line[6:]) for line in response.iter_lines() if line.startswith("data: {")]
        said = ["", ""]
        for chunk in chunks:
            choice = chunk["choices"][0]
            said[choice["index"]] += choice["delta"].get("content") or choice["delta"].get("reasoning_content") or ""
        texts.append(said)
    assert texts[0] == texts[1]
    found = [client.get(path) for path in ("/v1/models", "/health", "/metrics") for client in (one, two)]
    assert {each.status_code for each in found} == {200}
    assert 'vllm:generation_tokens_total{engine="0",model_name="trigraph"} 150.0' in found[-1].text
    assert two.post("/v1/completions", json={"prompt": [1] * 300}).status_code == 400
    replicas.gone = True
    assert two.get("/health").json() == {"status": "no replica of the model runs"}
