"""Threads that read requests. They are many: where some wait for a grammar to be compiled, others find one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TypeVar

_T = TypeVar("_T")
_COUNT = 192  # more than may wait for grammars


async def in_thread(function: Callable[..., _T], *arguments: object) -> _T:
    """What a function returns that may take long."""
    return await asyncio.get_running_loop().run_in_executor(_threads(), function, *arguments)


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_COUNT, "trigraph-requests")
