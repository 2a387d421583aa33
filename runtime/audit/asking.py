"""What conditions ask with: a client, a plan, what was answered before, and the time that is left."""

from __future__ import annotations

import time
from typing import Any

from trigraph.runtime.audit.answer import Answer
from trigraph.runtime.audit.client import Client, ServerError
from trigraph.runtime.audit.plan import GREEDY, Case, Plan


class NotPossibleError(Exception):
    """A condition needs something that the server does not have."""


class OutOfTimeError(Exception):
    """The time of a condition is over."""


class Asking:
    """Asks cases for the conditions; any number of threads may."""

    def __init__(self, client: Client, plan: Plan) -> None:
        self.client, self.plan = client, plan
        self.expected: dict[Case, Answer] = {}
        """The answers of the first condition, in which each case is alone."""
        self.deadline: float | None = None
        """Of the condition, by the clock `time.monotonic`."""

    def ask(
        self, case: Case, *, prompt: Any = None, tokens: int | None = None, stream: bool = False, api: str | None = None
    ) -> Answer | ServerError:
        """The answer, or why there is none. Raises OutOfTimeError."""
        if self.deadline is not None and time.monotonic() > self.deadline:
            raise OutOfTimeError
        try:
            return self.client.complete(case, tokens or self.plan.tokens, prompt=prompt, stream=stream, api=api)
        except ServerError as error:
            return error

    def warm(self, prompt: str) -> bool:
        """Has a prompt computed, for its own sake; whether the server did. Raises OutOfTimeError."""
        return isinstance(self.ask(Case(prompt, GREEDY), tokens=1), Answer)

    def sleep(self, seconds: float) -> None:
        """Asks nothing for some seconds. Raises OutOfTimeError at once when they would last too long."""
        if self.deadline is not None and time.monotonic() + seconds > self.deadline:
            raise OutOfTimeError
        time.sleep(seconds)

    def tokenize(self, text: str) -> list[int] | None:
        """The ids of a text, as the server's /tokenize gives them (llama.cpp's way, or vLLM's); None without."""
        body = {"content": text, "prompt": text, "add_special": True, "add_special_tokens": True}
        if self.client.model is not None:
            body["model"] = self.client.model
        try:
            found = self.client.post("/tokenize", body).get("tokens")
        except ServerError:
            return None
        return found if isinstance(found, list) and found and all(isinstance(each, int) for each in found) else None

    def completed(self, case: Case, beginning: Answer) -> Answer:
        """An answer that was asked for in part, with the rest as expected: equal where the part is."""
        expected = self.expected[case]
        rest = expected.beginning(len(beginning.text))
        return Answer(
            beginning.text + expected.text[len(beginning.text) :],
            beginning.tokens + expected.tokens[len(rest.tokens) :],
            beginning.logprobs + expected.logprobs[len(rest.logprobs) :],
        )
