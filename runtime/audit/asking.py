"""What conditions ask with: a client, a plan, what was answered before, and the time that is left."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import Any

from trigraph.runtime.audit.answer import Answer
from trigraph.runtime.audit.client import Client
from trigraph.runtime.audit.connection import ServerError
from trigraph.runtime.audit.plan import GREEDY, Case, Plan

_MOST_TIMEOUTS = 3  # in a row


class NotPossibleError(Exception):
    """A condition needs something that the server does not have."""


class OutOfTimeError(Exception):
    """No more is asked, and why."""


class Asking:
    """Asks cases for the conditions; any number of threads may."""

    def __init__(self, client: Client, plan: Plan) -> None:
        self.client, self.plan = client, plan
        self.expected: dict[Case, Answer] = {}
        """The answers of the first condition, in which each case is alone."""
        self.deadline = math.inf
        """When the condition must end, by the clock `time.monotonic`."""
        self.fingerprints = True
        """Whether fingerprints are compared."""
        self._timeouts = 0  # in a row

    def ask(
        self, case: Case, *, prompt: Any = None, tokens: int | None = None, stream: bool = False, api: str | None = None
    ) -> Answer | ServerError:
        """The answer, or why there is none. Raises OutOfTimeError."""
        if time.monotonic() > self.deadline:
            raise OutOfTimeError("no time left")
        if self._timeouts >= _MOST_TIMEOUTS:
            raise OutOfTimeError("the server stopped answering")
        if self.client.received > self.plan.bytes:
            raise OutOfTimeError(f"answers had more than {self.plan.bytes} bytes")
        try:
            answer = self.client.complete(case, tokens or self.plan.tokens, prompt=prompt, stream=stream, api=api)
        except ServerError as error:
            self._timeouts = self._timeouts + 1 if error.what == "timed out" else 0
            return error
        self._timeouts = 0
        if stream and not self.client.stream_usage and case in self.expected:
            answer = answer.where_given(self.expected[case], "usage")
        return answer if self.fingerprints else replace(answer, fingerprint=None)

    def warm(self, prompt: str) -> ServerError | None:
        """Has a prompt computed, for its own sake; why the server did not. Raises OutOfTimeError."""
        answer = self.ask(Case(prompt, GREEDY), tokens=1)
        return answer if isinstance(answer, ServerError) else None

    def sleep(self, seconds: float) -> None:
        """Asks nothing for some seconds. Raises OutOfTimeError at once when they would last too long."""
        if time.monotonic() + seconds > self.deadline:
            raise OutOfTimeError("no time left")
        time.sleep(seconds)

    def tokenize(self, text: str) -> list[int] | None:
        """The ids of a text, as the server's /tokenize gives them (llama.cpp's way, or vLLM's); None without."""
        body = {"content": text, "prompt": text, "add_special": True, "add_special_tokens": True}
        if self.client.model is not None:
            body["model"] = self.client.model
        try:
            tokens = self.client.json("/tokenize", body).get("tokens")
        except ServerError:
            return None
        return tokens if isinstance(tokens, list) and tokens and all(isinstance(each, int) for each in tokens) else None
