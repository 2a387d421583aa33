"""lm-eval's own client, unchanged: its log-likelihoods are those of the engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from support.servers.scripted import serving
from trigraph.runtime import Engine, Options, Sampling, load
from trigraph.runtime.server.settings import Settings

PAIRS = [
    ("In the beginning God created", " the heaven and the earth."),
    ("And the earth was without form,", " and void"),
    ("It was", " a dark night"),
]


@pytest.fixture(scope="module")
def engine(tiny_package: Path) -> Engine:
    return load(tiny_package, threads=1)


@pytest.fixture(scope="module")
def address(engine: Engine) -> Iterator[str]:
    with serving(engine, Settings(model="tiny", port=0)) as address:
        yield address


@pytest.fixture
def client(address: str) -> Any:
    completions = pytest.importorskip("lm_eval.models.openai_completions", reason="lm-eval is not installed")
    return completions.LocalCompletionsAPI(base_url=f"{address}/v1/completions", model="tiny", batch_size=2)


def instance(*arguments: Any) -> Any:
    from lm_eval.api.instance import Instance

    return Instance("loglikelihood", {}, arguments, 0)


def test_log_likelihoods(client: Any, engine: Engine) -> None:
    found = client.loglikelihood([instance(*pair) for pair in PAIRS], disable_tqdm=True)
    for (context, continuation), (value, greedy) in zip(PAIRS, found, strict=True):
        ids, start = engine.tokenizer.encode(context + continuation), len(engine.tokenizer.encode(context))
        scores = engine.score(ids, 1)[start - 1 :]
        assert value == sum(score.logprob for score in scores)
        assert greedy == all(score.logprob == score.top[0][1] for score in scores)


def test_rolling_log_likelihood(client: Any, engine: Engine) -> None:
    text = "".join(PAIRS[0])
    (value,) = client.loglikelihood_rolling([instance(text)], disable_tqdm=True)
    ids = engine.tokenizer.encode(text)
    assert value == pytest.approx(sum(score.logprob for score in engine.score([client.eot_token_id, *ids])))


def test_generation(client: Any, engine: Engine) -> None:
    (text,) = client.generate_until([instance(PAIRS[0][0], {"until": ["\n"], "max_gen_toks": 12})], disable_tqdm=True)
    options = Options(Sampling(temperature=0), max_tokens=12, stop=("\n",))
    assert text == engine.generate(PAIRS[0][0], options).run()


def test_tokenizer_info(address: str, engine: Engine) -> None:
    info = httpx.get(f"{address}/tokenizer_info").json()
    assert engine.tokenizer.id_of(info["eos_token"]) in engine.tokenizer.stop_ids
    assert info["chat_template"] == engine.chat_template().source
