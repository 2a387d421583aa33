"""Which pages of a browser may use a server, and bodies that two programs would read differently."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import httpx2 as httpx
import pytest

from support.servers.scripted import PLAIN_TEMPLATE, replying, serving
from trigraph.models.errors import TrigraphError
from trigraph.runtime import Engine
from trigraph.runtime.server.settings import Settings


@pytest.fixture(scope="module")
def engine() -> Engine:
    return replying("Yes.", template=PLAIN_TEMPLATE)


@pytest.fixture(scope="module")
def client(engine: Engine) -> Iterator[httpx.Client]:
    with serving(engine) as address, httpx.Client(base_url=address, timeout=60) as client:
        yield client


def test_pages_that_may_ask(engine: Engine) -> None:
    page = "https://page.example"
    asked = {"Origin": page, "Access-Control-Request-Method": "POST"}
    with serving(engine, Settings(port=0, cors_origins=(page,))) as address:
        assert httpx.options(f"{address}/v1/completions", headers=asked).status_code == 200
        answer = httpx.get(f"{address}/v1/models", headers={"Origin": page})
        assert answer.headers["access-control-allow-origin"] == page
        assert httpx.get(f"{address}/v1/models", headers={"Origin": "https://a.example"}).status_code == 403


@pytest.mark.parametrize(
    ("allowed", "origin", "status"),
    [
        ("http://localhost:*", "http://localhost:5173", 200),
        ("http://localhost:*", "http://localhost", 403),
        ("http://localhost:*", "https://localhost:5173", 403),
        ("http://localhost:*", "http://localhost.evil.example:80", 403),
        ("app://*", "app://obsidian.md", 200),
        ("app://*", "http://app", 403),
        ("https://*.example.org", "https://a.example.org", 200),
        ("https://*.example.org", "https://evil.example/.example.org", 403),
        ("https://example.org", "https://exampleXorg", 403),
        ("*", "null", 200),
    ],
)
def test_patterns_of_origins(engine: Engine, allowed: str, origin: str, status: int) -> None:
    asked = {
        "Origin": origin,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Private-Network": "true",
    }
    with serving(engine, Settings(port=0, cors_origins=(allowed,))) as address:
        preflight = httpx.options(f"{address}/v1/completions", headers=asked)
        assert (preflight.status_code == 200) == (status == 200)
        if status == 200:
            assert preflight.headers["access-control-allow-private-network"] == "true"
            assert preflight.headers["access-control-allow-origin"] == origin
        assert httpx.get(f"{address}/v1/models", headers={"Origin": origin}).status_code == status


@pytest.mark.parametrize(
    ("origin", "taken"),
    [
        *((text, True) for text in ("*", "null", "file://", "app://*", "app://obsidian.md", "tauri://localhost")),
        *((text, True) for text in ("http://localhost:*", "http://localhost", "https://*.example.org:8443")),
        *((text, True) for text in ("http://[::1]:*", "http://127.0.0.1:3000", "chrome-extension://abcdefgh")),
        *((text, False) for text in ("localhost", "notaorigin", "", "example.org", "localhost:3000", "http://")),
        *((text, False) for text in ("https://example.org/", "https://example.org/page", "https://Example.org")),
        *((text, False) for text in ("http://a b", "http://localhost:x", "http://u:p@example.org", "https://ä.de")),
        *((text, False) for text in ("//example.org", "http:localhost", "http://a,http://b", "http://a?b", "a://b\n")),
    ],
)
def test_what_is_an_origin(origin: str, taken: bool) -> None:
    if taken:
        assert Settings(cors_origins=(origin,)).origins is not None
        return
    with pytest.raises(TrigraphError, match=r"--cors-origin is .* an origin is a scheme and a host"):
        Settings(cors_origins=("https://example.org", origin))


def test_bodies_that_two_programs_would_read_differently(client: httpx.Client) -> None:
    place = (client.base_url.host, client.base_url.port or 0)
    with socket.create_connection(place, timeout=100) as connection:
        head = "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"
        connection.sendall(f"{head}0\r\n\r\n".encode())
        assert b" 400 " in connection.recv(1000)
    for encoding, status in (("gzip", 415), ("identity", 200)):
        response = client.post("/tokenize", json={"content": "a"}, headers={"Content-Encoding": encoding})
        assert response.status_code == status
