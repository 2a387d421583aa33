"""Answers that their clients do not read."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

from uvicorn.server import ServerState

from support.servers.scripted import replying
from trigraph.runtime.server.app import App, ServedModel
from trigraph.runtime.server.serving import _configuration
from trigraph.runtime.server.settings import Settings


def test_what_nobody_reads_is_given_up() -> None:
    """And not what is read slowly. An answer stayed in memory for as long as its client did nothing."""
    config = _configuration(App.of(ServedModel(replying("Yes."), Settings(write_seconds=7.0))))
    config.load()
    loop, transport = Mock(), Mock()
    made: Any = config.http_protocol_class
    protocol = made(config=config, server_state=ServerState(), app_state={}, _loop=loop)
    protocol.connection_made(transport)
    transport.get_write_buffer_size.return_value = 100_000
    protocol.pause_writing()
    for unread in (100_000, 99_999):
        seconds, look, *given = loop.call_later.call_args.args
        assert seconds == 7 and given == [unread] and not transport.abort.called
        transport.get_write_buffer_size.return_value = 99_999
        look(*given)
    assert transport.abort.called
    protocol.pause_writing()
    protocol.resume_writing()
    protocol.pause_writing()
    protocol.connection_lost(None)
    assert loop.call_later.return_value.cancel.call_count == 3  # that for a request as well
