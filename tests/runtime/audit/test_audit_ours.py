"""Our own server under audit: one text, one answer."""

from __future__ import annotations

from typing import Any

import pytest

from support.models.packages import Make
from support.servers.dying_replicas import DyingReplicas
from support.servers.scripted import serving
from trigraph.models.tiny import TINY_GGUF
from trigraph.runtime import load
from trigraph.runtime.audit import Client, Plan, Report, audit
from trigraph.runtime.audit.plan import shipped_prompts

PLAN = Plan(shipped_prompts()[:6], 10, (2, 8), others=6, idle=0.0, steps=4, long_prompt=1500)


def check(engine: Any, api: str = "completions") -> Report:
    with serving(engine) as url:
        report = audit(Client(url, api=api), PLAN)
    assert report.same, (report.headline(), report.groups())
    assert report.not_compared() == {}
    return report


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [{}, {"speculation": False}, {"sequences": 3}])
def test_the_tiny_model_gives_one_answer(arguments: dict[str, Any]) -> None:
    report = check(load(TINY_GGUF, threads=1, **arguments))
    assert report.not_asked() == {"as a rendered prompt": "needs --api chat"}


@pytest.mark.slow
def test_chats_are_answered_alike() -> None:
    report = check(load(TINY_GGUF, threads=1), "chat")
    assert [*report.not_asked()] == ["token by token"]


@pytest.mark.slow
@pytest.mark.parametrize(("geometry", "quant"), [("tiny-dense", "F32"), ("tiny-moe", "Q4_K_M"), ("tiny-next", "Q8_0")])
def test_random_models_give_one_answer(synthetic: Make, geometry: str, quant: str) -> None:
    check(load(synthetic(geometry, quant), threads=1))


@pytest.mark.slow
def test_streams_whose_replicas_are_lost_give_the_same_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trigraph.runtime.server.cluster.remote_engine._FIRST_PAUSE", 0.0)
    monkeypatch.setattr("trigraph.runtime.server.cluster.replica._GAP", 0.0)
    replicas = DyingReplicas(load(TINY_GGUF, threads=1))
    check(replicas.front())
    assert replicas.losses > 100
