"""The text of a completion in the making."""

from __future__ import annotations

from trigraph.runtime.requests.options import Options
from trigraph.runtime.sampling.guide import Guide
from trigraph.runtime.text.lexemes import Ending
from trigraph.runtime.text.stop_strings import StopStrings
from trigraph.runtime.text.tokenizer import Detokenizer, Tokenizer


class Transcript:
    """The ids and the text of a completion, until something finishes it.

    That is a stop token, a stop string, the token limit, the end of the context, or `guide` where nothing may follow.
    """

    def __init__(
        self, tokenizer: Tokenizer, options: Options, prompt_length: int, context: int, guide: Guide | None = None
    ) -> None:
        self.ids: list[int] = []  # without a final stop token
        self.sampled = 0
        self.text = ""
        self.finish_reason: str | None = None
        own = frozenset[int]() if options.ignore_eos else tokenizer.stop_ids
        self._stop_ids = own | frozenset(options.stop_tokens)
        self._detokenizer = Detokenizer(tokenizer)
        self._stops = StopStrings(options.stop)
        self._guide = guide
        # Elsewhere: where the constraint ends with the last token that the limit allows, only its guide tells which.
        self._ends_elsewhere = options.constraint is not None and guide is None
        room = context - prompt_length
        self._limited = options.max_tokens is not None and options.max_tokens <= room
        self._limit = room if options.max_tokens is None else min(options.max_tokens, room)
        if self._limit == 0:
            self._finish("length" if self._limited else "context")

    @property
    def left(self) -> int:
        """How many more tokens it may take: what the token limit and the context leave."""
        return self._limit - self.sampled

    @property
    def finished(self) -> bool:
        """Whether it takes no more."""
        return self.finish_reason is not None

    @property
    def stop_string(self) -> str | None:
        """The stop string that finished it, if one did."""
        return self._stops.match

    @property
    def ending(self) -> Ending:
        """How the reply has ended that it is the text of."""
        if self.finish_reason != "stop":
            return "cut"
        return "whole" if self.stop_string is None else "stopped"

    def push(self, token: int) -> bool:
        """Takes the next token; true when that finishes it."""
        if self.finish_reason is not None:
            return True
        self.sampled += 1
        if token in self._stop_ids:
            self._finish("stop")
            return True
        self.ids.append(token)
        self.text += self._stops.push(self._detokenizer.push(token))
        if self._stops.match is not None:
            self.finish_reason = "stop"
        elif self._guide is not None and self._guide.finished:
            self._finish("stop")
        elif self.sampled == self._limit and not self._ends_elsewhere:
            self._finish("length" if self._limited else "context")
        else:
            return False
        return True

    def cancel(self, reason: str = "cancelled") -> None:
        """Ends the completion as it is."""
        if not self.finished:
            self._finish(reason)

    def end(self, reason: str, sampled: int) -> None:
        """Ends the completion where that of another transcript ended, with `sampled` tokens."""
        self.sampled = sampled
        self.cancel(reason)

    def _finish(self, reason: str) -> None:
        self.finish_reason = reason
        if reason == "stop":  # elsewhere, a character is cut off that more tokens would have completed
            self.text += self._stops.push(self._detokenizer.flush())
        if not self._stops.found:
            self.text += self._stops.flush()
