"""The Grafana dashboard: it asks for nothing that `/metrics` does not have."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2 as httpx
from prometheus_client.parser import text_string_to_metric_families

from support.servers.scripted import PLAIN_TEMPLATE, replying, serving
from trigraph.runtime import Engine

BOARD = json.loads((Path(__file__).parents[2] / "docs" / "grafana.json").read_text(encoding="utf-8"))
PANELS: list[dict[str, Any]] = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
EXPRESSIONS = {target["expr"] for panel in PANELS for target in panel["targets"]}


def test_metrics_and_labels_exist() -> None:
    disk: Any = SimpleNamespace(
        read=1, written=2, problem="the disk is full", take=lambda *given, **named: False, offer=lambda *given: None
    )
    engine = Engine(replace(replying("Yes, I think so.", template=PLAIN_TEMPLATE).model, disk=disk))
    with serving(engine) as address:
        asked = {"messages": [{"role": "user", "content": "Hello"}], "top_k": 1, "speculative.n_max": 3}
        assert httpx.post(f"{address}/v1/chat/completions", json=asked).status_code == 200
        families = [*text_string_to_metric_families(httpx.get(f"{address}/metrics").text)]
    labels = {sample.name: set(sample.labels) for family in families for sample in family.samples}
    variables = [variable["query"]["query"] for variable in BOARD["templating"]["list"] if "definition" in variable]
    for expression in (*EXPRESSIONS, *variables):
        names = set(re.findall(r"\b(?:vllm|trigraph):\w+", expression))
        assert names and names <= labels.keys(), expression
        used = {label for group in re.findall(r"by \((.*?)\)", expression) for label in group.split(", ")} | {
            "model_name"
        }
        assert used <= set.union(*(labels[name] for name in names)), expression
    (failed,) = (sample.value for family in families for sample in family.samples if sample.name.endswith("_failed"))
    assert failed == 1


def test_speculation_is_shown() -> None:
    assert {"accepted_tokens", "draft_tokens", "drafts", "accepted_tokens_per_pos"} == {
        name for text in EXPRESSIONS for name in re.findall(r"vllm:spec_decode_num_(\w+)_total", text)
    }


def test_panels_have_a_place_each() -> None:
    taken = set[tuple[int, int]]()
    for panel in BOARD["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken and max(x for x, _ in cells) < 24, panel["title"]
        taken |= cells
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(BOARD["panels"])
    assert all(target["legendFormat"] for panel in PANELS for target in panel["targets"])
