"""Receipts of completions of the shipped model: what they hold, and that a change of anything is found."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.fakes.rounds import finish, queued, run_round
from trigraph.models.errors import TrigraphError
from trigraph.runtime import Engine, JsonSchema, Options, Receipt, Regex, Sampling, load
from trigraph.runtime.receipt.receipt import logits_sha256, row_digits
from trigraph.runtime.requests.handle import Handle
from trigraph.runtime.requests.recording import row_digest

PROMPT = "In the beginning God created the heaven and the earth."
SAMPLED = Sampling(0.9, seed=11)
REQUESTS: dict[str, dict[str, Any]] = {
    "greedy": dict(sampling=Sampling(temperature=0)),
    "sampled": dict(sampling=Sampling(temperature=1.2, top_k=0, top_p=1.0, min_p=0.02, seed=2**64 - 1)),
    "penalties": dict(
        sampling=Sampling(0.9, repeat_penalty=1.3, presence_penalty=0.2, frequency_penalty=0.1, penalty_window=20)
    ),
    "biases": dict(sampling=Sampling(0.9, logit_bias=((272, 3.5), (14, -float("inf"))))),
    "drafts": dict(draft_tokens=3),
    "n-grams": dict(drafter="ngram", draft_tokens=4),
    "stop string": dict(stop=("and", "zz")),
    "stop token": dict(stop_tokens=tuple(range(0, 2000, 7))),
    "budget": dict(reasoning_budget=4),
    "log-probabilities": dict(logprobs=2),
    "one token": dict(max_tokens=1),
    "no token": dict(max_tokens=0),
    "no limit": dict(max_tokens=None),
}
CONSTRAINED: dict[str, dict[str, Any]] = {
    "regex": dict(constraint=Regex("[a-f]{3,9} [0-9]+")),
    "schema": dict(constraint=JsonSchema(json.dumps({"enum": ["yes", "no", {"maybe": 1}]}))),
    "banned": dict(constraint=Regex("[ab]{4}"), sampling=Sampling(0.7, logit_bias=((65, -float("inf")),))),
}


@pytest.fixture(scope="module")
def engine(tiny_package: Path) -> Engine:
    return load(tiny_package, threads=1, context=160)


@pytest.fixture(scope="module")
def other(tiny_package: Path) -> Engine:
    """What verifies: another engine, with another cut of prompts and no drafts."""
    return load(tiny_package, threads=1, context=160, chunk=7, speculation=False, sequences=1)


def complete(engine: Engine, prompt: str | list[int] = PROMPT, **options: Any) -> Handle:
    asked = Options(**{"sampling": SAMPLED, "max_tokens": 40, "receipt": True, **options})
    request = engine.generate(prompt, asked)
    request.run()
    return request


@pytest.mark.parametrize("name", [*REQUESTS, *CONSTRAINED])
def test_a_receipt_verifies_after_it_was_written(engine: Engine, other: Engine, name: str, tmp_path: Path) -> None:
    if name in CONSTRAINED:
        pytest.importorskip("llguidance", reason="llguidance is not installed: no constraints")
    request = complete(engine, **(REQUESTS | CONSTRAINED)[name])
    receipt = engine.receipt(request)
    receipt.write(tmp_path / "receipt.json")
    read = Receipt.read(tmp_path / "receipt.json")
    assert read == receipt
    assert read.completion[: len(request.ids)] == tuple(request.ids)
    assert len(read.completion) == request.stats.tokens and read.finish_reason == request.stats.finish_reason
    other.cache.clear()
    assert other.verify(read) == other.verify(read) == engine.verify(read)
    assert other.verify(read).equal, other.verify(read)


def test_verifies_of_more_tokens_are_fewer(engine: Engine, tiny_package: Path) -> None:
    receipt = engine.receipt(complete(engine, max_tokens=81, ignore_eos=True))
    for max_pending, steps in ((None, [8] * 10), (20, [20] * 4), (64, [64, 16]), (256, [80])):
        wide = load(tiny_package, threads=1, context=160, speculation=False, max_pending=max_pending)
        verified: list[int] = []
        verify = wide.steps.verify_by

        def counted(*asked: Any, verify: Any = verify, verified: list[int] = verified) -> Any:
            verified.append(len(asked[1][0]))
            return verify(*asked)

        wide.steps.verify_by = counted  # type: ignore[method-assign,assignment]
        assert wide.verify(receipt).equal and verified == steps


def test_hashes_by_their_definition(engine: Engine) -> None:
    """Rows of a prefill of every beginning of the text."""
    receipt = engine.receipt(complete(engine, max_tokens=12))
    assert receipt.prompt is not None
    text, digests = [*receipt.prompt, *receipt.completion], []
    for length in range(len(receipt.prompt), len(text)):
        sequence = engine.steps.new_sequence()
        row = engine.steps.prefill([sequence], [text[:length]]).logits[0]
        digests.append(hashlib.sha256(row.astype("<f4").tobytes()).digest())
        engine.steps.release(sequence)
    assert receipt.rows == "".join(digest.hex()[:8] for digest in digests)
    assert receipt.logits_sha256 == hashlib.sha256(b"".join(digests)).hexdigest()
    ids = b"".join(token.to_bytes(8, "little") for token in receipt.prompt)
    assert receipt.prompt_sha256 == hashlib.sha256(ids).hexdigest()


def test_a_request_without_a_receipt_keeps_nothing(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trigraph.runtime.requests.recording.row_digest", lambda logits: 1 // 0)
    for logprobs in (None, 1):
        request = complete(engine, receipt=False, logprobs=logprobs)
        assert request.rows == [] and bool(request.logprobs) == (logprobs is not None)
        with pytest.raises(TrigraphError, match="no receipt was asked for"):
            engine.receipt(request)


def test_company_and_preemption_change_nothing(tiny_package: Path, other: Engine) -> None:
    state = load(tiny_package, threads=1, context=160, sequences=1).steps.state
    pages = state.limits.pages * state.page_bytes
    engine = load(tiny_package, threads=1, context=160, sequences=4, kv_memory=pages)
    ids = engine.tokenizer.encode(PROMPT)
    asked = [
        Options(Sampling(0.9, seed=seed), 70, ignore_eos=True, draft_tokens=seed, receipt=True) for seed in range(4)
    ]
    requests = [queued(engine, ids[: 5 + 2 * i], options) for i, options in enumerate(asked)]
    run_round(engine)
    finish(engine, requests)
    assert any(request.preemptions for request in requests)
    for request in requests:
        assert len(request.rows) == 70
        assert other.verify(engine.receipt(request)).equal


def test_a_completion_that_is_left_has_a_receipt_of_its_tokens(engine: Engine, other: Engine) -> None:
    request = engine.generate(PROMPT, Options(SAMPLED, 60, ignore_eos=True, receipt=True))
    request.listen(lambda: request.cancel() if len(request.ids) > 20 else None)
    request.run()
    receipt = engine.receipt(request)
    assert receipt.finish_reason == "cancelled" and 20 < len(receipt.completion) < 60
    assert other.verify(receipt).equal


def test_what_was_begun_elsewhere_has_no_receipt_here(engine: Engine) -> None:
    whole = complete(engine)
    rest = engine.generate(PROMPT, whole.options, completed=whole.ids[:10])
    rest.run()
    assert rest.rows == whole.rows[10:]
    failures: list[Exception] = []
    early = engine.generate(PROMPT, whole.options, completed=whole.ids[:10])
    early.listen(lambda: failures.append(_refused(engine, early)))
    early.run()
    assert any("first 10 tokens were given" in str(failure) for failure in failures)
    with pytest.raises(TrigraphError, match="first 10 tokens were given"):
        engine.receipt(rest)


def _refused(engine: Engine, request: Handle) -> TrigraphError:
    with pytest.raises(TrigraphError) as refused:
        engine.receipt(request)
    return refused.value


def test_a_completion_that_failed_has_no_receipt(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    request = engine.generate(PROMPT, Options(SAMPLED, 9, receipt=True))
    assert request.request is not None
    monkeypatch.setattr(request.request.sampler, "pick", lambda *row: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        request.run()
    with pytest.raises(TrigraphError, match="a completion that failed has no receipt"):
        engine.receipt(request)


def test_a_conversation_has_receipts(engine: Engine, other: Engine) -> None:
    chat = engine.chat()
    for question in ("Who was Moses?", "And then?"):
        reply = chat.say(question, Options(SAMPLED, 12, receipt=True))
        assert any(reply)
        assert other.verify(engine.receipt(reply.request)).equal


def test_a_private_receipt_needs_the_prompt(engine: Engine, other: Engine) -> None:
    receipt = engine.receipt(complete(engine))
    private = Receipt.parse(receipt.private().as_text())
    assert private.prompt is None and '"prompt"' not in private.as_text()
    assert receipt.content == private.content, "a signature is of both"
    assert other.verify(private, receipt.prompt).equal
    with pytest.raises(TrigraphError, match="give the prompt's token ids"):
        other.verify(private)
    wrong: Any
    for wrong in ([*(receipt.prompt or ()), 1], [], [2**70], ["a"]):
        with pytest.raises(TrigraphError):
            other.verify(private, wrong)


def changed(receipt: Receipt, **fields: Any) -> Receipt:
    """What somebody makes of a receipt who computes its hash anew."""
    return Receipt.parse(dataclasses.replace(receipt, **fields).as_text())


def terms(**fields: Any) -> Callable[[Receipt], dict[str, Any]]:
    return lambda receipt: {"options": dataclasses.replace(receipt.options, **fields)}


def other_token(receipt: Receipt) -> dict[str, Any]:
    tokens = [*receipt.completion]
    tokens[9] = 5 if tokens[9] != 5 else 6
    return {"completion": tuple(tokens)}


CHANGES: dict[str, tuple[Callable[[Receipt], dict[str, Any]], str, int | None]] = {
    "another token": (other_token, "token 9 of the completion is ", 9),
    "another seed": (terms(seed=12), "the model chooses", 0),
    "greedy": (terms(temperature=0.0), "the model chooses", 0),
    "a shorter limit": (terms(max_tokens=39), "more than max_tokens, 39", None),
    "a longer limit": (
        terms(max_tokens=41),
        "finish_reason is 'length'; the completion would end with 'context'",
        None,
    ),
    "another end": (lambda receipt: {"finish_reason": "stop"}, "the completion would end with 'length'", None),
    "other logits": (lambda receipt: {"logits_sha256": "0" * 64}, "logits_sha256 differs", None),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_forged_receipt_does_not_verify(engine: Engine, other: Engine, name: str) -> None:
    change, sentence, token = CHANGES[name]
    receipt = engine.receipt(complete(engine, ignore_eos=True))
    verdict = other.verify(changed(receipt, **change(receipt)))
    assert not verdict.equal and verdict.difference is not None and sentence in verdict.difference
    assert verdict.token == token


def test_the_first_row_that_differs_is_named(engine: Engine, other: Engine) -> None:
    receipt = engine.receipt(complete(engine, ignore_eos=True))
    for token in (0, 17, 39):
        place = 8 * token + 3
        digit = "1" if receipt.rows[place] == "0" else "0"
        verdict = other.verify(changed(receipt, rows=receipt.rows[:place] + digit + receipt.rows[place + 1 :]))
        assert (verdict.token, verdict.difference) == (token, f"the logits of token {token} differ")


def test_other_software_is_named_where_something_differs(engine: Engine, other: Engine) -> None:
    receipt = engine.receipt(complete(engine, ignore_eos=True))
    older = changed(receipt, software=dataclasses.replace(receipt.software, numpy="1.0"))
    assert other.verify(older).equal
    verdict = other.verify(changed(older, logits_sha256="0" * 64))
    assert verdict.difference is not None and "numpy='1.0'" in verdict.difference


def test_another_model_is_told_at_once(engine: Engine, other: Engine) -> None:
    receipt = engine.receipt(complete(engine))
    others: dict[str, Any] = {"weights": "0" * 64, "contract_version": 2, "kv_type": "f32", "activations": "float32"}
    for field, value in others.items():
        model = dataclasses.replace(receipt.model, **{field: value})
        with pytest.raises(TrigraphError, match="the receipt is of model"):
            other.verify(changed(receipt, model=model))


def test_what_a_receipt_cannot_have(engine: Engine) -> None:
    with pytest.raises(TrigraphError, match="receipt and forced exclude each other"):
        Options(receipt=True, forced=(1, 2))
    with pytest.raises(TrigraphError, match="receipt is 1; it must be True or False"):
        Options(receipt=1)  # type: ignore[arg-type]


def test_without_the_operator_library_there_is_no_receipt(engine: Engine) -> None:
    portable = dataclasses.replace(engine.model, device=dataclasses.replace(engine.model.device, library=None))
    with pytest.raises(TrigraphError, match="a receipt needs the operator library"):
        Engine(portable).generate(PROMPT, Options(receipt=True))


def test_every_nan_counts_as_the_same() -> None:
    """Which one a kernel gives is the processor's choice; -0 is not 0."""
    bits = np.array([[0x3F800000, nan, 0x7F800000] for nan in (0x7FC00000, 0xFFC00000, 0x7F800001, 0x7FFFFFFF)], "<u4")
    digests = {row_digest(row) for row in bits.view("<f4")}
    assert digests == {hashlib.sha256(bits[0].tobytes()).digest()}
    ordinary = np.array([1.5, -0.0, np.inf], "<f4")
    assert row_digest(ordinary) == hashlib.sha256(ordinary.tobytes()).digest() != row_digest(ordinary + 0)


def test_hashes_of_rows_are_those_of_their_bytes() -> None:
    rows = [np.array([1.5, -0.0, np.inf], np.float32), np.array([0.0, 0.0, np.nan], np.float32)]
    digests = [hashlib.sha256(row.tobytes()).digest() for row in rows]
    assert row_digits(digests) == digests[0].hex()[:8] + digests[1].hex()[:8]
    assert logits_sha256(digests) == hashlib.sha256(digests[0] + digests[1]).hexdigest()
