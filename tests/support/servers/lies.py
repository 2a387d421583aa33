"""How a server may be broken, and what an audit of it must say."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from support.servers.audited_server import AuditedServer, Body, text_of
from trigraph.runtime.audit.plan import Plan, Prompt

# Twelve requests alone, so that one may fail.
PROMPTS = tuple(Prompt("test", f"This is prompt {number}. " + "It has words. " * number) for number in range(6))
PLAN = Plan(PROMPTS, tokens=6, companions=(2,), others=3, idle=1.0, steps=2, long_prompt=500, timeout=3.0)

AGAIN, LOAD, STREAMED, IDLE = "again", "among 2 others", "streamed", "after 1 s idle"
CACHED = ("after its beginning", "after a longer one", "built up in turns")
STEPWISE = "token by token"
CONDITIONS = ("alone", AGAIN, LOAD, STREAMED, *CACHED, "beside long prompts", STEPWISE, "after 3 others", IDLE)

Spoil = Callable[[Body, Body], Any]
Wire = Callable[[Iterable[bytes], AuditedServer], Iterable[bytes]]


@dataclass(frozen=True)
class Lie:
    """A way to be broken."""

    name: str
    says: frozenset[str]
    """What the report must say, and nothing else: condition, part and what is wrong; why it is no audit."""
    server: Callable[[], AuditedServer]
    status: int = 1
    """Of the command."""
    slow: bool = False


def _says(when: tuple[str, ...], what: str, more: str = "") -> frozenset[str]:
    """Each of what is separated by "; ", under each condition; and `more`."""
    under = {f"{condition}: {each}" for condition in when for each in what.split("; ") if each}
    return frozenset(under | set(filter(None, more.split("; "))))


def _lie(when: str, name: str, what: str, spoil: Spoil) -> Lie:
    """`spoil` changes an answer, in place or by what it returns, under the condition `when` ("" for always)."""

    def server() -> AuditedServer:
        found = AuditedServer()

        def change(reply: Body, body: Body) -> Any:
            changed = spoil(reply, body) if when in ("", found.condition) else None
            return reply if changed is None else changed

        found.spoil = change
        return found

    return Lie(name, _says((when,) if when else CONDITIONS, what), server)


def _wire(when: str, name: str, what: str, wire: Wire, *, slow: bool = False) -> Lie:
    """A lie below JSON."""

    def server() -> AuditedServer:
        found = AuditedServer()
        found.wire = lambda pieces, _: wire(pieces, found) if found.condition == when else pieces
        return found

    return Lie(name, _says((when,), what), server, slow=slow)


def _choice(**fields: Any) -> Spoil:
    return lambda reply, _: reply["choices"][0].update(fields)


def _named(**fields: Any) -> Spoil:
    return lambda reply, _: reply.update(fields)


def _usage(**fields: Any) -> Spoil:
    return lambda reply, _: reply["usage"].update(fields)


def _without(name: str) -> Spoil:
    def spoil(reply: Body, _body: Body) -> None:
        del reply[name]

    return spoil


def _logprobs(change: Callable[[list[Any]], list[Any]]) -> Spoil:
    def spoil(reply: Body, _body: Body) -> None:
        found = reply["choices"][0]["logprobs"]
        found["token_logprobs"] = change(found["token_logprobs"])

    return spoil


def _text(text: Callable[[Body], str]) -> Spoil:
    """Another text, whose log-probabilities and tokens fit."""

    def spoil(reply: Body, body: Body) -> None:
        found = text(body)
        reply["choices"][0] |= {"text": found, "logprobs": {"tokens": [*found], "token_logprobs": [-1.0] * len(found)}}

    return spoil


def _two_at_a_time(reply: Body, _body: Body) -> None:
    """The same text in tokens of two characters."""
    found = reply["choices"][0]["logprobs"]
    text = "".join(found["tokens"])
    found["tokens"] = [text[i : i + 2] for i in range(0, len(text), 2)]
    found["token_logprobs"] = found["token_logprobs"][::2]


def _fewer_counted(reply: Body, _body: Body) -> None:
    reply["usage"]["completion_tokens"] -= 1


def _unlimited(reply: Body, body: Body) -> None:
    _text(text_of)(reply, body)
    reply["usage"]["completion_tokens"] = len(text_of(body))


def _reasoning(reply: Body, _body: Body) -> None:
    choice = reply["choices"][0]
    text, found = choice.pop("text"), choice["logprobs"]
    choice["message"] = {"reasoning_content": text[:2], "content": text[2:]}
    pairs = zip(found["tokens"], found["token_logprobs"], strict=True)
    choice["logprobs"] = {"content": [{"token": token, "logprob": value} for token, value in pairs]}


def _two_choices(reply: Body, _body: Body) -> None:
    reply["choices"].append(reply["choices"][0] | {"index": 1})


def _other_model(reply: Body, body: Body) -> None:
    if body["prompt"].startswith(PROMPTS[2].text):
        reply["model"] = "a smaller one"


def _fails_if(condition: Callable[[Body], bool]) -> Spoil:
    return lambda _reply, body: 500 if condition(body) else None


def _without_seeds() -> AuditedServer:
    server = AuditedServer()

    def answers(body: Body) -> str:
        return f"{len(server.bodies):06}" if body["temperature"] else text_of(body)

    server.answers = answers
    return server


def _caching() -> AuditedServer:
    """After a prompt that begins this one, the answer is another."""
    seen: list[str] = []

    def answers(body: Body) -> str:
        cached = any(prompt != body["prompt"] and body["prompt"].startswith(prompt) for prompt in seen)
        seen.append(body["prompt"])
        return "?" * 9 if cached else text_of(body)

    return AuditedServer(answers)


def _begun(pieces: Iterable[bytes], then: Iterable[bytes] = ()) -> Iterator[bytes]:
    """The first pieces of a stream, and then something else."""
    yield from [*pieces][:3]
    yield from then


def _for_ever(piece: bytes) -> Iterator[bytes]:
    while True:
        yield piece


def _pings(server: AuditedServer) -> Iterator[bytes]:
    while not server.ended.wait(0.05):
        yield b": ping\n\n"


def _silence(_pieces: Iterable[bytes], server: AuditedServer) -> Iterator[bytes]:
    server.ended.wait()
    yield b""


ERROR = b'data: {"error": {"message": "out of memory"}}\n\n'
NO_NUMBERS = "log-probabilities: not log-probabilities"
NO_SEEDS = tuple(name for name in CONDITIONS if name not in ("alone", STEPWISE))
LIES = (
    Lie("all but the shortest prompts fail",
        _says(("alone", "after a longer one", "beside long prompts", "after 3 others"), "answer: status 500",
              "10 of 12 requests alone failed"),
        _lie("", "", "", _fails_if(lambda body: len(body["prompt"]) > 30)).server, 2),
    Lie("one prompt fails", _says(("alone",), "answer: status 500"),
        _lie("", "", "", _fails_if(lambda body: body["prompt"] == PROMPTS[5].text and body["temperature"] > 0)).server),
    Lie("answers are empty", _says((), "", "12 of 12 requests alone were answered with an empty text"),
        lambda: AuditedServer(lambda _: ""), 2),
    Lie("one answer to all",
        _says((STEPWISE,), "text: different", "12 of 12 requests alone were answered as most other prompts were"),
        lambda: AuditedServer(lambda _: "the same to everybody"), 2),
    Lie("no seeds", _says(NO_SEEDS, "text: different"), _without_seeds),
    Lie("a cache that matters", _says(CONDITIONS[4:], "text: different"), _caching),
    _lie(STREAMED, "empty streams", "text: empty", _text(lambda _: "")),
    _lie(LOAD, "another text under load", "text: different", _text(lambda body: text_of(body)[:2] + "?")),
    _lie(IDLE, "forgets when idle", "text: different", _text(lambda body: text_of(body)[:2] + "?")),
    _lie(STREAMED, "streams have reasoning", "text: split differently", _reasoning),
    _lie("", "NaN", NO_NUMBERS, _logprobs(lambda values: [math.nan] * len(values))),
    _lie(STREAMED, "NaN in streams", NO_NUMBERS, _logprobs(lambda values: [math.nan, *values[1:]])),
    _lie(LOAD, "infinity under load", NO_NUMBERS, _logprobs(lambda values: [-math.inf] * len(values))),
    _lie(AGAIN, "probabilities above 1", NO_NUMBERS, _logprobs(lambda values: [3.5] * len(values))),
    _lie(AGAIN, "other log-probabilities", "log-probabilities: different",
         _logprobs(lambda values: [value - 0.5 for value in values])),
    _lie(STREAMED, "no log-probabilities in streams", "tokens: missing; log-probabilities: missing",
         _choice(logprobs=None)),
    _lie(LOAD, "no log-probabilities under load", "tokens: missing; log-probabilities: missing",
         _choice(logprobs=None)),
    _lie(LOAD, "null for one", "log-probabilities: partly missing", _logprobs(lambda values: [None, *values[1:]])),
    _lie(AGAIN, "fewer than tokens", "log-probabilities: not one per token", _logprobs(lambda values: values[:-1])),
    _lie(STREAMED, "other token boundaries", "tokens: different", _two_at_a_time),
    _lie(LOAD, "another finish_reason", "finish_reason: different", _choice(finish_reason="stop")),
    _lie(STREAMED, "no finish_reason in streams", "finish_reason: missing", _choice(finish_reason=None)),
    _lie(AGAIN, "a token is not counted", "usage: different", _fewer_counted),
    _lie(STREAMED, "another prompt is counted", "usage: different", _usage(prompt_tokens=3)),
    _lie(LOAD, "no usage under load", "usage: missing", _without("usage")),
    _lie(IDLE, "no tokens are counted", "usage: different; usage: no tokens for a text", _usage(completion_tokens=0)),
    _lie("", "max_tokens is ignored", "tokens: more than requested; usage: more than requested", _unlimited),
    _lie(LOAD, "another model under load", "model: different", _named(model="a smaller one")),
    _lie("", "another model for a prompt", "model: different", _other_model),
    _lie(STREAMED, "no model in streams", "model: missing", _without("model")),
    _lie(IDLE, "another fingerprint when idle", "system_fingerprint: different", _named(system_fingerprint="fp2")),
    _lie(STREAMED, "no fingerprint in streams", "system_fingerprint: missing", _without("system_fingerprint")),
    _lie(AGAIN, "two choices", "choices: several", _two_choices),
    _lie(AGAIN, "no choices", "answer: malformed", _named(choices=[])),
    _lie(CACHED[0], "a number for a choice", "answer: malformed", _named(choices=[5])),
    _lie(LOAD, "a list for an answer", "answer: malformed", lambda _reply, _body: [5]),
    _lie(IDLE, "words for numbers", "answer: malformed", _logprobs(lambda values: ["few"] * len(values))),
    _lie(LOAD, "failures under load", "answer: status 500", _fails_if(lambda _: True)),
    _lie("after 3 others", "other prompts fail", "answer: status 500",
         _fails_if(lambda body: body["prompt"].startswith("Number 1."))),
    _wire(STREAMED, "a stream is cut", "answer: cut off", lambda pieces, _: _begun(pieces)),
    _wire(STREAMED, "an error within a stream", "answer: error in the stream",
          lambda pieces, _: _begun(pieces, [ERROR])),
    _wire(STREAMED, "a number for a chunk", "answer: malformed", lambda pieces, _: _begun(pieces, [b"data: 5\n\n"])),
    _wire(STREAMED, "a line without an end", "answer: too long",
          lambda pieces, _: _begun(pieces, _for_ever(b" " * 65536))),
    _wire(STREAMED, "lines without an end", "answer: too many lines",
          lambda pieces, _: _begun(pieces, _for_ever(b"\n" * 1000))),
    _wire(STREAMED, "pings for ever", "answer: timed out",
          lambda pieces, server: _begun(pieces, _pings(server)), slow=True),
    _wire(LOAD, "no more answers", "answer: timed out", _silence, slow=True),
)  # fmt: skip
