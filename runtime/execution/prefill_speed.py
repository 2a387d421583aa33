"""How fast pieces of prompts are computed on this machine."""

_MEMORY = 0.9  # weight of a timed piece, one piece later
_FIRST_PIECE = 32  # tokens of a piece before any was timed


class PrefillSpeed:
    """The speed of the latest pieces of prompts, of a model on a machine. Requests share it."""

    def __init__(self) -> None:
        self._tokens = self._seconds = 0.0  # decayed sums

    def observe(self, tokens: int, seconds: float) -> None:
        """Takes in the run of a piece."""
        self._tokens = _MEMORY * self._tokens + tokens
        self._seconds = _MEMORY * self._seconds + seconds

    def tokens(self, seconds: float) -> int:
        """The tokens whose run takes about `seconds`, at that speed; at least 1."""
        return max(1, int(seconds * self._tokens / self._seconds)) if self._seconds else _FIRST_PIECE

    def seconds(self, tokens: int) -> float:
        """What a prefill of so many tokens takes, as far as is known."""
        return tokens / self.tokens(1.0)
