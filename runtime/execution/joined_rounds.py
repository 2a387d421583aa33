"""Rounds with few drafts as one run, for small models: what lies between runs would take a fifth of theirs."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from trigraph.runtime.device.device import Array, Drawing
from trigraph.runtime.execution.results import RoundResult, StepResult
from trigraph.runtime.execution.sessions import Graph
from trigraph.runtime.state.sequence import Sequence
from trigraph.runtime.state.state import State


class JoinedRounds:
    """Runs the graphs that `join` makes, on the state. `graphs`: those of 1, 2, .. drafts."""

    def __init__(self, graphs: tuple[Graph, ...], state: State) -> None:
        self._graphs, self._state = graphs, state
        for drafts, graph in enumerate(graphs, 1):
            for seen in range(1, drafts + 2):
                graph.bind(seen, 1)  # which takes longer than a round, and here no text waits for it

    @property
    def most(self) -> int:
        """Drafts of a round."""
        return len(self._graphs)

    def run(self, sequence: Sequence, token: int, drafts: int, drawing: Drawing) -> RoundResult:
        """See Steps.draft_and_verify."""
        length = sequence.length
        seen = [*sequence.tokens[sequence.mtp_len :], token]
        slots = self._state.slots_out([sequence], [length + 1 + drafts])
        try:
            binding = self._graphs[drafts - 1].bind(len(seen), 1)
            for number in range(1, drafts):
                binding.inputs[f"past_lens@{number}"][0] = length + number
            _fill(binding.inputs, sequence, seen, slots[0], drawing)
            binding.inputs["cu_seqlens"][:] = 0, 1 + drafts
            binding.run()
        except BaseException:
            self._state.abandon([sequence], slots)
            raise
        self._state.move([sequence], slots)
        outputs = binding.outputs
        sequence.mtp_len, sequence.drafted_len, sequence.draft_token = length + 1, drafts - 1, token
        sequence.pending, sequence.to_commit = outputs["verified"].tolist(), 0
        sequence.hiddens.append(outputs["hidden"])
        result = StepResult(outputs["logits"], outputs["tokens"], outputs["hidden"])
        return RoundResult([sequence.pending[1:]], result, (), outputs["drawn"].tolist(), joined=True)


def _fill(inputs: Mapping[str, Array], sequence: Sequence, seen: list[int], slot: int, drawing: Drawing) -> None:
    """What does not depend on the number of drafts."""
    length = sequence.length
    start = length + 1 - len(seen)
    inputs["input_ids@0"][:] = seen
    inputs["prev_hidden@0"][:] = sequence.hiddens.span(start - 1, length)
    inputs["cu_seqlens@0"][:] = 0, len(seen)
    inputs["past_lens@0"][0] = start
    inputs["token"][0] = seen[-1]
    inputs["filters"][:] = drawing.temperature, drawing.top_p, drawing.min_p
    inputs["numbers"].view(np.uint64)[:] = drawing.top_k, drawing.seed, length + 1
    inputs["past_lens"][0] = length
    inputs["accepted"][0] = sequence.to_commit
    inputs["slots_in"][0] = sequence.slot
    inputs["slots_out"][0] = slot
    inputs["page_table"][0] = sequence.pages
