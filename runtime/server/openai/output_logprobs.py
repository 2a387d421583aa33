"""Which tokens the pieces of a reply are made of, and their log-probabilities."""

from __future__ import annotations

from bisect import bisect_left

from trigraph.runtime.requests.handle import Handle
from trigraph.runtime.requests.logprobs import TokenLogprob
from trigraph.runtime.text.reply import CallEnded, Content, Event, Reasoning
from trigraph.runtime.text.tokenizer import Detokenizer, Tokenizer

_CALL_END = "</tool_call>"


class OutputLogprobs:
    """Takes the events of a reply in order. Reasoning and content stand in the generated text as they are."""

    def __init__(self, request: Handle, tokenizer: Tokenizer) -> None:
        self._request = request
        self._detokenizer = Detokenizer(tokenizer)
        self._text = ""
        self._ends: list[int] = []  # where the text of each token ends
        self._place = 0  # the end of the last event's text
        self._given = 0  # tokens that belong to earlier events

    def of(self, event: Event) -> list[TokenLogprob]:
        """The log-probabilities of the tokens that an event adds to the content."""
        for token in self._request.ids[len(self._ends) :]:
            self._text += self._detokenizer.push(token)
            self._ends.append(len(self._text))
        match event:
            case Reasoning():
                self._pass(event.text)
            case Content():
                return self._pass(event.text)
            case CallEnded():
                self._pass(_CALL_END)
        return []

    def _pass(self, piece: str) -> list[TokenLogprob]:
        start = self._text.find(piece, self._place)
        if start < 0:
            return []
        self._place = start + len(piece)
        first = bisect_left(self._ends, start)
        if start and first < len(self._ends) and self._ends[first] == start:
            first += 1  # tokens behind this one begin a character, or the piece
        first = max(self._given, first)
        self._given = bisect_left(self._ends, self._place) + 1
        return self._request.logprobs[first : self._given]
