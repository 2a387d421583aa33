"""`llm-comply` checks answers and streams against the published schemas of the three APIs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.fakes.thinking_engine import thinking_engine
from support.servers.scripted import serving
from trigraph.runtime import Options, Sampling
from trigraph.runtime.server.settings import Settings

CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"location": "Paris"}}\n</tool_call>'
SAID = "They greet.\n</think>\n\nHello to you."
CALLED = f"I look.\n</think>\n\n{CALL}"
SPECIFICATIONS = {"open-responses": "openresponses", "openai-chat": "openai_chat", "anthropic": "anthropic"}
# What the server does otherwise, on purpose.
REFUSED = {
    "image-input": "the models read text only",
    "chat-image-input": "the models read text only",
    "anth-image-input": "the models read text only",
}
TAKEN = {
    "error-handling": "`model` may be left out: there is one",
    "chat-error-handling": "`model` may be left out: there is one",
}
# OpenAI's name, which its clients read; Open Responses has another one.
OTHER_NAMES = ["unknown SSE event type: response.reasoning_text."]


@pytest.fixture(scope="module", params=[SAID, CALLED], ids=["said", "called"])
def served(request: pytest.FixtureRequest) -> Iterator[tuple[str, bool]]:
    # llm-comply skips what other models lack, by their names.
    settings = Settings(model="claude-sonnet-4-gpt-5", port=0, defaults=Options(Sampling(temperature=0)))
    with serving(thinking_engine(request.param), settings) as address:
        yield address, request.param == CALLED


@pytest.mark.filterwarnings("ignore:jsonschema.RefResolver:DeprecationWarning")
@pytest.mark.parametrize("api", SPECIFICATIONS)
def test_answers_comply(served: tuple[str, bool], api: str) -> None:
    comply: Any = pytest.importorskip("llm_comply.runner", reason="llm-comply is not installed")
    from llm_comply.config import ComplianceConfig
    from llm_comply.schema import SpecLoader
    from llm_comply.tests import get_tests

    address, called = served
    specification = Path(comply.__file__).parent / "specs" / f"{SPECIFICATIONS[api]}.json"
    config = ComplianceConfig(f"{address}/v1", "none", model="claude-sonnet-4-gpt-5", ignore_errors=OTHER_NAMES)
    cases = [case for case in get_tests(api) if ("tool-calling" in case.id) == called]
    results = comply.TestRunner(config, cases, SpecLoader(str(specification))).run_all().results
    assert len(results) == len(cases) >= 1
    for result in results:
        if result.id in REFUSED:
            assert "HTTP 400 (expected [200])" in result.errors
        elif result.id in TAKEN:
            assert result.errors == ["HTTP 200 (expected [400, 422])"]
        else:
            advice = [warning for warning in result.warnings if "compact" not in result.id]
            assert (result.status.value, result.errors, advice) == ("passed", [], []), result.id
