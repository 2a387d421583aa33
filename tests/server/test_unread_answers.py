"""Answers that their clients do not read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

from uvicorn.server import ServerState

from support.servers.scripted import replying
from trigraph.runtime.server.app import App, ServedModel
from trigraph.runtime.server.serving import _configuration
from trigraph.runtime.server.settings import Settings


def connections() -> Callable[[], tuple[Any, Mock, Mock]]:
    """Makes connections of one server: a protocol with its transport and loop."""
    config = _configuration(App.of(ServedModel(replying("Yes."), Settings(write_seconds=7.0))))
    config.load()
    made: Any = config.http_protocol_class

    def connect() -> tuple[Any, Mock, Mock]:
        loop, transport = Mock(), Mock()
        protocol = made(config=config, server_state=ServerState(), app_state={}, _loop=loop)
        protocol.connection_made(transport)
        return protocol, transport, loop

    return connect


def test_what_nobody_reads_is_given_up() -> None:
    """And not what is read slowly. An answer stayed in memory for as long as its client did nothing."""
    connect = connections()
    protocol, transport, loop = connect()
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


def test_the_slowest_are_given_up_where_all_have_too_much_to_read() -> None:
    """Answers of 200 MB could be read at a kilobyte a second, any number of them, for days."""
    connect = connections()

    def answer(size: int) -> tuple[Any, Mock]:
        protocol, transport, _ = connect()
        transport.get_write_buffer_size.return_value = size
        protocol.pause_writing()
        return protocol, transport

    streams = [answer(64 << 10)[1] for _ in range(3)]
    (_, slow), (read, done), (_, slower), (_, last) = (answer(300 << 20) for _ in range(4))
    assert slow.abort.called and not any(transport.abort.called for transport in (done, slower, last, *streams))
    slow.get_write_buffer_size.return_value = 0
    read.resume_writing()
    done.get_write_buffer_size.return_value = 0
    _, newest = answer(2 << 30)  # alone, it may be larger
    assert slower.abort.called and last.abort.called
    assert not any(transport.abort.called for transport in (done, newest, *streams))
