"""How long work reports on itself."""

from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""Called with (stage, bytes done, bytes in all); stages are "copy", "convert" and "upload"."""


def silent(stage: str, done: int, total: int) -> None:
    """A `Progress` that shows nothing."""
