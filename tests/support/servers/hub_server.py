"""A small hub on loopback, which speaks the HTTP of Hugging Face: redirects, ranges, hashes, broken downloads."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

REVISION = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Hub:
    """Repositories with their files, and what was asked for."""

    files: dict[str, dict[str, bytes]]
    address: str = ""
    gated: set[str] = field(default_factory=set)
    break_after: list[int] = field(default_factory=list)
    """For each of the next downloads, bytes after which the connection is cut."""
    damaged: set[str] = field(default_factory=set)
    """Files that arrive with other bytes than they have."""
    sent: list[tuple[str, int, int]] = field(default_factory=list)
    """Downloads: path, first byte, bytes sent."""

    @property
    def cdn(self) -> str:
        """Another host, from which files come: redirects within the hub are followed at once."""
        return self.address.replace("127.0.0.1", "localhost")


@contextmanager
def hub_server(files: dict[str, dict[str, bytes]]) -> Iterator[Hub]:
    """Serves the repositories while the block runs."""
    hub = Hub(files)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    hub.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join(100)


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *arguments: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._respond()

    def do_GET(self) -> None:
        self._respond()

    def _respond(self) -> None:
        path = unquote(urlsplit(self.path).path).strip("/")
        match path.split("/"):
            case ["api", "models", user, repository, *_]:
                self._describe(f"{user}/{repository}")
            case [user, repository, "resolve", _, *name]:
                self._redirect(f"{user}/{repository}", "/".join(name))
            case ["cdn", user, repository, *name]:
                self._send(f"{user}/{repository}", "/".join(name))
            case _:
                self._answer(404)

    def _answer(self, status: int, content: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _refused(self, repository: str) -> bool:
        if repository in self.hub.gated:
            self._answer(403, X_Error_Code="GatedRepo", X_Error_Message="Access is restricted")
        elif repository not in self.hub.files:
            self._answer(401, X_Error_Code="RepoNotFound", X_Error_Message="Repository not found")
        else:
            return False
        return True

    def _describe(self, repository: str) -> None:
        if not self._refused(repository):
            files = self.hub.files[repository].items()
            siblings = [{"rfilename": name, "size": len(content)} for name, content in files]
            content = {"id": repository, "modelId": repository, "sha": REVISION, "siblings": siblings, "tags": []}
            self._answer(200, json.dumps(content).encode(), Content_Type="application/json")

    def _redirect(self, repository: str, name: str) -> None:
        if self._refused(repository):
            return
        content = self.hub.files[repository].get(name)
        if content is None:
            self._answer(404, X_Error_Code="EntryNotFound")
            return
        self._answer(
            302,
            Location=f"{self.hub.cdn}/cdn/{repository}/{name}",
            X_Repo_Commit=REVISION,
            X_Linked_Size=str(len(content)),
            X_Linked_Etag=f'"{hashlib.sha256(content).hexdigest()}"',
            ETag='"of-the-pointer"',
        )

    def _send(self, repository: str, name: str) -> None:
        content, first = self.hub.files[repository][name], 0
        if name in self.hub.damaged:
            content = content[:-1] + bytes([content[-1] ^ 1])
        if wanted := self.headers.get("Range"):
            first = int(wanted.removeprefix("bytes=").split("-")[0])
        self.send_response(206 if wanted else 200)
        self.send_header("Content-Length", str(len(content) - first))
        if wanted:
            self.send_header("Content-Range", f"bytes {first}-{len(content) - 1}/{len(content)}")
        self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
        self.end_headers()
        if self.command == "HEAD":
            return
        rest = content[first:]
        cut = self.hub.break_after.pop(0) if self.hub.break_after else len(rest)
        self.hub.sent.append((name, first, min(cut, len(rest))))
        self.wfile.write(rest[:cut])
        if cut < len(rest):
            self.close_connection = True
