"""The model that a command is given: a path, or a name that is downloaded."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from trigraph.models.errors import TrigraphError
from trigraph.runtime.cli.console import progress_bars, say

Model = Annotated[
    Path | None,
    typer.Argument(
        metavar="MODEL",
        help="A package, a GGUF file, or USER/REPO:QUANT. A file is exported to a cache on first use.",
        show_default=False,
    ),
]
Hub = Annotated[
    str | None,
    typer.Option("-hf", "--hf-repo", metavar="NAME", help="Download USER/REPO:QUANT from Hugging Face, once."),
]


def given_model(model: Path | None, hub: str | None) -> tuple[Path, Path | None]:
    """The path of the model, and that of its MTP head where that is elsewhere; what is named is downloaded first.

    Raises TrigraphError for both or neither, and for what cannot be downloaded.
    """
    if model is not None and hub is not None:
        raise TrigraphError(f"{model} and -hf {hub} both name a model; give one of them")
    if hub is None:
        if model is None:
            raise TrigraphError("name a model: MODEL.gguf, a package, or -hf USER/REPO:QUANT")
        if os.path.lexists(model) or (model.parent.name and model.parent.is_dir()):
            return model, None
        from trigraph.runtime.hub.repository import is_name

        if not is_name(hub := model.as_posix()):
            return model, None
    return _downloaded(hub)


def _downloaded(text: str) -> tuple[Path, Path | None]:
    from trigraph.runtime.hub.download import download
    from trigraph.runtime.hub.repository import ModelName

    name = ModelName.parse(text)
    with progress_bars() as progress:
        found = download(name, progress)
    if found.notice is not None:
        say(f"note: {found.notice}")
    elsewhere = found.mtp is not None and found.mtp.parent != found.path.parent
    return found.path, found.mtp if elsewhere else None
