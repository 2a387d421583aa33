"""When prompts go on from earlier ones. Time is counted in prompts."""

from __future__ import annotations

from trigraph.runtime.cache.token_keys import Key, beginnings, key_of

_LEARNING = 0.2  # weight of the newest turn
_REMEMBERED = 64  # ends of prompts that are not in memory any more


class Turns:
    """How long conversations take from one turn to the next: what was used a round ago is used again."""

    def __init__(self) -> None:
        self.now = 0
        """Number of the latest prompt."""
        self._interval, self._error = 1.0, 0.0  # from turn to turn, and how far from it they were: moving averages
        self._gone: dict[Key, int] = {}  # what was evicted, and when it was used last

    def begin(self, prompt: list[int], found: int, turned: int | None) -> None:
        """A prompt comes, of which `found` tokens are in memory.

        `turned`: when their end was used last, if this is the first prompt that goes on from it.
        """
        self.now += 1
        missed = [key for key in beginnings(prompt, self._gone) if key[0] > found]
        if missed:
            turned = [self._gone.pop(key) for key in missed][-1]
        if turned is not None:
            error = self.now - turned - self._interval
            self._interval += _LEARNING * error
            self._error += _LEARNING * (abs(error) - self._error)

    def evicted(self, tokens: list[int], used: int) -> None:
        """Remembers the end of a prompt or completion that was used last at `used`."""
        self._gone[key_of(tokens)] = used
        if len(self._gone) > _REMEMBERED:
            del self._gone[next(iter(self._gone))]

    def wait(self, used: int) -> float:
        """How long until that is due which was used last at `used`.

        After an interval, as far as turns come at intervals: in a cycle, what was used last comes last. What is overdue
        waits twice as long as it is. As far as turns come at random, the time that has passed is the best guess.
        """
        passed = self.now - used
        left = self._interval - passed
        regular = max(0.0, 1 - self._error / self._interval)
        return regular * (left if left > 0 else -2 * left) + (1 - regular) * passed
