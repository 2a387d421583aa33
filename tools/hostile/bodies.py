"""Bodies that no honest client sends."""

from __future__ import annotations

import base64
import json
import random
import zlib
from typing import Any

from hostile.attempt import HOST, Attempt, ordinary_body, posted


def damaged(rng: random.Random) -> Attempt:
    """JSON with bytes changed, left out and put in."""
    path, body = ordinary_body(rng)
    data = bytearray(json.dumps(body).encode())
    for _ in range(rng.choice((1, 1, 2, 8))):
        at, what = rng.randrange(len(data)), rng.random()
        if what < 0.5:
            data[at] = rng.randrange(256)
        elif what < 0.7:
            del data[at:]
            data += b" "
        else:
            data[at:at] = rng.choice((b"{", b"[", b'"', b"\\", b"\0", b"\xff", b"9" * 400, b"null", b"[" * 5000))
    return posted(path, bytes(data))


def huge(rng: random.Random) -> Attempt:
    """Bodies above the limit, just below it, or with a length that is a lie."""
    path, body = ordinary_body(rng)
    what = rng.random()
    if what < 0.2:
        return posted(path, {**body, "metadata": {"x": "y" * (33 << 20)}})
    if what < 0.4:
        return posted(path, {**body, "unknown": [0] * rng.choice((100_000, 1_300_000))})
    if what < 0.7:
        return posted(
            path, {**body, "prompt": "word " * 400_000, "messages": [{"role": "user", "content": "x" * 900_000}]}
        )
    data = f"POST {path} HTTP/1.1\r\n{HOST}Content-Length: {rng.choice((10**9, 10**18, -1))}\r\n\r\n{{}}".encode()
    return Attempt(data, sent=len(data))


def deep(rng: random.Random) -> Attempt:
    """Nesting without end, as a whole or in a field of any content."""
    path, body = ordinary_body(rng)
    depth = rng.choice((200, 5000, 200_000))
    nested = rng.choice(("[", '{"a":')) * depth
    if rng.random() < 0.5:
        return posted(path, nested.encode())
    return posted(path, json.dumps({**body, "metadata": 0, "tools": 1}).replace("1}", f"{nested}}}").encode())


_FIELDS = (
    *(
        "max_tokens",
        "temperature",
        "top_p",
        "top_k",
        "n",
        "seed",
        "stop",
        "logprobs",
        "logit_bias",
        "messages",
        "prompt",
    ),
    *("stream", "tools", "tool_choice", "response_format", "presence_penalty", "repeat_penalty", "grammar", "input"),
    *(
        "model",
        "stream_options",
        "reasoning",
        "thinking",
        "echo",
        "suffix",
        "timeout",
        "chat_template_kwargs",
        "receipt",
    ),
)
_ABSURD = (
    *("1e999", "-1e999", "NaN", "9" * 400, "-" + "9" * 30, "1.5", "true", "null", "[]", "{}", '""', "[[[[]]]]"),
    *('"' + "x" * 100_000 + '"', '["' + '","'.join("abc" for _ in range(5000)) + '"]', '{"a":{"b":[]}}', '"\\ud800"'),
)


def absurd(rng: random.Random) -> Attempt:
    """Values that no field has."""
    path, body = ordinary_body(rng)
    for name in rng.sample(_FIELDS, rng.choice((1, 1, 3))):
        body[name] = f"@{name}@"
    text = json.dumps(body)
    for name in _FIELDS:
        text = text.replace(f'"@{name}@"', rng.choice(_ABSURD))
    return posted(path, text.encode())


def bias(rng: random.Random) -> Attempt:
    """A logit_bias of the whole vocabulary and more, of large numbers, or of what are no tokens."""
    count = rng.choice((300, 300, 90_000, 150_000))
    value = rng.choice((100, -100, 1e30, "x", None))
    given: Any = {str(token): value for token in range(count)}
    if rng.random() < 0.3:
        given = [[token, value] for token in range(count)]
    return posted("/v1/completions", {"prompt": "a", "max_tokens": 2, "logit_bias": given})


def unicode(rng: random.Random) -> Attempt:
    """Text that is none: halves of surrogates, bytes that are not UTF-8, zeros, marks without end."""
    path, body = ordinary_body(rng)
    bad = rng.choice((
        b"\\ud800", b"\\udfff\\ud800", b"\xff\xfe", b"\xc0\x80", b"\xed\xa0\x80", b"\\u0000", b"\xef\xbb\xbf",
        b"e" + "\u0301".encode() * 20_000, "\u202e\u2066".encode() * 100, b"<|im_end|>" * 300,
    ))  # fmt: skip
    return posted(path, json.dumps(body).encode().replace(b"and", bad, 3))


def stops(rng: random.Random) -> Attempt:
    """Stop strings by the thousand, or as long as a book."""
    given = rng.choice((["x" * i for i in range(1, 3000)], ["y" * 100_000], ["", "a"], [str(i) for i in range(4)]))
    return posted("/v1/completions", {"prompt": "a", "max_tokens": 8, "stop": given})


def conversation(rng: random.Random) -> Attempt:
    """Messages by the thousand, in orders and with roles that templates do not expect."""
    roles = ["user", "assistant"] * 3 + rng.choice(([], ["system"], ["tool", "system"], ["developer", "x", ""]))
    calls = [
        {"id": "1", "type": "function", "function": {"name": "f", "arguments": rng.choice(('{"a":', "[]", "1e999"))}}
    ]
    said = [
        {"role": rng.choice(roles), "content": rng.choice(("a", "", None, [{"type": "text", "text": "b"}]))}
        | ({"tool_calls": calls} if rng.random() < 0.2 else {})
        for _ in range(rng.choice((0, 3, 9, 9990)))
    ]
    path = rng.choice(("/v1/chat/completions", "/v1/messages", "/v1/messages/count_tokens", "/apply-template"))
    return posted(path, {"messages": said, "max_tokens": 4})


def image(rng: random.Random) -> Attempt:
    """Images that are bombs, broken, or none."""
    side = rng.choice((1, 64, 64, 4000, 30_000, 2**31 - 1))
    kind, data = rng.choice(("png", "jpeg", "webp", "gif", "svg+xml")), _png(side, side, rng)
    if rng.random() < 0.3:
        broken = bytearray(data)
        for _ in range(8):
            broken[rng.randrange(len(broken))] = rng.randrange(256)
        data = bytes(broken)
    url = f"data:image/{kind};base64,{base64.b64encode(data).decode()}"
    url = rng.choice(
        (url, url, url, "http://127.0.0.1:9/x.png", "file:///etc/passwd", "data:,", "data:image/png;base64,!")
    )
    part = {"type": "image_url", "image_url": {"url": url}}
    said = [{"role": "user", "content": [part] * rng.choice((1, 1, 2, 40))}]
    return posted("/v1/chat/completions", {"messages": said, "max_tokens": 2})


def _png(width: int, height: int, rng: random.Random) -> bytes:
    """A picture whose rows are compressed zeros: far fewer than its size says, or as many as there is room for."""

    def chunk(name: bytes, content: bytes) -> bytes:
        return len(content).to_bytes(4, "big") + name + content + zlib.crc32(name + content).to_bytes(4, "big")

    rows = zlib.compress(bytes((3 * width + 1) * height if width < 100 else rng.choice((100, 16_000_000))), 9)
    head = width.to_bytes(4, "big") + height.to_bytes(4, "big") + b"\x08\x02\x00\x00\x00"
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")
