"""The steps that decoding is made of: prefill, verify, keep and draft, for one or more sequences of any lengths."""

from __future__ import annotations

import threading
from collections import abc

import numpy as np
from numpy.typing import NDArray

from trigraph.models.checks import check
from trigraph.models.errors import TrigraphError, quote
from trigraph.runtime.execution.inputs import (
    ImageRows,
    Rows,
    Sequences,
    Tokens,
    fill_images,
    fill_positions,
    fill_previous,
    fill_tokens,
    next_rows,
    text_ids,
)
from trigraph.runtime.execution.results import DraftResult, StepResult
from trigraph.runtime.execution.sessions import Binding, Graph
from trigraph.runtime.state.sequence import Sequence
from trigraph.runtime.state.state import State

Run = abc.Callable[[Binding], object]
"""How a step is run whose inputs are filled in."""
RunTokens = abc.Callable[[Binding], abc.Sequence[list[int]]]
"""How a verify is run; it gives the tokens of each sequence that were run."""


class Steps:
    """Runs the graphs on the state, and keeps track of the sequences.

    One thread at a time: threads that share it hold `lock` from a step until they have read its rows.
    """

    def __init__(
        self,
        prefill: Graph,
        verify: Graph,
        draft: Graph | None,
        state: State,
        vocab: int,
        chunk: int,
        text_start: int = 0,
    ) -> None:
        """`chunk`: most tokens, of all prompts together, in one prefill; where a prompt is cut does not matter.

        `text_start`: the token that n-grams have in place of those before a text.
        """
        check("chunk", chunk, int, lambda value: value >= 1, "1 or more")
        self.lock = threading.RLock()
        self.prefilling = False
        """Whether the step that runs, or ran last, reads prompts."""
        self.state = state
        self.vocab = vocab
        self._prefill, self._verify, self._draft = prefill, verify, draft
        self.chunk = chunk
        self._text_start = text_start

    def change_over(self, prefill: Graph, verify: Graph, draft: Graph | None) -> None:
        """Has all later steps run these graphs, on the same state. Any thread may call it, while steps run or not."""
        self._prefill, self._verify, self._draft = prefill, verify, draft

    @property
    def can_draft(self) -> bool:
        """Whether `draft` works: the package has an MTP head, and speculation was not switched off at loading."""
        return self._draft is not None

    @property
    def max_pending(self) -> int:
        """K: the most tokens of a sequence in one verify."""
        return self.state.limits.max_pending

    def new_sequence(self) -> Sequence:
        """An empty sequence; `release` it after use. Raises TrigraphError when all slots are taken."""
        return self.state.new()

    def fork(self, sequence: Sequence) -> Sequence:
        """A second sequence with the same tokens and state: bookkeeping, and a copy of the KV page still filling."""
        return self.state.fork(sequence)

    def release(self, sequence: Sequence) -> None:
        """Gives the sequence's state back."""
        self.state.release(sequence)

    def prefill(
        self, sequences: abc.Sequence[Sequence], tokens: abc.Sequence[Tokens], images: abc.Sequence[ImageRows] = ()
    ) -> StepResult:
        """Commits `tokens[i]` to each sequence.

        Negative tokens are those of images: `images[i]` has their rows, in order [count, hidden], or is None.
        Raises TrigraphError, and changes nothing, for no tokens, more than the context holds, or no room for all.
        """
        images = images or [None] * len(sequences)
        for sequence, new, shown in zip(sequences, tokens, images, strict=True):
            if not len(new):
                raise TrigraphError("the prompt is empty; give at least one token")
            self._check(sequence, new, "prompt", shown)
        self.state.check_room(sequences, _lengths_after(sequences, tokens))
        for sequence in sequences:
            self._drop_pending(sequence)
            self.catch_up(sequence)
        result: StepResult | None = None
        left = {i: iter(shown) for i, shown in enumerate(images) if shown is not None}
        for members, pieces in self._chunks(tokens):
            given = zip(members, pieces, strict=True)
            of_images = [row for i, piece in given if i in left for row in next_rows(left[i], piece)]
            rows = self._prefill_chunks([sequences[i] for i in members], pieces, of_images)
            if len(sequences) == 1:
                result = rows
                continue
            if result is None:
                result = StepResult(*(np.empty((len(sequences), *a.shape[1:]), a.dtype) for a in rows))
            result.logits[members], result.tokens[members], result.hidden[members] = rows
        if result is None:
            raise TrigraphError("a prefill needs at least one sequence")
        return result

    def verify(self, sequences: Sequences, tokens: abc.Sequence[Tokens]) -> StepResult:
        """Runs 1 to K tokens of each sequence without committing them; `keep` says how many are kept, else none.

        Raises TrigraphError, and changes nothing, for other numbers of tokens or where there is no room for all.
        """

        def run(binding: Binding) -> list[list[int]]:
            binding.run()
            return [list(new) for new in tokens]

        return self.verify_by(sequences, tokens, run)[1]

    def verify_by(
        self, sequences: Sequences, tokens: abc.Sequence[Tokens], run: RunTokens
    ) -> tuple[abc.Sequence[list[int]], StepResult]:
        """A verify in which `run` may replace `tokens` by as many others; those that ran, and their rows."""
        limit = self.max_pending
        for sequence, new in zip(sequences, tokens, strict=True):
            if not 1 <= len(new) <= limit:
                raise TrigraphError(f"a verify takes 1 to {limit} tokens of a sequence, not {len(new)}")
            self._check(sequence, new, "sequence")
        ran: list[abc.Sequence[list[int]]] = []
        result = self._run(self._verify, sequences, tokens, lambda binding: ran.append(run(binding)))
        row = 0
        for sequence, new in zip(sequences, ran[0], strict=True):
            sequence.verified(new, result.hidden[row : row + len(new)])
            row += len(new)
        return ran[0], result

    def keep(self, sequence: Sequence, count: int) -> None:
        """Keeps the first `count` tokens of the sequence's last verify. Costs nothing: the next step commits them."""
        sequence.keep(count, head=self.can_draft)

    def draft(self, sequences: Sequences, tokens: Tokens, run: Run = Binding.run) -> DraftResult:
        """Predicts the token after `tokens[i]`, the sampled but not yet verified next token of each sequence.

        The head's KV of tokens kept since its last run is rebuilt from their true hidden states in the same run.
        """
        pieces, hiddens, past_lens = [], [], []
        for sequence, token in zip(sequences, tokens, strict=True):
            self._check(sequence, [token], "sequence")
            self._drop_pending(sequence)
            self.catch_up(sequence, self.chunk - 1)
            past_lens.append(sequence.mtp_len)
            pieces.append([*sequence.tokens[past_lens[-1] :], token])
            hiddens.append(sequence.hiddens.span(past_lens[-1] - 1, sequence.length))
        result = self._run_draft(sequences, pieces, hiddens, past_lens, run)
        for sequence, token in zip(sequences, tokens, strict=True):
            sequence.drafted(token)
        return result

    def draft_more(
        self, sequences: Sequences, tokens: Tokens, hidden: NDArray[np.float32], run: Run = Binding.run
    ) -> DraftResult:
        """Predicts the token after draft `tokens[i]`, from the head's own `hidden` [sequences, hidden] before it."""
        pieces = [[token] for token in tokens]
        past_lens = [sequence.mtp_len + sequence.drafted_len for sequence in sequences]
        self._check_room(max(past_lens) + 1, "draft")
        result = self._run_draft(sequences, pieces, hidden[:, None], past_lens, run)
        for sequence in sequences:
            sequence.drafted_more()
        return result

    def _chunks(self, tokens: abc.Sequence[Tokens]) -> abc.Iterator[tuple[list[int], list[Tokens]]]:
        """Which sequences take part in each prefill, and with what: as many tokens as fit, in order."""
        done = [0] * len(tokens)
        while True:
            room, pieces = self.chunk, {}
            for i, new in enumerate(tokens):
                if size := min(room, len(new) - done[i]):
                    pieces[i] = new[done[i] : done[i] + size]
                    done[i] += size
                    room -= size
            if not pieces:
                return
            yield list(pieces), list(pieces.values())

    def _prefill_chunks(
        self, sequences: abc.Sequence[Sequence], pieces: abc.Sequence[Tokens], shown: Rows
    ) -> StepResult:
        result = self._run(self._prefill, sequences, pieces, Binding.run, shown)
        for i, (sequence, piece) in enumerate(zip(sequences, pieces, strict=True)):
            sequence.prefilled(piece, result.hidden[i])
        return result

    def _drop_pending(self, sequence: Sequence) -> None:
        if sequence.pending:
            self.keep(sequence, 0)

    def catch_up(self, sequence: Sequence, backlog: int = 0) -> None:
        """Rebuilds the head's KV of kept tokens until at most `backlog` of them lack it. Nothing may be pending."""
        sequence.trim_drafts()
        while self._draft is not None and sequence.length - sequence.mtp_len > backlog:
            start, stop = sequence.mtp_len, min(sequence.length, sequence.mtp_len + self.chunk)
            hidden = sequence.hiddens.span(start - 1, stop - 1)
            self._run_draft([sequence], [sequence.tokens[start:stop]], [hidden], [start])
            sequence.caught_up(stop)

    def _run(
        self, graph: Graph, sequences: Sequences, tokens: abc.Sequence[Tokens], run: Run, shown: Rows = ()
    ) -> StepResult:
        """A prefill or verify; afterwards the sequences live in the slots that it wrote. `shown`: rows of images."""
        self.prefilling = graph is self._prefill
        binding = graph.bind(sum(map(len, tokens)), len(sequences), len(shown))
        inputs = binding.inputs
        fill_tokens(inputs, tokens)
        fill_images(inputs, shown)
        fill_positions(inputs, sequences, tokens, [sequence.length for sequence in sequences])
        fill_previous(inputs, sequences, self._text_start)
        slots = self.state.slots_out(sequences, _lengths_after(sequences, tokens))
        try:
            for i, sequence in enumerate(sequences):
                self._drop_pending(sequence)
                inputs["past_lens"][i] = sequence.length
                inputs["accepted"][i] = sequence.to_commit
                inputs["slots_in"][i] = sequence.slot
                inputs["slots_out"][i] = slots[i]
                inputs["page_table"][i] = sequence.pages
                if "prev_hidden" in inputs:  # a prefill
                    inputs["prev_hidden"][i] = sequence.hiddens.span(sequence.length - 1, sequence.length)[0]
            run(binding)
        except BaseException:
            self.state.abandon(sequences, slots)
            raise
        self.state.move(sequences, slots)
        outputs = binding.outputs
        return StepResult(outputs["logits"], outputs["tokens"], outputs["hidden"])

    def _run_draft(
        self,
        sequences: Sequences,
        tokens: abc.Sequence[Tokens],
        hiddens: abc.Iterable[NDArray[np.float32]],
        past_lens: abc.Sequence[int],
        run: Run = Binding.run,
    ) -> DraftResult:
        if self._draft is None:
            raise TrigraphError("the package has no MTP head, or was loaded without speculation; it cannot draft")
        self.state.reserve(sequences, [past + len(new) for past, new in zip(past_lens, tokens, strict=True)])
        binding = self._draft.bind(sum(map(len, tokens)), len(sequences))
        inputs = binding.inputs
        fill_tokens(inputs, tokens)
        fill_positions(inputs, sequences, tokens, past_lens)
        row = 0
        for i, (sequence, new, hidden) in enumerate(zip(sequences, tokens, hiddens, strict=True)):
            inputs["past_lens"][i] = past_lens[i]
            inputs["page_table"][i] = sequence.pages
            inputs["prev_hidden"][row : row + len(new)] = hidden
            row += len(new)
        run(binding)
        outputs = binding.outputs
        return DraftResult(outputs["logits"], outputs["tokens"], outputs["probability"], outputs["hidden"])

    def _check(self, sequence: Sequence, new: Tokens, noun: str, rows: ImageRows = None) -> None:
        if sequence.damaged:
            raise TrigraphError("the sequence was released or a step of it failed; start a new one")
        self._check_room(sequence.length + len(new), noun)
        if rows is not None and not (new := text_ids(new, rows)):
            return
        if set(map(type, new)) != {int} and np.asarray(new).dtype.kind not in "iu":
            raise TrigraphError(f"token ids must be whole numbers, found {quote(new)}")
        if min(new) < 0 or max(new) >= self.vocab:
            raise TrigraphError(f"token ids must be from 0 to {self.vocab - 1}, found {min(new)} to {max(new)}")

    def _check_room(self, length: int, noun: str) -> None:
        context = self.state.limits.context
        if length > context:
            raise TrigraphError(
                f"the {noun} reaches {length} tokens and the context holds {context}; load with a larger context"
            )


def _lengths_after(sequences: abc.Sequence[Sequence], tokens: abc.Sequence[Tokens]) -> list[int]:
    """Lengths of the sequences with these tokens."""
    return [sequence.length + len(new) for sequence, new in zip(sequences, tokens, strict=True)]
