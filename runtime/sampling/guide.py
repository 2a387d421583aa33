"""A completion's progress under a constraint.

It sees the chosen tokens in order and nothing else, no drafts either, so the text is the same with and without
speculation. Looking at the whole vocabulary may take long; it is done in threads of its own, and a completion whose
turn comes before that is done sits a round out.
"""

from __future__ import annotations

import time
from collections import deque
from concurrent.futures import Future, TimeoutError, wait
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from trigraph.models.errors import TrigraphError
from trigraph.runtime.sampling.constraint import Constraint
from trigraph.runtime.sampling.guidance import deep_threads, library, matcher, plain
from trigraph.runtime.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Iterable

    from llguidance import LLTokenizer

_PATIENCE = 0.005  # seconds that a round waits for a mask
_SLOW = 0.001  # seconds of a question about one token, from which on the whole vocabulary is asked for at once
_FREE, _PER_TOKEN = 4.0, 0.02  # seconds of processor time that a completion may take, and more for each token


class LateError(Exception):
    """The tokens that are allowed are not known yet; ask again when the guide is ready."""


class Guide:
    """Which tokens may come next, and which have to."""

    def __init__(self, constraint: Constraint, vocabulary: LLTokenizer) -> None:
        self._noun = constraint.noun
        self._vocab = vocabulary.vocab_size
        self._spent, self._left = 0.0, _FREE
        self._forced: deque[int] = deque()
        self._mask: Future[NDArray[np.int64]] | None = None
        self.slow = False
        """Whether questions about single tokens take long."""
        self._matcher: Any = matcher(constraint.grammar(), vocabulary)
        started = time.thread_time()
        self._look_ahead()
        self.finished = bool(self._matcher.is_stopped())  # known here: a thread that computes a mask has the matcher
        """Whether nothing may follow any more."""
        self._took(started)
        if not self._forced and not self.finished:
            self.start()
            wait(self._pending)

    @property
    def forced(self) -> list[int]:
        """The next tokens, as far as the constraint leaves no choice of characters and that is known."""
        return list(self._forced)

    @property
    def ready(self) -> bool:
        """Whether questions are answered at once."""
        return self._mask is None or self._mask.done()

    def start(self) -> None:
        """Begins to look at the whole vocabulary."""
        if self._mask is None:
            self._mask = deep_threads("masks", 2).submit(self._compute)

    def allows(self, token: int) -> bool:
        """Whether `token` may come next; a stop token may where the completion could end. Costs microseconds.

        Raises LateError.
        """
        if self._mask is not None:
            known = self._known()
            place = int(known.searchsorted(token))
            return place < len(known) and int(known[place]) == token
        started = time.thread_time()
        allowed = bool(self._matcher.validate_tokens([token]) == 1)
        self.slow = self._took(started) > _SLOW
        self._check()
        return allowed

    def allowed(self) -> NDArray[np.int64]:
        """Ids of all tokens that may come next, in order. Raises LateError."""
        self.start()
        return self._known()

    def advance(self, token: int) -> None:
        """Takes the token that was chosen."""
        if self._mask is not None:
            wait([self._mask])
            self._mask = None
        started = time.thread_time()
        self._matcher.consume_token(token)
        self._check()
        if self._forced:
            self._forced.popleft()
        if not self._forced:
            self._look_ahead()
        self.finished = bool(self._matcher.is_stopped())
        self._left += _PER_TOKEN
        self.slow = self._took(started) > _SLOW
        if self.slow and not self._forced and not self.finished:
            self.start()

    @property
    def _pending(self) -> list[Future[NDArray[np.int64]]]:
        return [] if self._mask is None else [self._mask]

    def _known(self) -> NDArray[np.int64]:
        assert self._mask is not None
        try:
            return self._mask.result(_PATIENCE)
        except TimeoutError:
            raise LateError from None

    def _compute(self) -> NDArray[np.int64]:
        started = time.thread_time()
        mask = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        self._check()
        self._took(started)
        return np.flatnonzero(np.unpackbits(mask, count=self._vocab, bitorder="little").view(bool))

    def _took(self, started: float) -> float:
        """Seconds of this thread since then, which count against the completion's."""
        seconds = time.thread_time() - started
        self._spent += seconds
        if self._spent > self._left:
            raise TrigraphError(
                f"the {self._noun} takes too long to follow: {self._spent:.1f} seconds of processor time so far; "
                "make it simpler, or less ambiguous"
            )
        return seconds

    def _look_ahead(self) -> None:
        self._forced.extend(self._matcher.compute_ff_tokens())
        self._check()

    def _check(self) -> None:
        if self._matcher.is_error():
            reason = plain(self._matcher.get_error())
            if reason.startswith("NoExtension"):
                reason = "no text fits"
            if "max is" in reason or "Too many items" in reason:
                reason = "it allows too much at one place, or never ends; make it simpler, or less ambiguous"
            raise TrigraphError(f"the {self._noun} cannot be followed any further: {reason}")


def wait_for_any(guides: Iterable[Guide], seconds: float) -> None:
    """Returns when one of the guides is ready, or after so many seconds."""
    wait([pending for guide in guides for pending in guide._pending], seconds, "FIRST_COMPLETED")


class _Vocabulary:
    """The tokens as llguidance asks for them. Its own reading of `tokenizer.json` would force texts in NFC, and control
    tokens where a text spells their names."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.special_token_ids = tokenizer.control_ids
        self.eos_token_id = min(tokenizer.stop_ids)
        self.bos_token_id = tokenizer.bos_id
        self.tokens = tokenizer.all_bytes()
        self._encode = tokenizer.encode_exactly

    def __call__(self, text: str) -> list[int]:
        return self._encode(text)


def guidance_vocabulary(tokenizer: Tokenizer, vocab: int) -> LLTokenizer:
    """The tokens as a Guide wants them, for a model with `vocab` of them; a second for 248320."""
    if not tokenizer.stop_ids:
        raise TrigraphError("the model has no stop token, so a completion could not end where a constraint allows it")
    wrapped = library().TokenizerWrapper(_Vocabulary(tokenizer))
    try:
        made: LLTokenizer = library().LLTokenizer(wrapped, n_vocab=vocab, eos_token=sorted(tokenizer.stop_ids))
    except (ValueError, RuntimeError) as error:
        raise TrigraphError(f"this model's tokenizer cannot be used with constraints: {error}") from error
    return made
