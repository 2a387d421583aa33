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
        self._interval = 1.0  # from turn to turn, a moving average
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
            self._interval += _LEARNING * (self.now - turned - self._interval)

    def evicted(self, tokens: list[int], used: int) -> None:
        """Remembers the end of a prompt or completion that was used last at `used`."""
        self._gone[key_of(tokens)] = used
        if len(self._gone) > _REMEMBERED:
            del self._gone[next(iter(self._gone))]

    def wait(self, used: int) -> float:
        """How long until that is due which was used last at `used`.

        What is overdue may come at any time or never: the longer, the less likely. It counts as due in twice the time
        that has passed since.
        """
        left = used + self._interval - self.now
        return left if left > 0 else -2 * left
