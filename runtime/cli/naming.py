"""The model that a command is given: a path, or a name that is downloaded or found."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trigraph.models.errors import TrigraphError
from trigraph.runtime.cli.console import progress_bars, say
from trigraph.runtime.hub.given import Companions, GivenModel, downloaded, located

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


def given_model(model: Path | None, hub: str | None) -> GivenModel:
    """The files of the model that is given; what is named is downloaded first, or found in Ollama's folder.

    Raises TrigraphError for both or neither, and for what cannot be downloaded or found.
    """
    if model is not None and hub is not None:
        raise TrigraphError(f"{model} and -hf {hub} both name a model; give one of them")
    with progress_bars() as progress:
        if hub is not None:
            found = downloaded(hub, progress)
        elif model is not None:
            found = located(model, progress)
        else:
            raise TrigraphError("name a model: MODEL.gguf, a package, or -hf USER/REPO:QUANT")
    if found.notice is not None:
        say(f"note: {found.notice}")
    return found


def companions(given: GivenModel, mtp: Path | None, mmproj: Path | None, drafter: Path | None) -> Companions:
    """What belongs to a model, downloaded first where it is named. Raises TrigraphError."""
    with progress_bars() as progress:
        return given.companions(mtp, mmproj, drafter, progress)


def public_name(given: Path | None, path: Path) -> str:
    """What clients call a model: the name of its file, or that which it was given by where the file's tells nothing."""
    text = "" if given is None else given.as_posix()
    return text.removeprefix("ollama:") if text.startswith("ollama:") else path.name.removesuffix(".gguf")
