"""The model that a command is given: a path, or a name that is downloaded or found."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from trigraph.models.errors import TrigraphError
from trigraph.models.tiny import TINY_GGUF
from trigraph.runtime.cli.console import progress_bars, say

Model = Annotated[
    Path | None,
    typer.Argument(
        metavar="MODEL",
        help="A package, a GGUF file, USER/REPO:QUANT, ollama:NAME, or tiny (shipped). "
        "A file is exported to a cache on first use.",
        show_default=False,
    ),
]
Hub = Annotated[
    str | None,
    typer.Option("-hf", "--hf-repo", metavar="NAME", help="Download USER/REPO:QUANT from Hugging Face, once."),
]


@dataclass(frozen=True)
class GivenModel:
    """Where a model is."""

    path: Path
    mtp: Path | None = None
    """Its MTP head, where that is elsewhere."""
    mmproj: Path | None = None
    """Its vision tower, where that cannot be found beside it."""


def given_model(model: Path | None, hub: str | None) -> GivenModel:
    """The files of the model that is given; what is named is downloaded first, or found in Ollama's folder.

    Raises TrigraphError for both or neither, and for what cannot be downloaded or found.
    """
    if model is not None and hub is not None:
        raise TrigraphError(f"{model} and -hf {hub} both name a model; give one of them")
    if hub is None:
        if model is None:
            raise TrigraphError("name a model: MODEL.gguf, a package, or -hf USER/REPO:QUANT")
        if os.path.lexists(model) or (model.parent.name and model.parent.is_dir()):
            return GivenModel(model)
        if (hub := model.as_posix()).startswith("ollama:"):
            return _of_ollama(hub)
        if hub == "tiny":
            return GivenModel(TINY_GGUF)
        from trigraph.runtime.hub.repository import is_name

        if not is_name(hub):
            return GivenModel(model)
    return _downloaded(hub)


def public_name(given: Path | None, path: Path) -> str:
    """What clients call a model: the name of its file, or that which it was given by where the file's tells nothing."""
    text = "" if given is None else given.as_posix()
    return text.removeprefix("ollama:") if text.startswith("ollama:") else path.name.removesuffix(".gguf")


def _of_ollama(text: str) -> GivenModel:
    from trigraph.runtime.hub.ollama import OllamaName, find

    found = find(OllamaName.parse(text))
    return GivenModel(found.path, mmproj=found.projector)


def _downloaded(text: str) -> GivenModel:
    from trigraph.runtime.hub.download import download
    from trigraph.runtime.hub.repository import ModelName

    name = ModelName.parse(text)
    with progress_bars() as progress:
        found = download(name, progress)
    if found.notice is not None:
        say(f"note: {found.notice}")
    elsewhere = found.mtp is not None and found.mtp.parent != found.path.parent
    return GivenModel(found.path, found.mtp if elsewhere else None)
