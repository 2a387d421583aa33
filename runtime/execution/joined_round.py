"""A round with one draft as one run, for small models: what lies between runs would take a fifth of theirs."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from trigraph.runtime.device.device import Array, Drawing
from trigraph.runtime.execution.joined_graph import ROWS
from trigraph.runtime.execution.results import RoundResult, StepResult
from trigraph.runtime.execution.sessions import Graph
from trigraph.runtime.state.sequence import Sequence
from trigraph.runtime.state.state import State


class JoinedRound:
    """Runs the graph that `join` makes, on the state."""

    def __init__(self, graph: Graph, state: State) -> None:
        self._graph, self._state = graph, state

    def run(self, sequence: Sequence, token: int, drawing: Drawing) -> RoundResult:
        """See Steps.draft_and_verify."""
        length = sequence.length
        seen = [*sequence.tokens[sequence.mtp_len :], token]
        slots = self._state.slots_out([sequence], [length + ROWS])
        try:
            binding = self._graph.bind(len(seen), 1)
            _fill(binding.inputs, sequence, seen, slots[0], drawing)
            binding.run()
        except BaseException:
            self._state.abandon([sequence], slots)
            raise
        self._state.move([sequence], slots)
        outputs = binding.outputs
        draft = max(0, int(outputs["drafted"][0]))  # where no logit was a number, the graph went on with token 0
        sequence.mtp_len, sequence.drafted_len, sequence.draft_token = length + 1, 0, token
        sequence.pending, sequence.to_commit = [token, draft], 0
        sequence.hiddens.append(outputs["hidden"])
        result = StepResult(outputs["logits"], outputs["tokens"], outputs["hidden"])
        return RoundResult([[draft]], result, (), outputs["drawn"].tolist(), len(seen))


def _fill(inputs: Mapping[str, Array], sequence: Sequence, seen: list[int], slot: int, drawing: Drawing) -> None:
    length = sequence.length
    start = length + 1 - len(seen)
    inputs["draft.input_ids"][:] = seen
    inputs["draft.prev_hidden"][:] = sequence.hiddens.span(start - 1, length)
    inputs["draft.cu_seqlens"][:] = 0, len(seen)
    inputs["draft.past_lens"][0] = start
    inputs["token"][0] = seen[-1]
    inputs["filters"][:] = drawing.temperature, drawing.top_p, drawing.min_p
    inputs["numbers"].view(np.uint64)[:] = drawing.top_k, drawing.seed, length + 1
    inputs["cu_seqlens"][:] = 0, ROWS
    inputs["past_lens"][0] = length
    inputs["accepted"][0] = sequence.to_commit
    inputs["slots_in"][0] = sequence.slot
    inputs["slots_out"][0] = slot
    inputs["page_table"][0] = sequence.pages
