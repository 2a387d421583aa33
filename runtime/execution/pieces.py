"""The pieces of prompts that are computed one after the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trigraph.runtime.device.exchange import Exchange
from trigraph.runtime.execution.inputs import Sequences, Tokens
from trigraph.runtime.execution.sessions import Binding


def pieces_of(tokens: Sequence[Tokens], chunk: int, count: int) -> Iterator[tuple[list[int], list[Tokens], bool]]:
    """Which sequences take part in each prefill, with what, and whether the host waits for it.

    In order, each of at most a `count`th of `chunk` tokens. The host waits where a prompt ends and for each `count`th.
    """
    done, size, ahead = [0] * len(tokens), -(-chunk // count), 0
    while True:
        room, pieces = size, dict[int, Tokens]()
        for i, new in enumerate(tokens):
            if taken := min(room, len(new) - done[i]):
                pieces[i] = new[done[i] : done[i] + taken]
                done[i] += taken
                room -= taken
        if not pieces:
            return
        waits = ahead + 1 == count or any(done[i] == len(tokens[i]) for i in pieces)
        ahead = 0 if waits else ahead + 1
        yield list(pieces), list(pieces.values()), waits


class PieceRun:
    """Runs pieces. One that the host does not wait for is of one sequence, the first of the next piece too."""

    def __init__(self) -> None:
        self._before: Exchange | None = None

    def __call__(self, sequences: Sequences, waits: bool, binding: Binding) -> None:
        """Runs one of these sequences, whose inputs are filled in but for the hidden rows before its tokens."""
        if (rows := binding.inputs.get("prev_hidden")) is not None:
            for i, sequence in enumerate(sequences):
                if self._before is None or i:
                    rows[i] = sequence.hiddens.span(sequence.length - 1, sequence.length)[0]
                else:
                    self._before.hand_over("hidden", rows[:1])
        binding.begin()
        if waits:
            binding.exchange.receive()
        self._before = None if waits else binding.exchange
