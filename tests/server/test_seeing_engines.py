"""Real engines with a vision tower behind the server, in this process and as replicas; llm-comply's own images."""

from __future__ import annotations

import asyncio
import base64
import pickle
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from support.pictures import encode, pixels
from support.seeing import SeeingPackages, prompt_of
from support.seeing_server import Seeing
from support.server import serving
from trigraph.runtime import Engine, Options, Sampling, load
from trigraph.runtime.images.prompt import prompt_with_images
from trigraph.runtime.server.cluster.remote_engine import RemoteEngine, ReplicaLostError
from trigraph.runtime.server.cluster.replica import Description, Replica, Ticket, Update
from trigraph.runtime.server.settings import Settings

GREEDY = Options(Sampling(temperature=0), max_tokens=12)
FILE = encode(pixels(120, 200), "PNG")
CONTENT = [
    {"type": "image_url", "image_url": {"url": "data:image/png;base64," + base64.b64encode(FILE).decode()}},
    {"type": "text", "text": "What?"},
]


@pytest.fixture(scope="module")
def engine(seeing: SeeingPackages) -> Iterator[Engine]:
    with load(seeing("tiny-moe", "Q8_0"), threads=1, context=2048) as engine:
        yield engine


def asked(engine: Engine) -> Any:
    """What the server makes of the question."""
    messages = [{"role": "user", "content": [{"type": "image"}, CONTENT[1]]}]
    text = engine.chat_template().render(messages)
    return prompt_with_images(text, engine.tokenizer, [engine.model.images.read(FILE)])


def test_the_text_is_the_engine_s(engine: Engine) -> None:
    expected = engine.generate(asked(engine), GREEDY).run()
    engine.cache.clear()
    with serving(engine, Settings(port=0, defaults=GREEDY)) as url:
        client: Any = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        messages: list[Any] = [{"role": "user", "content": CONTENT}]
        first = client.chat.completions.create(model="x", messages=messages)
        again = client.chat.completions.create(model="x", messages=messages, stream=True)
        text = "".join(chunk.choices[0].delta.content or "" for chunk in again)
        assert text == first.choices[0].message.content == expected
        messages += [{"role": "assistant", "content": "A."}, {"role": "user", "content": "Sure?"}]
        later = client.chat.completions.create(model="x", messages=messages)
        length = first.usage.prompt_tokens
        assert length == len(asked(engine).ids) > 77 and later.usage.prompt_tokens > length
        assert later.usage.prompt_tokens_details.cached_tokens > 77


class Replicas:
    """Replicas of an engine, of which the first is lost after some tokens."""

    def __init__(self, engine: Engine) -> None:
        self.replica, self.tickets = Replica(engine), list[Ticket]()

    async def complete(self, ticket: Ticket) -> AsyncGenerator[Update, None]:
        self.tickets.append(pickle.loads(pickle.dumps(ticket)))
        async for update in self.replica.complete(self.tickets[-1]):
            if len(self.tickets) == 1:
                yield update._replace(tokens=update.tokens[:3], sampled=min(3, update.sampled), finish_reason=None)
                raise ReplicaLostError
            yield pickle.loads(pickle.dumps(update))

    async def describe(self) -> Description:
        return self.replica.describe()

    async def outage(self) -> str | None:
        return None


def test_replicas_are_given_the_images(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trigraph.runtime.server.cluster.remote_engine._FIRST_PAUSE", 0.0)
    expected = engine.generate(asked(engine), GREEDY).run()
    replicas = Replicas(engine)
    description: Description = pickle.loads(pickle.dumps(replicas.replica.describe()))
    front = RemoteEngine(description, replicas, 8)
    assert front.tower == engine.tower and front.image_limits == engine.image_limits

    async def text() -> str:
        return "".join([piece async for piece in front.generate(asked(engine), GREEDY)])

    assert asyncio.run(text()) == expected
    assert len(replicas.tickets) == 2 and all(ticket.shown is not None for ticket in replicas.tickets)


def test_another_tower_is_another_fingerprint(seeing: SeeingPackages, engine: Engine) -> None:
    with load(seeing("tiny-moe", "Q8_0", "Q8_0"), threads=1, context=2048) as other:
        assert Replica(other).fingerprint != Replica(engine).fingerprint


def test_a_raw_prompt_with_images(engine: Engine) -> None:
    prompt = prompt_of(5, (8, 9), 4, pad=engine.tokenizer.id_of("<|image_pad|>") or 0)
    assert engine.generate(prompt, GREEDY).run() == engine.submit(prompt, GREEDY).run()


@pytest.mark.filterwarnings("ignore:jsonschema.RefResolver:DeprecationWarning")
@pytest.mark.parametrize(
    ("api", "case"),
    [("open-responses", "image-input"), ("openai-chat", "chat-image-input"), ("anthropic", "anth-image-input")],
)
def test_images_comply(api: str, case: str) -> None:
    comply: Any = pytest.importorskip("llm_comply.runner", reason="llm-comply is not installed")
    from llm_comply.config import ComplianceConfig
    from llm_comply.schema import SpecLoader
    from llm_comply.tests import get_tests

    specifications = {"open-responses": "openresponses", "openai-chat": "openai_chat", "anthropic": "anthropic"}
    specification = Path(comply.__file__).parent / "specs" / f"{specifications[api]}.json"
    (found,) = [each for each in get_tests(api) if each.id == case]
    with serving(Seeing(), Settings(model="claude-sonnet-4-gpt-5", port=0, defaults=GREEDY)) as url:
        config = ComplianceConfig(f"{url}/v1", "none", model="claude-sonnet-4-gpt-5")
        (result,) = comply.TestRunner(config, [found], SpecLoader(str(specification))).run_all().results
    assert result.status.value == "passed" and not result.errors, result
