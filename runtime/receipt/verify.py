"""Computes the completion of a receipt again: its prompt in prefills, its tokens several at a time, as drafts are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from trigraph.models.errors import TrigraphError, named
from trigraph.runtime.cache.identity import ModelIdentity
from trigraph.runtime.images.prompt import ImagePrompt
from trigraph.runtime.images.reader import ImageLike
from trigraph.runtime.receipt.receipt import ROW_DIGITS, Receipt, ids_sha256, logits_sha256, row_digits
from trigraph.runtime.receipt.software import Software
from trigraph.runtime.requests.handle import Handle
from trigraph.runtime.requests.recording import OtherTokenError
from trigraph.runtime.scheduler.driver import Driver
from trigraph.runtime.scheduler.model import Model
from trigraph.runtime.scheduler.new_request import new_request


@dataclass(frozen=True)
class Verdict:
    """What came of a verification."""

    tokens: int
    """The tokens of the completion."""
    difference: str | None = None
    """What differs first, in a sentence; None when everything is equal."""
    token: int | None = None
    """The first token that differs, or whose logits do, counted from 0; None where none does."""

    @property
    def equal(self) -> bool:
        """Whether logits, tokens and end are those of the receipt."""
        return self.difference is None


def verify(
    driver: Driver,
    model: Model,
    receipt: Receipt,
    prompt: Sequence[int] | None = None,
    images: Sequence[ImageLike] = (),
) -> Verdict:
    """Whether the model gives what the receipt says. `prompt`: the token ids, for a private receipt. `images`: those
    of the prompt, in order.

    Raises TrigraphError when that cannot be told: another model or tower, no prompt or another one, other images,
    options out of range.
    """
    check_model(receipt.model, model.identity)
    ids = receipt.prompt if prompt is None else prompt
    if ids is None:
        raise TrigraphError("the receipt has a hash in place of the prompt; give the prompt's token ids")
    if ids_sha256(ids) != receipt.prompt_sha256:
        raise TrigraphError("the prompt is not that of the receipt: prompt_sha256 differs")
    expected = [*receipt.completion]
    with named("the receipt's options cannot be used"):
        options = replace(receipt.options.options(), max_tokens=len(expected), receipt=True)
    request = new_request(driver, model, _with_images(model, receipt, ids, images), options, replayed=expected)
    other = None
    try:
        request.run()
    except OtherTokenError as error:
        other = error
    verdict = _compared(receipt, request, other)
    if not verdict.equal and receipt.software != (here := Software.here()):
        difference = f"{verdict.difference} (the receipt is of {receipt.software}; this is {here})"
        verdict = replace(verdict, difference=difference)
    return verdict


def check_model(asked: ModelIdentity, found: ModelIdentity) -> None:
    """Raises TrigraphError when a receipt is of another model."""
    if asked != found:
        raise TrigraphError(f"the receipt is of model {asked}; this is {asked.versus(found)}")


def _with_images(
    model: Model, receipt: Receipt, ids: Sequence[int], images: Sequence[ImageLike]
) -> Sequence[int] | ImagePrompt:
    """The prompt, with the images that the receipt is of. Raises TrigraphError for others."""
    shown = receipt.images
    if shown is None:
        if images:
            raise TrigraphError("the receipt is of a completion without images; leave them out")
        return ids
    reader = model.images
    assert model.vision is not None  # which has the reader
    if shown.tower != (tower := model.vision.sha256):
        raise TrigraphError(
            f"the receipt's images were read by the vision tower {shown.tower[:16]}..., and this model has "
            f"{tower[:16]}...; name its mmproj file"
        )
    return shown.prompt(ids, reader, images)


def _compared(receipt: Receipt, request: Handle, other: OtherTokenError | None) -> Verdict:
    count, digests = len(receipt.completion), [row.digest for row in request.rows]
    digits = row_digits(digests)
    if not receipt.rows.startswith(digits):
        place = next(i for i, (one, given) in enumerate(zip(digits, receipt.rows, strict=False)) if one != given)
        first = place // ROW_DIGITS
        return Verdict(count, f"the logits of token {first} differ", first)
    if other is not None:
        return Verdict(count, f"{other}, from the logits of the receipt", other.number)
    if len(digests) < count:
        return Verdict(count, f"the completion ends before token {len(digests)}", len(digests))
    if logits_sha256(digests) != receipt.logits_sha256:
        return Verdict(count, "logits_sha256 differs, and no token's digits in rows do")
    if (reason := _other_end(receipt, request.finish_reason)) is not None:
        return Verdict(count, reason)
    return Verdict(count)


def _other_end(receipt: Receipt, reason: str | None) -> str | None:
    """Why the completion would not have ended as the receipt says; `reason` it ends for with a limit of its length."""
    most, count = receipt.options.max_tokens, len(receipt.completion)
    if most is not None and count > most:
        return f"the completion has {count} tokens, more than max_tokens, {most}"
    ended = "stop" if reason == "stop" else "length" if count == most else "context"
    if receipt.finish_reason in (ended, "cancelled", "timeout"):
        return None
    return f"finish_reason is {receipt.finish_reason!r}; the completion would end with {ended!r}"
