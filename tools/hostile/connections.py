"""Clients that go away, are slow, or speak no HTTP."""

from __future__ import annotations

import random

from hostile.attempt import Attempt, ordinary_body, posted


def cut(rng: random.Random) -> Attempt:
    """A client that goes away: within the head, the body or the answer."""
    path, body = ordinary_body(rng)
    whole = posted(path, {**body, "stream": True, "max_tokens": 2000, "n_predict": 2000, "max_output_tokens": 2000})
    if rng.random() < 0.5:
        return Attempt(whole.data, read=rng.choice((0, 1, 300, 2000)))
    return Attempt(whole.data, sent=rng.randrange(1, len(whole.data)))


def slow(rng: random.Random) -> Attempt:
    """A client that sends its last bytes one by one."""
    path, body = ordinary_body(rng)
    return posted(path, body, dripped=rng.randint(5, 40))


def no_http(rng: random.Random) -> Attempt:
    """Bytes that are no request, or hardly one."""
    lines = rng.choice((
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + rng.randbytes(200), rng.randbytes(300),
        b"GET / HTTP/9.9\r\n\r\n", b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 20_000 + b"\r\n",
        b"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET /../../etc/passwd HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n",
    ))  # fmt: skip
    return Attempt(lines, answered=False)
