"""The last request of one turn of each coding agent, with its texts replaced: what the model reads of it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from support.models.real_vocabulary import real_template
from support.servers.api_prompts import job
from support.servers.scripted import replying
from trigraph.runtime.server.app import ServedModel
from trigraph.runtime.server.settings import Settings

FOLDER = Path(__file__).parent / "recorded"


class Read(NamedTuple):
    """What is in a prompt."""

    turns: str
    """First letters of their roles: system, user, assistant."""
    calls: list[str]
    tools: int
    ignored: list[str]


READ = {
    "claude_code": Read("suuauauaua", ["Write", "Read", "Bash"], 4, []),
    "codex_known_model": Read(
        "suuauaua",
        ["exec_command", "apply_patch"],
        3,
        ["tools of type 'tool_search' are ignored", "tools of type 'web_search' are ignored"],
    ),
    "codex_other_model": Read(
        "suuauaua", ["exec_command", "exec_command"], 4, ["tools of type 'web_search' are ignored"]
    ),
    "opencode": Read("suauaua", ["write", "bash"], 3, []),
    "qwen_code": Read("suauauaua", ["write_file", "run_shell_command"], 4, []),
}


@pytest.fixture(scope="module")
def service() -> ServedModel:
    return ServedModel(replying("", template=real_template("qwen3_8"), context=100_000), Settings())


@pytest.mark.parametrize("name", READ)
def test_a_recorded_request(service: ServedModel, name: str) -> None:
    recorded: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    made = job(service, recorded["path"], recorded["body"])
    (generation,) = made.generations
    text = service.engine.tokenizer.spell(generation.request.prompt)
    tools, _, rest = text.partition("</tools>")
    roles = re.findall(r"<\|im_start\|>(\w)", text)
    calls = re.findall(r"<tool_call>\n<function=(\w+)>", rest.partition("</IMPORTANT>")[2])
    assert Read("".join(roles), calls, tools.count('{"type": "function"'), [*made.ignored]) == READ[name]
    assert made.stream and generation.parallel_calls
    assert text.endswith("<|im_start|>assistant\n<think>\n")


def test_all_are_read() -> None:
    assert {path.stem for path in FOLDER.glob("*.json")} == READ.keys()
