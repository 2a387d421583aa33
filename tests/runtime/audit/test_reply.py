"""Answers that are no answers: each is refused with a sentence, or read as what it is."""

from __future__ import annotations

import json
import math
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from trigraph.models.errors import TrigraphError
from trigraph.runtime.audit import Client
from trigraph.runtime.audit.answer import Answer
from trigraph.runtime.audit.comparison import Finding, difference
from trigraph.runtime.audit.connection import ServerError
from trigraph.runtime.audit.plan import GREEDY, Case
from trigraph.runtime.audit.reply import Reply, parse


def read(*chunks: Any) -> Answer:
    reply = Reply(8)
    for chunk in chunks:
        reply.add(chunk)
    return reply.answer()


@pytest.mark.parametrize(
    ("chunk", "sentence"),
    [
        ({}, "the answer has no choices"),
        ({"choices": {}}, "choices is an object; it must be a list"),
        ({"choices": [5]}, "choices[0] is 5; it must be an object"),
        ({"choices": [{"text": 5}]}, "choices[].text is 5; it must be a text"),
        ({"choices": [{"message": "hi"}]}, "choices[].message is 'hi'; it must be an object"),
        ({"choices": [{"message": {"content": ["hi"]}}]}, "choices[].message.content is a list; it must be a text"),
        ({"choices": [{"index": "0"}]}, "choices[].index is '0'; it must be a whole number"),
        ({"choices": [{"logprobs": [1]}]}, "choices[].logprobs is a list; it must be an object"),
        ({"choices": [{"logprobs": {"token_logprobs": ["few"]}}]}, "token_logprobs[] is 'few'; it must be a number"),
        ({"choices": [{"logprobs": {"token_logprobs": [True]}}]}, "token_logprobs[] is True; it must be a number"),
        ({"choices": [{"logprobs": {"tokens": [None]}}]}, "tokens[] is None; it must be a text"),
        ({"choices": [{"logprobs": {"content": [5]}}]}, "content[] is 5; it must be an object"),
        ({"choices": [{"finish_reason": 5}]}, "finish_reason is 5; it must be a text"),
        ({"choices": [{}], "usage": 5}, "usage is 5; it must be an object"),
        ({"choices": [{}], "usage": {"prompt_tokens": 1.5}}, "usage.prompt_tokens is 1.5; it must be a whole number"),
        ({"choices": [{}], "model": "m" * 5000}, "model is longer than 4096 characters"),
        ({"choices": [{"text": "x" * 4000}]}, "a text of more than 3400 characters; 8 tokens were requested"),
        ({"choices": [{"logprobs": {"tokens": ["x"] * 200}}]}, "more than 192 tokens; 8 were requested"),
    ],
)
def test_what_is_no_answer_is_named(chunk: Any, sentence: str) -> None:
    with pytest.raises(ServerError) as error:
        read(chunk)
    assert sentence in str(error.value)


@pytest.mark.parametrize("content", [b"", b"5", b"[1]", b"{", b"[" * 100_000, b"\xff", b'{"a": ' + b"1" * 5000 + b"}"])
def test_what_is_no_json_object_is_named(content: bytes) -> None:
    with pytest.raises(ServerError) as error:
        parse(content)
    assert len(str(error.value)) < 200


def test_numbers_are_read_as_they_are() -> None:
    values = [None, math.nan, -math.inf, 10**400, -1]
    answer = read({"choices": [{"text": "abcde", "logprobs": {"tokens": [*"abcde"], "token_logprobs": values}}]})
    assert answer.logprobs == (None, math.nan, -math.inf, math.inf, -1.0)
    entries = [{"token": "a", "logprob": None}, {"token": 7, "logprob": -1}]
    answer = read({"choices": [{"message": {"content": "a"}, "logprobs": {"content": entries}}]})
    assert (answer.tokens, answer.logprobs) == (("a", "7"), (None, -1.0))
    assert read({"choices": [{"text": "a", "logprobs": {"tokens": ["a"], "token_logprobs": [None]}}]}).logprobs is None


def test_chunks_are_put_together() -> None:
    answer = read(
        {"model": "m", "choices": [{"delta": {"role": "assistant", "content": None}}]},
        {"model": "m", "choices": [{"delta": {"reasoning_content": "We"}}]},
        {"model": "n", "choices": [{"delta": {"content": "l"}}]},
        {"choices": [{"delta": {"content": "l"}, "finish_reason": "stop"}], "usage": None},
        {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}},
    )
    assert answer == Answer("Well", finish_reason="stop", usage=(3, 2), model="m, n", reasoning=2)


ONE = Answer("abc", ("a", "bc"), (-1.0, -2.0))


