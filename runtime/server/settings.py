"""What the operator of a server decides."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from trigraph.models.errors import TrigraphError, quote
from trigraph.runtime.requests.options import Options
from trigraph.runtime.text.template import ChatTemplate

if TYPE_CHECKING:
    from trigraph.runtime.receipt.signing import Signer

# What browsers send as Origin: scheme, host, and a port if it is not the scheme's; `*` stands for any characters.
_ORIGIN = re.compile(r"\*|null|file://|[a-z*][a-z0-9+.*-]*://([a-z0-9._*-]+|\[[0-9a-f:.*]+\])(:([0-9]+|\*))?")


@dataclass(frozen=True)
class Settings:
    """How the server listens, whom it serves, and how much it takes from them."""

    model: str = "trigraph"
    """The model's name to clients."""
    aliases: tuple[str, ...] = ()
    """Other names of it."""
    path: str | None = None
    """The model's file or package."""
    defaults: Options = field(default_factory=Options)
    """What a request gets for fields that it leaves out."""
    template: ChatTemplate | None = None
    """Replaces the model's own."""
    template_variables: Mapping[str, Any] = field(default_factory=dict)
    """What the chat template is given that a request does not say otherwise."""
    effort_map: Mapping[str, str] = field(default_factory=dict)
    """Reasoning efforts in place of those that requests name."""
    seed: int | None = None
    """The seed of requests without one; None: a new one for each."""
    host: str = "127.0.0.1"
    port: int = 8080
    api_keys: tuple[str, ...] = ()
    """Keys of which a request must have one; empty: none is asked for."""
    cors_origins: tuple[str, ...] = ()
    """Allowed CORS origins: https://example.org, http://localhost:* (any port), app://* (all of a scheme), or *."""
    max_images: int = 32
    """Images of a request."""
    max_body: int = 32 << 20
    """Bytes of a request."""
    max_bodies: int = 128 << 20
    """Bytes of all requests that are being read."""
    read_seconds: float = 30.0
    """How long a client may take to send a request: its head, and then its body."""
    write_seconds: float = 60.0
    """How long a client may read nothing of what is sent to it."""
    drain_seconds: float = 30.0
    """How long requests may take to end after SIGTERM."""
    signer: Signer | None = None
    """Signs receipts."""
    log_prompts: bool = False
    verbose: bool = False

    def __post_init__(self) -> None:
        """Raises TrigraphError for a host without a name, and for an origin that no browser sends."""
        if not self.host:
            raise TrigraphError("--host is empty; name an address, 127.0.0.1 for this machine or 0.0.0.0 for all")
        for origin in self.cors_origins:
            if not _ORIGIN.fullmatch(origin):
                raise TrigraphError(
                    f"--cors-origin is {quote(origin)}; an origin is a scheme and a host in small letters, without a "
                    "path: https://example.org, 'http://localhost:*', 'app://*', or '*' for all"
                )

    @cached_property
    def origins(self) -> re.Pattern[str] | None:
        """Matches the allowed origins of other hosts; None where there are none."""
        patterns = [re.escape(origin).replace(r"\*", "[^/]*") for origin in self.cors_origins if origin != "*"]
        if "*" in self.cors_origins:
            patterns.append(".*")
        return re.compile("|".join(patterns)) if patterns else None

    @property
    def address(self) -> str:
        """Where the server is, as a URL."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    @property
    def local(self) -> bool:
        """Whether only programs of this machine reach the server."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False
