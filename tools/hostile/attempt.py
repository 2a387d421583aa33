"""A request of a soak: bytes, and how they are sent."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

MOST_TOKENS = 16  # of what a completion may have that is not cut off
HOST = "Host: 127.0.0.1\r\nConnection: close\r\n"


@dataclass(frozen=True)
class Attempt:
    """Bytes for a connection, and how they are sent."""

    data: bytes
    dripped: int = 0
    """How many of the last bytes are sent one by one, over a second or two."""
    sent: int | None = None
    """After how many bytes the client goes away; None: it reads the whole answer."""
    read: int | None = None
    """After how many bytes of the answer it goes away."""
    answered: bool = True
    """Whether it is HTTP, which always has an answer."""


Kind = Callable[[random.Random], Attempt]


def posted(path: str, body: bytes | dict[str, Any], **how: Any) -> Attempt:
    """A request with that body."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Attempt(f"POST {path} HTTP/1.1\r\n{HOST}Content-Length: {len(data)}\r\n\r\n".encode() + data, **how)


def ordinary_body(rng: random.Random) -> tuple[str, dict[str, Any]]:
    """A path, and a body that is right there."""
    path = rng.choice(("/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages", "/completion"))
    text = " ".join(rng.choices(("and", "the", "words", "of", "kings"), k=rng.randint(1, 30)))
    said = [{"role": "user", "content": text}]
    most = rng.randint(1, MOST_TOKENS)
    body: dict[str, Any] = {"stream": rng.random() < 0.5, "temperature": rng.choice((0, 0.8)), "model": "tiny"}
    body |= {
        "/v1/completions": {"prompt": text, "max_tokens": most},
        "/completion": {"prompt": text, "n_predict": most},
    }.get(
        path,
        {"input": text, "max_output_tokens": most}
        if path == "/v1/responses"
        else {"messages": said, "max_tokens": most},
    )
    return path, body
