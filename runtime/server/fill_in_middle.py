"""Prompts for text between a beginning and an end, in the form that Qwen's models were trained on."""

from __future__ import annotations

from collections.abc import Sequence

from trigraph.runtime.server.backend import Backend
from trigraph.runtime.server.errors import ApiError

_PREFIX, _SUFFIX, _MIDDLE = "<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"
_REPOSITORY, _FILE = "<|repo_name|>", "<|file_sep|>"
_SEPARATOR = "\n\n--- snippet ---\n\n"  # between other texts, where the vocabulary has no token for that
_UNNAMED_REPOSITORY, _UNNAMED_FILE = "myproject", "filename"


def fill_in_middle(
    engine: Backend,
    prefix: str,
    suffix: str,
    *,
    begun: Sequence[int] = (),
    others: Sequence[tuple[str, str]] = (),
    room: int = 0,
    param: str,
) -> list[int]:
    """The prompt whose completion stands between `prefix` and `suffix`.

    `begun`: tokens that the middle begins with. `others`: names and texts of other files, of which the last ones stay
    that leave `room` tokens of the context. Raises ApiError, which names `param`, where the model does not know how.
    """
    tokenizer = engine.tokenizer
    marks = {name: tokenizer.id_of(name) for name in (_PREFIX, _SUFFIX, _MIDDLE, _REPOSITORY, _FILE)}
    ids = [token for name in (_PREFIX, _SUFFIX, _MIDDLE) if (token := marks[name]) is not None]
    if len(ids) < 3:
        raise ApiError(
            f"{param} asks for text in the middle; the model's vocabulary lacks {_PREFIX}, {_SUFFIX} or {_MIDDLE}",
            param=param,
            code="unsupported_parameter",
        )

    def encoded(text: str) -> list[int]:
        return tokenizer.encode(tokenizer.control_names.as_text(text), start=False, most=4 * engine.context)

    repository, file = marks[_REPOSITORY], marks[_FILE]
    start = [] if tokenizer.bos_id is None else [tokenizer.bos_id]
    if others and repository is not None:
        start += [repository, *encoded(f"{_UNNAMED_REPOSITORY}\n")]
    own = [] if not others or file is None else [file, *encoded(f"{_UNNAMED_FILE}\n")]
    own += [ids[0], *encoded(prefix), *begun, ids[1], *encoded(suffix), ids[2]]
    before: list[int] = []
    for name, text in reversed(others):
        head = encoded(_SEPARATOR) if file is None else [file, *encoded(f"{name}\n")]
        more = [*head, *encoded(text)]
        if len(start) + len(more) + len(before) + len(own) + room > engine.context:
            break
        before = more + before
    return [*start, *before, *own]
