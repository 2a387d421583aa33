"""What requests and `load` take as keywords: every field by its name, and a helpful word on other names."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from pydantic import BaseModel

import trigraph
from support.fakes.engine import GREEDY, engine_of, scripted
from trigraph import Engine, EngineConfig, JsonSchema, Options, Sampling, TrigraphError
from trigraph.models.tiny import TINY_GGUF
from trigraph.runtime.engine.config import Settings
from trigraph.runtime.requests.keywords import Keywords, asked

PROMPT = list(b"Why?")
OWN = Sampling(temperature=0.0, seed=5)
WIDER = {"stop", "stop_tokens", "forced", "logit_bias"}  # keywords take a list, a text or a dict, too


def made() -> Engine:
    return engine_of(scripted(b"the sky is blue", 4))[0]


def test_every_field_is_a_keyword() -> None:
    fields = get_type_hints(Options) | get_type_hints(Sampling)
    keywords = get_type_hints(Keywords)
    assert keywords.keys() == fields.keys()
    assert {name for name in fields if fields[name] != keywords[name]} == WIDER
    assert get_type_hints(Settings) == get_type_hints(EngineConfig)


def test_what_is_asked() -> None:
    assert asked(None, {}, OWN) == Options(OWN)
    assert asked(Options(max_tokens=3), {}, OWN) == Options(OWN, 3), "the model's own sampling, not the general one"
    assert asked(Options(GREEDY, 3), {}, OWN) == Options(GREEDY, 3)
    assert asked(None, {"top_k": 3, "max_tokens": 4}, OWN) == Options(dataclasses.replace(OWN, top_k=3), 4)
    assert asked(Options(GREEDY, 3, ("a",)), {"seed": 7}, OWN) == Options(
        dataclasses.replace(GREEDY, seed=7), 3, ("a",)
    )
    assert asked(Options(GREEDY), {"sampling": None}, OWN) == Options(OWN)
    assert asked(None, {"stop": "\n", "logit_bias": {3: 1.5}}, OWN) == Options(
        dataclasses.replace(OWN, logit_bias=((3, 1.5),)), stop=("\n",)
    )


def test_a_model_that_suggests_greedy_choice_keeps_it(operator_library: Path, tmp_path: Path) -> None:
    from support.models.random_gguf import changed

    def greedy(pairs: dict[str, Any], tensors: dict[str, Any]) -> None:
        pairs["general.sampling.temp"] = 0.0

    with trigraph.load(changed(tmp_path, greedy)) as engine:
        plain = engine.generate([1, 2])
        assert engine.sampling == Sampling(temperature=0.0)
        for request in (
            engine.generate([1, 2], Options(max_tokens=12)),
            engine.submit([1, 2], max_tokens=12),
            engine.chat("Answer.").say("Why?", max_tokens=12).request,
        ):
            assert request.options.chosen_by == plain.options.chosen_by == engine.sampling
            assert request.options.max_tokens == 12


def test_keywords_of_requests() -> None:
    engine = made()
    assert engine.generate(PROMPT, max_tokens=6, temperature=0).run() == "the sk"
    assert engine.submit(PROMPT, max_tokens=6, temperature=0).result(60) == "the sk"
    assert engine.generate(PROMPT, Options(GREEDY), max_tokens=3).run() == "the"
    assert engine.generate(PROMPT, temperature=0, stop=" ").run() == "the"


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("max_new_tokens", "use max_tokens"),
        ("n_predict", "use max_tokens"),
        ("num_predict", "use max_tokens"),
        ("temp", "use temperature"),
        ("temprature", "did you mean temperature?"),
        ("repetition_penalty", "use repeat_penalty"),
        ("json_schema", "use constraint=JsonSchema"),
        ("n_ctx", "load(MODEL, context=32768)"),
        ("stream", "iterate over the result"),
        ("xyzzy", "there are constraint, "),
    ],
)
def test_another_keyword_is_explained(name: str, remedy: str) -> None:
    engine = made()
    for begin in (engine.generate, engine.submit):
        with pytest.raises(TrigraphError) as caught:
            begin(PROMPT, **{name: 1})  # type: ignore[arg-type]
        assert f"a request has no keyword '{name}'" in str(caught.value) and remedy in str(caught.value)


def test_options_in_the_wrong_place() -> None:
    with pytest.raises(TrigraphError, match="options is 100; it must be an Options, and keywords such as max_tokens"):
        made().generate(PROMPT, 100)  # type: ignore[arg-type]
    with pytest.raises(TrigraphError, match="temperature is 'hot'; it must be a number"):
        made().generate(PROMPT, temperature="hot")  # type: ignore[arg-type]
    with pytest.raises(TrigraphError, match="no keyword 'max_new_tokens'"):
        made().generate(PROMPT, max_new_tokens=3)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("n_ctx", "use context"),
        ("contxt", "did you mean context?"),
        ("n_gpu_layers", 'use device="cuda"'),
        ("max_num_seqs", "use sequences"),
        ("temperature", "engine.generate(prompt, ...)"),
        ("xyzzy", "there are cache_dir, "),
    ],
)
def test_another_setting_is_explained(name: str, remedy: str) -> None:
    with pytest.raises(TrigraphError) as caught:
        trigraph.load("tiny", **{name: 1})  # type: ignore[arg-type]
    assert f"load has no keyword '{name}'" in str(caught.value) and remedy in str(caught.value)
    with pytest.raises(TrigraphError, match="config is 4096"):
        trigraph.load("tiny", 4096)  # type: ignore[arg-type]


@pytest.mark.parametrize("model", ["", None, 5])
def test_no_model_is_explained(model: Any) -> None:
    with pytest.raises(TrigraphError, match=r"the model is .*; give a \.gguf file, a package, or a name"):
        trigraph.load(model)


def test_a_model_by_name(operator_library: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from trigraph.runtime.hub.given import GivenModel

    model = Path(shutil.copy(TINY_GGUF, tmp_path))
    monkeypatch.setattr(
        "trigraph.runtime.hub.given.downloaded", lambda name, _: GivenModel(model, notice=f"{name} was downloaded")
    )
    with trigraph.load("user/repo:Q8_0") as engine:
        assert "user/repo:Q8_0 was downloaded" in engine.model.notices
    with trigraph.load("tiny") as engine:
        assert engine.identity.name


class _Person(BaseModel):
    name: str
    age: int


def test_a_schema_in_three_forms() -> None:
    schema = _Person.model_json_schema()
    given = [JsonSchema(json.dumps(schema)), JsonSchema(schema), JsonSchema(_Person)]
    assert given[0] == given[1] == given[2] and isinstance(given[2].schema, str)
    with pytest.raises(TrigraphError, match="it is not JSON"):
        JsonSchema({"const": {1, 2}})
    for wrong in (5, None, int, _Person(name="a", age=1)):
        with pytest.raises(TrigraphError, match=r"the JSON schema is .*; give JSON text, a dict or a Pydantic model"):
            JsonSchema(wrong)  # type: ignore[arg-type]
