"""Signs of life in a stream that may be silent for long."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import suppress
from typing import TypeVar

_Item = TypeVar("_Item")
_Sign = TypeVar("_Sign")


async def alive(items: AsyncIterator[_Item], seconds: float, sign: _Sign) -> AsyncGenerator[_Item | _Sign, None]:
    """The items, and `sign` whenever none has come for so long."""
    end = object()
    while True:
        following = asyncio.ensure_future(anext(items, end))
        try:
            while not (await asyncio.wait((following,), timeout=seconds))[0]:
                yield sign
        finally:
            if not following.done():
                following.cancel()
                with suppress(asyncio.CancelledError):
                    await following
        if (item := following.result()) is end:
            return
        yield item  # type: ignore[misc]
