"""Real engines with a vision tower behind the server, in this process and as replicas; llm-comply's own images."""

from __future__ import annotations

import asyncio
import base64
import json
import pickle
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from support.models.seeing import SeeingPackages, picture, prompt_of
from support.pictures.pictures import encode, pixels
from support.servers.dying_replicas import DyingReplicas
from support.servers.scripted import serving
from support.servers.seeing_server import Seeing
from trigraph.runtime import Engine, Options, Receipt, Sampling, load
from trigraph.runtime.images.prompt import prompt_with_images
from trigraph.runtime.server.cluster.remote_engine import RemoteEngine, ReplicaLostError
from trigraph.runtime.server.cluster.replica import Description, Replica, Ticket, Update
from trigraph.runtime.server.cluster.sent_images import Inbox, Outbox, UnknownImagesError
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
    """Replicas of an engine, of which the first is lost after some tokens, if `dying`; tickets go to `replica`."""

    def __init__(self, engine: Engine, *, dying: bool = True) -> None:
        self.replica, self.tickets, self._dying = Replica(engine), list[Ticket](), dying

    async def complete(self, ticket: Ticket) -> AsyncGenerator[Update, None]:
        self.tickets.append(pickle.loads(pickle.dumps(ticket)))
        async for update in self.replica.complete(self.tickets[-1]):
            if len(self.tickets) == 1 and self._dying:
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
    assert len(replicas.tickets) == 2 and all(ticket.images is not None for ticket in replicas.tickets)


def test_pixels_are_sent_once_to_a_replica(engine: Engine) -> None:
    """To one that has them, the digest alone; one that has not asks for them."""
    expected = engine.generate(asked(engine), GREEDY).run()
    replicas = Replicas(engine, dying=False)
    front = RemoteEngine(replicas.replica.describe(), replicas, 8)

    async def sent() -> list[int]:
        before = len(replicas.tickets)
        assert "".join([piece async for piece in front.generate(asked(engine), GREEDY)]) == expected
        return [len(ticket.images.pixels) for ticket in replicas.tickets[before:] if ticket.images]

    async def ask() -> None:
        assert await sent() == [1] and await sent() == [0]
        first, replicas.replica = replicas.replica, Replica(engine)
        assert await sent() == [0, 1] and await sent() == [0]
        replicas.replica = first
        assert await sent() == [0]

    asyncio.run(ask())
    assert len(pickle.dumps(replicas.tickets[-1])) < 5000 < len(pickle.dumps(replicas.tickets[0]))


def test_a_replica_keeps_as_many_pixels_as_it_may(engine: Engine) -> None:
    prompts = [prompt_of(2, (2, 3), 1, seed=seed) for seed in range(3)]
    outbox, inbox = Outbox(), Inbox(budget=2 * prompts[0].pixels[0].pixels.nbytes)
    for prompt in prompts:
        packed = outbox.packed(prompt)
        assert packed is not None and len(packed.pixels) == 1
        assert inbox.prompt(prompt.ids, packed).pixels[0].pixels.tobytes() == prompt.pixels[0].pixels.tobytes()
        outbox.arrived(packed)
        keys = packed.keys(prompt.ids)
        assert keys[:2] == [*prompt.ids[:2]] and all(key < 0 for key in keys[2:8])
    known = outbox.packed(prompts[2])
    assert known is not None and not known.pixels and inbox.prompt(prompts[2].ids, known) is not None
    gone = outbox.packed(prompts[0])
    assert gone is not None
    with pytest.raises(UnknownImagesError, match="pixels of 1 images are not here"):
        inbox.prompt(prompts[0].ids, gone)
    assert outbox.packed(prompt_of(4)) is None and outbox.packed(None) is None


@pytest.mark.slow
def test_the_router_tells_images_apart() -> None:
    pytest.importorskip("ray", reason="ray is not installed: no replicas (pip install 'ray[serve]')")
    from trigraph.runtime.server.cluster.prefix_router import _keys

    keys = []
    for shown in (picture((8, 9), 1), picture((8, 9), 2)):
        prompt = prompt_of(40, shown, 9)
        keys.append([*_keys(Ticket([*prompt.ids], GREEDY, (), [], "weights", images=Outbox().packed(prompt)))])
    assert len(keys[0]) == len(keys[1]) == 3 and keys[0][0] == keys[1][0] and keys[0][1] != keys[1][1]


def test_receipts_of_completions_with_images(engine: Engine) -> None:
    """From the server, and from a front whose replicas computed it, one after the other."""
    messages = [{"role": "user", "content": CONTENT}]
    front = DyingReplicas(engine).front()
    for backend in (engine, front):
        with serving(backend, Settings(port=0, defaults=GREEDY)) as url:
            client: Any = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
            answer = client.chat.completions.create(model="x", messages=messages, extra_body={"receipt": True})
        receipt = Receipt.parse(json.dumps(answer.choices[0].receipt))
        assert receipt.images is not None and [image.tokens for image in receipt.images.images] == [77]
        assert engine.verify(receipt, images=[FILE]).equal


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
