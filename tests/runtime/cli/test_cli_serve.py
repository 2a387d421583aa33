"""`trigraph serve`: its options are those of a server, and the defaults of requests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from support.command import Run, assert_one_line_error
from support.fakes.engine import TEMPLATE, engine_of
from support.fakes.rounds import LOGITS
from support.fakes.thinking_engine import thinking_engine
from support.servers.scripted import replying, serving
from trigraph.runtime import Engine
from trigraph.runtime.server.settings import Settings

Served = tuple[Engine, Settings]


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Served]:
    """What was to be served: nothing is."""
    found: list[Served] = []
    engine = thinking_engine("hm\n</think>\n\nYes.")
    monkeypatch.setattr("trigraph.runtime.cli.opening.load", lambda path, **options: engine)
    monkeypatch.setattr(
        "trigraph.runtime.server.serving.serve",
        lambda served, listener: found.append((served.only.engine, served.only.settings)),
    )
    monkeypatch.delenv("TRIGRAPH_API_KEY", raising=False)
    return found


def test_options_of_run_are_defaults_of_requests(trigraph: Run, served: list[Served], tmp_path: Path) -> None:
    (tmp_path / "template.jinja").write_text("{{ x }}")
    options = ["--temp", 0.5, "--top-k", 7, "-n", 9, "--stop", "a", "--ignore-eos"]
    options += ["--reasoning-budget", 3, "--no-think", "--chat-template-kwargs", '{"x": "y"}']
    options += ["--reasoning-effort-map", "high=medium,ultra=max"]
    options += ["--chat-template-file", tmp_path / "template.jinja", "--draft-tokens", 2]
    assert trigraph("serve", "model.gguf", "--port", 0, *options).status == 0
    ((_, settings),) = served
    defaults = settings.defaults
    assert (defaults.chosen_by.temperature, defaults.chosen_by.top_k, defaults.max_tokens) == (0.5, 7, 9)
    assert (defaults.stop, defaults.ignore_eos, defaults.reasoning_budget) == (("a",), True, 3)
    assert defaults.draft_tokens == 2
    assert settings.template_variables == {"x": "y", "enable_thinking": False}
    assert settings.effort_map == {"high": "medium", "ultra": "max"}
    assert settings.template is not None
    assert settings.template.render([], variables=settings.template_variables) == "y"
    assert settings.model == "model"


@pytest.mark.parametrize(
    ("options", "variable", "keys"),
    [
        ([], None, ()),
        ([], "", ()),
        ([], "from-environment", ("from-environment",)),
        (["--api-key", "a", "--api-key", "b"], "from-environment", ("a", "b")),
        (["--api-key", "a", "--api-key-file", "{tmp}/keys"], None, ("a", "one", "two")),
        (["--api-key-file", "{tmp}/keys"], "from-environment", ("one", "two")),
    ],
)
def test_keys(
    trigraph: Run,
    served: list[Served],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    options: list[str],
    variable: str | None,
    keys: tuple[str, ...],
) -> None:
    (tmp_path / "keys").write_text("# of users\none\n\n  two \n")
    if variable is not None:
        monkeypatch.setenv("TRIGRAPH_API_KEY", variable)
    trigraph("serve", "model", "--port", 0, *(option.replace("{tmp}", str(tmp_path)) for option in options))
    assert served[0][1].api_keys == keys


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--api-key", ""], "is empty, or has characters that HTTP cannot carry"),
        (["--api-key", "ä"], "use ASCII"),
        (["--api-key-file", "{tmp}/none"], "none: cannot be read"),
        (["--api-key-file", "{tmp}/empty"], "has no key; write one a line"),
        (["--chat-template-kwargs", "["], "--chat-template-kwargs is not JSON"),
        (["--reasoning-budget", "-1"], "reasoning_budget is -1"),
        (["--reasoning-effort-map", "high"], "--reasoning-effort-map is 'high'; write NAME=EFFORT pairs"),
        (["--reasoning-effort-map", "high=most"], "where EFFORT is one of none, minimal, low"),
    ],
)
def test_mistakes(trigraph: Run, served: list[Served], tmp_path: Path, options: list[str], text: str) -> None:
    (tmp_path / "empty").write_text("# none\n")
    options = [option.replace("{tmp}", str(tmp_path)) for option in options]
    assert_one_line_error(trigraph("serve", "model", *options), text)
    assert not served


def test_more_drafts_than_a_round_holds(trigraph: Run, served: list[Served], monkeypatch: pytest.MonkeyPatch) -> None:
    """The server says it at its start, not to each request."""
    engine, _ = engine_of(LOGITS, template=TEMPLATE)
    monkeypatch.setattr("trigraph.runtime.cli.opening.load", lambda path, **options: engine)
    refused = trigraph("serve", "model", "--port", 0, "--draft-tokens", 9)
    assert_one_line_error(refused, "draft_tokens is 9; a round drafts at most 7")
    assert not served


def test_a_request_goes_before_the_servers_variables() -> None:
    settings = Settings(port=0, template_variables={"enable_thinking": False})
    asked: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}]}
    with serving(replying("Yes."), settings) as address:
        for path in ("/v1/chat/completions", "/tokenize"):
            lengths = [
                _prompt_tokens(httpx.post(address + path, json={**asked, **more}).json())
                for more in ({}, {"chat_template_kwargs": {"enable_thinking": True}})
            ]
            assert lengths[1] > lengths[0], "a thought is opened"


def _prompt_tokens(answer: dict[str, Any]) -> int:
    return int(answer["usage"]["prompt_tokens"] if "usage" in answer else answer["count"])
