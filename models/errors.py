"""The error that a user can act on."""

from collections.abc import Iterator
from contextlib import contextmanager

MAX_LENGTH = 900
"""The most characters that a message quotes; it has hardly more than these."""


class TrigraphError(ValueError):
    """Bad input, in one sentence: which file, key or tensor, what was found, and what to do about it.

    Programs print the text and exit with status 2; anything else that escapes is a defect of trigraph. Whatever it
    quotes, the text is one line without control characters, and not long.
    """

    def __init__(self, text: str) -> None:
        super().__init__(one_line(text))


def one_line(text: str) -> str:
    """A message that may quote anything: one line without control characters, its middle left out where it is long."""
    text = _shortened(text)
    if text.isprintable():
        return text
    return _shortened("".join(character if character.isprintable() else repr(character)[1:-1] for character in text))


def _shortened(text: str) -> str:
    return text if len(text) <= MAX_LENGTH else f"{text[: MAX_LENGTH // 2]} [...] {text[-MAX_LENGTH // 2 :]}"


@contextmanager
def named(path: object) -> Iterator[None]:
    """Puts the file's name before errors of what was read from it."""
    try:
        yield
    except TrigraphError as error:
        raise TrigraphError(f"{path}: {error}") from error


@contextmanager
def file_errors(what: object, done: str = "read", remedy: str = "") -> Iterator[None]:
    """Turns an OSError of the block into a TrigraphError: `what` cannot be read, or be `done` so."""
    try:
        yield
    except OSError as error:
        raise TrigraphError(f"{what}: cannot be {done}: {error.strerror or error}{remedy}") from error


def kept(error: BaseException | None) -> BaseException | None:
    """An error that outlives the call that raised it: of a TrigraphError the text alone, which says all.

    Its traceback would hold whatever the calls held, and often what keeps the error, too.
    """
    if isinstance(error, TrigraphError):
        error.__traceback__ = error.__cause__ = error.__context__ = None
    return error


def again(error: BaseException) -> BaseException:
    """An error to be raised for one more caller: a new TrigraphError, whose traceback holds that caller alone."""
    if not isinstance(error, TrigraphError):
        return error
    other = type(error).__new__(type(error), *error.args)
    vars(other).update(vars(error))
    return other


def quote(value: object) -> str:
    """A value found in a file, for an error text: on one line and short, whatever it is."""
    if isinstance(value, (str, bytes)):
        value = value[:1000]  # repr makes four bytes of one
    if isinstance(value, int) and value.bit_length() > 1000:  # which Python may refuse to write
        return f"a number of {value.bit_length()} bits"
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else text[:57] + "..."


def check_name(name: object) -> None:
    """Raises TrigraphError for a path that is not UTF-8: ONNX files cannot name it, nor ONNX Runtime open it."""
    if str(name) != str(name).encode(errors="replace").decode():
        raise TrigraphError(f"{name}: is not UTF-8, as ONNX wants names to be; rename the file or folder")
