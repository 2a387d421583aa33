"""Several models in one server: chosen by name, loaded on demand, unloaded for others and when nobody uses them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from support.command import Run, assert_one_line_error
from support.servers.scripted import PLAIN_TEMPLATE, replying, serving
from trigraph.runtime import Engine
from trigraph.runtime.server.app import App, Entry
from trigraph.runtime.server.settings import Settings


class Models:
    """Fake models of ten bytes each that say their names, and how often each was loaded."""

    def __init__(self, *names: str, **limits: Any) -> None:
        self.loads: list[str] = []
        self.engines: list[tuple[str, Engine]] = []
        self.may_load = threading.Event()
        self.may_load.set()
        self.app = App(
            Settings(model=names[0], port=0), {name: Entry(10, self._loader(name)) for name in names}, **limits
        )

    def _loader(self, name: str) -> Callable[[], tuple[Engine, Settings]]:
        def load() -> tuple[Engine, Settings]:
            assert self.may_load.wait(60)
            self.loads.append(name)
            self.engines.append((name, engine := replying(name, template=PLAIN_TEMPLATE)))
            return engine, Settings(model=name, port=0)

        return load

    @property
    def loaded(self) -> set[str]:
        return {name for name, entry in self.app.entries.items() if entry.model is not None}


def ask(address: str, model: str | None, **fields: Any) -> httpx.Response:
    body = {"messages": [{"role": "user", "content": "Hi"}], "temperature": 0, **fields}
    return httpx.post(
        f"{address}/v1/chat/completions", json=body | ({} if model is None else {"model": model}), timeout=60
    )


def said(response: httpx.Response) -> tuple[str, str]:
    content = response.json()
    return content["model"], content["choices"][0]["message"]["content"]


def until(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_the_model_of_a_request_is_loaded() -> None:
    models = Models("one", "two")
    with serving(models.app) as address:
        assert [entry["status"]["value"] for entry in httpx.get(f"{address}/v1/models").json()["data"]] == [
            "unloaded"
        ] * 2
        assert not models.loads
        assert said(ask(address, "two")) == ("two", "two") and models.loads == ["two"]
        assert said(ask(address, None)) == ("one", "one"), "the first one, without a name"
        for _ in range(2):
            assert said(ask(address, "two")) == ("two", "two")
        assert models.loads == ["two", "one"]
        listed = {entry["id"]: entry for entry in httpx.get(f"{address}/v1/models").json()["data"]}
        assert listed["two"]["status"] == {"value": "loaded"} and listed["two"]["max_model_len"] == 4096
        assert httpx.get(f"{address}/v1/models/one").json()["id"] == "one"
        refused = ask(address, "three")
        assert refused.status_code == 404 and refused.json()["error"]["code"] == "model_not_found"
        assert "the models here are one, two" in refused.json()["error"]["message"]
        assert httpx.get(f"{address}/v1/models/three").status_code == 404
        assert httpx.post(f"{address}/v1/chat/completions", content=b"{").json()["error"]["code"] == "invalid_json"
        assert httpx.get(f"{address}/props", params={"model": "two"}).json()["model_alias"] == "two"
        assert httpx.post(f"{address}/tokenize", json={"content": "ab", "model": "two"}).json()["count"] == 2
        assert httpx.get(f"{address}/health").json() == {"status": "ok"}
        text = httpx.get(f"{address}/metrics").text
        assert text.count("# TYPE vllm:prompt_tokens_total") == 1 and 'model_name="one"' in text and '"two"' in text


def test_streams_say_which_model_they_are_of() -> None:
    models = Models("one", "two")
    with serving(models.app) as address:
        assert '"model":"two"' in ask(address, "two", stream=True).text
        service = models.app.entries["two"].model
        assert service is not None
        until(lambda: not service.users)


def test_the_least_recently_used_model_makes_room() -> None:
    models = Models("one", "two", "three", budget=20)
    with serving(models.app) as address:
        for name in ("one", "two", "one", "three"):
            assert said(ask(address, name)) == (name, name)
        assert models.loaded == {"one", "three"}
        (two,) = (engine for name, engine in models.engines if name == "two")
        assert two._driver.closed
        assert said(ask(address, "two")) == ("two", "two") and models.loaded == {"two", "three"}


def test_a_model_in_use_stays() -> None:
    models = Models("one", "two", budget=10)
    with serving(models.app) as address:
        ask(address, "one")
        service = models.app.entries["one"].model
        assert service is not None
        service.users += 1
        refused = ask(address, "two")
        assert refused.status_code == 503 and refused.json()["error"]["code"] == "model_busy"
        assert refused.headers["Retry-After"]
        service.users -= 1
        assert said(ask(address, "two")) == ("two", "two") and models.loaded == {"two"}


def test_requests_wait_for_one_load() -> None:
    models = Models("one", "two")
    models.may_load.clear()
    with serving(models.app) as address, ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(ask, address, "one") for _ in range(4)]
        assert httpx.get(f"{address}/health").json() == {"status": "ok"}, "while a model is loaded"
        models.may_load.set()
        assert {said(future.result(60)) for future in waiting} == {("one", "one")} and models.loads == ["one"]


def test_a_model_that_cannot_be_loaded_fails_its_requests_alone() -> None:
    models = Models("one", "two")

    def fail() -> Any:
        raise OSError("the disk is gone")

    models.app.entries["two"].load = fail
    with serving(models.app) as address:
        assert ask(address, "two").status_code == 500
        assert said(ask(address, "one")) == ("one", "one")


def test_an_idle_model_is_unloaded() -> None:
    models = Models("one", "two", idle_seconds=0.0)
    with serving(models.app) as address:
        assert said(ask(address, "one")) == ("one", "one")
        until(lambda: not models.loaded)
        assert said(ask(address, "one")) == ("one", "one"), "and loaded again"


def configured(trigraph: Run, monkeypatch: pytest.MonkeyPatch, *arguments: object) -> Any:
    """What would be served."""
    found: list[Any] = []
    monkeypatch.setattr("trigraph.runtime.server.serving.serve", lambda served, listener: found.append(served))
    result = trigraph("serve", *arguments)
    assert result.status == 0, result.err
    return found[0]


def test_a_configuration_file(
    trigraph: Run,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    tiny_gguf: Path,
    nano_gguf: Path,
    operator_library: Path,
) -> None:
    file = tmp_path / "server.toml"
    file.write_text(
        f"port = 0\nctx-size = '1k'\ntemp = 0.25\nmodels-memory = '4G'\nidle-minutes = 2.5\nstop = ['a', 'b']\n"
        f"[models.tiny]\nmodel = '{tiny_gguf}'\n[models.nano]\nmodel = '{nano_gguf}'\nctx-size = 64\nrepack = 'on'\n"
    )
    served = configured(trigraph, monkeypatch, "--config", file, "--temp", 0.5, "--model", f"other={nano_gguf}")
    assert isinstance(served, App) and [*served.entries] == ["tiny", "nano", "other"]
    assert (served.budget, served.idle_seconds) == (4 << 30, 150)
    assert served.settings.defaults.chosen_by.temperature == 0.5, "the command line wins"
    assert served.settings.defaults.stop == ("a", "b")
    assert served.entries["tiny"].bytes == tiny_gguf.stat().st_size
    engine, settings = served.entries["nano"].load()
    assert isinstance(engine, Engine) and engine.context == 64 and settings.model == "nano"
    engine.close()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("ctxsize = 4", "unknown option 'ctxsize': did you mean ctx-size?"),
        ("[models.a]\nmodel = 'x'\nctx-siz = 4", "[models.a]: unknown option 'ctx-siz': did you mean ctx-size?"),
        ("[models.a]\nctx-size = 4", "[models.a]: model is missing"),
        ("[models.a]\nmodel = 'x'\nrepack = true", "[models.a]: repack is True; it must be a string"),
        ("models = 4", "models must be tables"),
        ("port = ", "is not TOML"),
        ("port = " + "9" * 5000, "is not TOML"),
        ("port = 'many'", "port is 'many'; write a whole number"),
    ],
)
def test_mistakes_in_a_file(trigraph: Run, tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "server.toml").write_text(content)
    assert_one_line_error(trigraph("serve", "--config", tmp_path / "server.toml"), message)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--config", "/nowhere/x.toml"], "/nowhere/x.toml: cannot be read"),
        (["--model", "x.gguf"], "write NAME=MODEL.gguf, in a file a table [models.NAME]; a single model is given"),
        (["--model", "a=x.gguf", "--model", "a=y.gguf"], "there is a model of that name already"),
        (["z.gguf", "--model", "a=x.gguf"], "give this model a name as well: --model NAME=z.gguf"),
    ],
)
def test_mistakes(trigraph: Run, arguments: list[str], message: str) -> None:
    assert_one_line_error(trigraph("serve", "--port", 0, *arguments), message)
