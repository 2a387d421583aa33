"""The steps that decoding is made of: prefill, verify, keep and draft, for one or more sequences of any lengths."""

from __future__ import annotations

import threading
from collections import abc
from functools import partial

import numpy as np
from numpy.typing import NDArray

from trigraph.models.checks import check
from trigraph.models.drafter.config import BlockDrafterConfig
from trigraph.models.errors import TrigraphError
from trigraph.runtime.execution.inputs import (
    ImageRows,
    Rows,
    Sequences,
    Tokens,
    check_ids,
    fill_images,
    fill_positions,
    fill_previous,
    fill_tables,
    fill_tokens,
    lengths_after,
    next_rows,
)
from trigraph.runtime.execution.pieces import PieceRun, pieces_of
from trigraph.runtime.execution.results import BlockResult, DraftResult, StepResult
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
        block_draft: Graph | None = None,
        block: BlockDrafterConfig | None = None,
    ) -> None:
        """`chunk`: most tokens, of all prompts together, ahead of a wait; where a prompt is cut does not matter.

        `text_start`: the token that n-grams have in place of those before a text. `draft`: the graph of an MTP
        head, `block_draft` that of the block drafter `block`.
        """
        check("chunk", chunk, int, lambda value: value >= 1, "1 or more")
        self.lock = threading.RLock()
        self.prefilling = False
        """Whether the step that runs, or ran last, reads prompts."""
        self.state = state
        self.vocab = vocab
        self.change_over(prefill, verify, draft, block_draft)
        self.block = None if block_draft is None else block
        """The block drafter that `draft_block` runs, if there is one."""
        self.chunk = min(chunk, state.ring or chunk)  # two rows of a step must not meet in a ring
        self._text_start = text_start

    def change_over(self, prefill: Graph, verify: Graph, draft: Graph | None, block: Graph | None = None) -> None:
        """Has all later steps run these graphs, on the same state. Any thread may call it, while steps run or not."""
        self._prefill, self._verify, self._draft, self._block_draft = prefill, verify, draft, block

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
        self.state.check_room(sequences, lengths_after(sequences, tokens))
        for sequence in sequences:
            self._drop_pending(sequence)
            self.catch_up(sequence)
        result: StepResult | None = None
        left = {i: iter(shown) for i, shown in enumerate(images) if shown is not None}
        run = PieceRun()
        for members, pieces, waits in pieces_of(tokens, self.chunk, self._prefill.pieces):
            own = [sequences[i] for i in members]
            seen = [row for i, new in zip(members, pieces, strict=True) if i in left for row in next_rows(left[i], new)]
            rows = self._run(self._prefill, own, pieces, partial(run, own, waits), seen)
            for row, (sequence, piece) in enumerate(zip(own, pieces, strict=True)):
                sequence.prefilled(piece, rows.hidden[row] if waits else None)
            if len(sequences) == 1:
                result = rows
            elif result is None:
                result = StepResult(*(np.empty((len(sequences), *a.shape[1:]), a.dtype) for a in rows))
            if waits and result is not rows:
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
        self.state.limits.check_context(max(past_lens) + 1, "draft")
        result = self._run_draft(sequences, pieces, hidden[:, None], past_lens, run)
        for sequence in sequences:
            sequence.drafted_more()
        return result

    def draft_block(self, sequences: Sequences, tokens: Tokens, run: Run = Binding.run) -> BlockResult:
        """Candidates for what follows `tokens[i]`, the sampled but not yet verified next token of each sequence.

        The block drafter writes keys and values behind those of committed tokens, where the next verify writes its own.
        """
        if self.block is None:
            raise TrigraphError("the package has no block drafter, or was loaded without speculation")
        blocks = [[token, *[self.block.mask] * (self.block.block - 1)] for token in tokens]
        for sequence, block in zip(sequences, blocks, strict=True):
            self._check(sequence, block, "draft")
            self._drop_pending(sequence)
        self.state.own_rings(sequences)
        binding = self._bind_draft(self._block_draft, sequences, blocks, [sequence.length for sequence in sequences])
        run(binding)
        return BlockResult(binding.outputs["candidates"], binding.outputs["edges"])

    def _drop_pending(self, sequence: Sequence) -> None:
        if sequence.pending:
            self.keep(sequence, 0)

    def catch_up(self, sequence: Sequence, backlog: int = 0) -> None:
        """Rebuilds the head's KV of kept tokens until at most `backlog` of them lack it. Nothing may be pending."""
        sequence.trim_drafts()
        while self.can_draft and sequence.length - sequence.mtp_len > backlog:
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
        slots = self.state.slots_out(sequences, lengths_after(sequences, tokens))
        fill_tables(inputs, sequences)
        try:
            for i, sequence in enumerate(sequences):
                self._drop_pending(sequence)
                inputs["past_lens"][i] = sequence.length
                inputs["accepted"][i] = sequence.to_commit
                inputs["slots_in"][i] = sequence.slot
                inputs["slots_out"][i] = slots[i]
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
        if not self.can_draft:
            raise TrigraphError("the package has no MTP head, or was loaded without speculation; it cannot draft")
        binding = self._bind_draft(self._draft, sequences, tokens, past_lens)
        row = 0
        for new, hidden in zip(tokens, hiddens, strict=True):
            binding.inputs["prev_hidden"][row : row + len(new)] = hidden
            row += len(new)
        run(binding)
        outputs = binding.outputs
        return DraftResult(outputs["logits"], outputs["tokens"], outputs["probability"], outputs["hidden"])

    def _bind_draft(
        self, graph: Graph | None, sequences: Sequences, tokens: abc.Sequence[Tokens], past_lens: abc.Sequence[int]
    ) -> Binding:
        """A run of a draft graph, with the inputs that drafters of all kinds have; pages are there."""
        assert graph is not None
        self.state.reserve(sequences, [past + len(new) for past, new in zip(past_lens, tokens, strict=True)])
        binding = graph.bind(sum(map(len, tokens)), len(sequences))
        inputs = binding.inputs
        fill_tokens(inputs, tokens)
        fill_positions(inputs, sequences, tokens, past_lens)
        fill_tables(inputs, sequences)
        inputs["past_lens"][:] = past_lens
        return binding

    def _check(self, sequence: Sequence, new: Tokens, noun: str, rows: ImageRows = None) -> None:
        if sequence.damaged:
            raise TrigraphError("the sequence was released or a step of it failed; start a new one")
        self.state.limits.check_context(sequence.length + len(new), noun)
        check_ids(new, self.vocab, rows)