@pytest.mark.parametrize(
    ("found", "findings", "place"),
    [
        (ONE, [], None),
        (Answer("abc"), [("tokens", "missing"), ("log-probabilities", "missing")], (None, None, 0.0)),
        (Answer("abc", ("a", "bc"), (-1.0, -2.5)), [("log-probabilities", "different")], (1, None, 0.5)),
        (Answer("abd", ("a", "bd"), (-1.25, -9.0)), [("text", "different")], (1, 2, 0.25)),
        (Answer("abc", ("ab", "c"), (-3.0, -4.0)), [("tokens", "different")], (None, None, 0.0)),
        (Answer("", None, None, "stop"), [("finish_reason", "only here"), ("text", "empty")], (None, 0, 0.0)),
    ],
)
def test_differences(found: Answer, findings: list[tuple[str, str]], place: tuple[Any, ...] | None) -> None:
    told = difference(ONE, found, 8)
    assert (told is None) == (not findings)
    if told is not None:
        assert [(each.part, each.what) for each in told.findings] == findings
        assert (told.token, told.character, told.largest) == place


def test_an_end_differs_with_its_text_and_is_told_where_texts_are_equal() -> None:
    one = Answer("ab", finish_reason="length", usage=(3, 2), model="m")
    assert difference(one, Answer("a", finish_reason="stop", usage=(3, 1), model="m"), 8).findings == (  # type: ignore
        Finding("text", "different", "from character 1 on"),
    )
    assert difference(one, Answer("ab", finish_reason="stop", usage=(4, 2), model="m"), 8).findings == (  # type: ignore
        Finding("finish_reason", "different", "'stop'; alone 'length'"),
        Finding("usage", "different", "(4, 2); alone (3, 2)"),
    )


@contextmanager
def sending(content: bytes, pauses: threading.Event | None = None) -> Iterator[str]:
    """A server that answers any request with these bytes; it sends them one by one, for ever, with `pauses`."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(1 << 16)
                    try:
                        connection.sendall(content)
                        while pauses is not None and not pauses.wait(0.01):
                            connection.sendall(content[-1:])
                        connection.shutdown(socket.SHUT_WR)
                        while connection.recv(1 << 16):  # what is not read would reset the connection
                            pass
                    except OSError:
                        pass

        threading.Thread(target=serve, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            if pauses is not None:
                pauses.set()


def complete(url: str, *, seconds: float = 60, stream: bool = False) -> ServerError:
    client = Client(url)
    client.seconds = seconds
    with pytest.raises(ServerError) as error:
        client.complete(Case("one", GREEDY), 4, stream=stream)
    return error.value


HEAD = b"HTTP/1.1 200 OK\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"", "cut off"),
        (b"SSH-2.0\r\n", "cut off"),
        (HEAD + b"X: " + b"x" * 100_000, "cut off"),
        (HEAD + b"x: y\r\n" * 1000 + b"\r\n", "cut off"),
        (HEAD + b'Content-Length: 100\r\n\r\n{"choices"', "cut off"),
        (HEAD + b"Content-Length: 2\r\n\r\n{}", "malformed"),
        (CHUNKED + b"zz\r\n{}", "cut off"),
        (CHUNKED + b"-5\r\n{}", "cut off"),
        (CHUNKED + b"fffffffffffffff\r\n{}", "cut off"),
        (HEAD + b"\r\n" + b" " * (2 << 20), "too long"),
        (b"HTTP/1.1 302 Found\r\nLocation: http://[/\r\n\r\n", "status 302"),
        (b"HTTP/1.1 418 Tea\r\n\r\n[1]", "status 418"),
        (b"HTTP/1.1 500 No\r\nContent-Length: 50\r\n\r\n{", "status 500"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_broken_response_is_an_error_with_a_sentence(content: bytes, what: str, stream: bool) -> None:
    with sending(content) as url:
        error = complete(url, stream=stream)
    assert error.what == what or (stream and error.what in ("cut off", "malformed", "too long")), error.what
    assert str(error)


@pytest.mark.parametrize(
    "content", [b"HTTP/1.1 200 O", HEAD + b"X: x", HEAD + b"\r\n ", CHUNKED + b"1", HEAD + b"\r\n: ping\n"]
)
@pytest.mark.parametrize("stream", [False, True])
def test_bytes_that_come_one_by_one_are_no_reason_to_wait_for_ever(content: bytes, stream: bool) -> None:
    with sending(content, threading.Event()) as url:
        assert complete(url, seconds=0.2, stream=stream).what in ("timed out", "malformed", "cut off")


@pytest.mark.parametrize("data", [5, [5], {"0": 1}, [], [{"id": 5}], [{"id": "x" * 5000}], None])
def test_a_list_of_models_may_be_anything(data: Any) -> None:
    body = json.dumps({"data": data}).encode()
    with sending(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body) as url:
        assert Client(url)._first_model() is None


@pytest.mark.parametrize(
    ("url", "key"),
    [
        ("http://[", None), ("http://h:99999", None), ("http://h:x", None), ("ftp://h", None), ("h", None),
        ("http://h/\n", None), ("http://é", None), ("http://h", "a\nb"), ("http://h", "é"),
    ],
)  # fmt: skip
def test_addresses_and_keys_that_http_cannot_have(url: str, key: str | None) -> None:
    with pytest.raises(TrigraphError):
        Client(url, key=key)
