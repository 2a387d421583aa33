"""The tokenizer and the chat template of a package."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from trigraph.exporter import Manifest
from trigraph.exporter.package.paths import file_inside
from trigraph.models.errors import TrigraphError
from trigraph.runtime.text.template import ChatTemplate
from trigraph.runtime.text.template_renderer import Renderer
from trigraph.runtime.text.tokenizer import Tokenizer

_MAX_BYTES = 256 << 20  # of a tokenizer; 30 MB are usual


def read_texts(folder: Path, manifest: Manifest) -> tuple[Tokenizer, ChatTemplate | None]:
    """The tokenizer, and the template if the package has one. Raises TrigraphError for files that cannot be read."""
    special = manifest.special_tokens
    source = renderer = None
    if os.path.lexists(folder / "chat_template.jinja"):
        source = _read(folder, "chat_template.jinja")
        with suppress(TrigraphError):  # which is said when something is rendered
            renderer = Renderer()  # starts while the vocabulary is read
    tokenizer = Tokenizer(_read(folder, "tokenizer.json"), special.stop, special.bos if special.add_bos else None)
    if source is None:
        return tokenizer, None
    ids = {"bos_token": special.bos, "eos_token": special.eos, "pad_token": special.pad}
    names = {name: tokenizer.text_of(token) for name, token in ids.items() if token is not None}
    return tokenizer, ChatTemplate(source, names, tokenizer.control_names, renderer)


def _read(folder: Path, name: str) -> str:
    path = file_inside(folder, name, _MAX_BYTES)
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TrigraphError(f"{path}: cannot be read ({error}); export the package again") from error
