"""What `import trigraph` shows to a person: names, help, short texts of objects, and requests to be awaited."""

from __future__ import annotations

import asyncio
import pydoc
import subprocess
import sys
from importlib.metadata import version

import pytest

import trigraph
from support.fakes.engine import GREEDY, engine_of, scripted
from trigraph.runtime.api import __all__ as public

TEXT = b"the sky is blue"


def made() -> trigraph.Engine:
    return engine_of(scripted(TEXT, 4))[0]


def test_names() -> None:
    assert trigraph.__version__ == version("trigraph")
    assert {"load", "Engine", "EngineConfig", "Options", "Request", "TrigraphError", "QueueFullError"} <= set(
        dir(trigraph)
    )
    assert not {"os", "import_module", "Any", "cli"} & set(dir(trigraph))
    assert all(getattr(trigraph.runtime, name) is getattr(trigraph, name) for name in public)
    assert trigraph.exporter.export is not None
    assert all(hasattr(trigraph, name) for name in dir(trigraph))
    with pytest.raises(AttributeError, match="no attribute 'Motor'"):
        getattr(trigraph, "Motor")  # noqa: B009 (mypy knows that it is not there)


def test_help_has_every_name() -> None:
    text = pydoc.plain(pydoc.render_doc(trigraph))
    assert "class Engine" in text and "load(path" in text and "class TrigraphError" in text


def test_the_module_itself_imports_little() -> None:
    for asked in ("import trigraph", "import trigraph.runtime", "from trigraph import runtime"):
        code = f"import sys; {asked}; sys.exit('numpy' in sys.modules)"
        assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0, asked


def test_texts_of_objects_are_short() -> None:
    engine = made()
    assert len(repr(engine)) < 100
    request = engine.generate(list(b"Why?"), trigraph.Options(GREEDY, max_tokens=5))
    assert repr(request) == "Request(4 tokens of prompt, 0 generated, not begun)"
    request.run()
    assert repr(request) == "Request(4 tokens of prompt, 5 generated, length)"
    assert {"text", "ids", "stats", "result", "cancel"} <= set(dir(request))
    assert not {"sequence", "running", "rank", "suspect_until"} & set(dir(request))


def test_requests_are_awaited() -> None:
    engine, options = made(), trigraph.Options(GREEDY, max_tokens=6)

    async def both() -> list[str]:
        first = engine.submit(list(b"Why?"), options)
        texts = await asyncio.gather(first, engine.generate(list(b"Why?"), options), first)
        return [*texts, await first]

    assert asyncio.run(both()) == ["the sk"] * 4


def test_what_is_awaited_fails_and_ends_as_a_request_does() -> None:
    async def fails() -> None:
        engine = made()
        request = engine.submit(list(b"Why?"), trigraph.Options(GREEDY, max_tokens=50))
        engine.close()
        await request

    with pytest.raises(trigraph.TrigraphError, match="closed"):
        asyncio.run(fails())

    async def leaves() -> trigraph.Request:
        request = made().generate(list(b"Why?"), trigraph.Options(GREEDY))
        task = asyncio.ensure_future(request)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return request

    assert asyncio.run(leaves()).result(60) is not None
