"""Where a model is: a path as it is, or a name, whose files are downloaded first, or found in Ollama's folder."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from trigraph.models.errors import TrigraphError
from trigraph.models.progress import Progress, silent
from trigraph.models.tiny import TINY_GGUF


@dataclass(frozen=True)
class GivenModel:
    """The files of a model."""

    path: Path
    mtp: Path | None = None
    """Its MTP head, where that is elsewhere."""
    mmproj: Path | None = None
    """Its vision tower, where that cannot be found beside it."""
    notice: str | None = None
    """What the user should know of it."""
    repository: str | None = None
    """The name that it was downloaded by."""

    def companions(
        self, mtp: Path | None, mmproj: Path | None, drafter: Path | None, progress: Progress = silent
    ) -> Companions:
        """What belongs to it: files that are given, or else its own.

        `drafter` is a path, USER/REPO:QUANT, or a kind in DRAFTERS, for the first file of that kind beside the model.
        Raises TrigraphError for what cannot be downloaded or found.
        """
        if drafter is not None and not os.path.lexists(drafter):
            drafter = self._drafter(drafter, progress)
        return Companions(mtp or self.mtp, mmproj or self.mmproj, drafter)

    def _drafter(self, given: Path, progress: Progress) -> Path:
        from trigraph.runtime.hub.download import download_drafter
        from trigraph.runtime.hub.repository import DRAFTERS, ModelName, is_name

        text = given.as_posix()
        if text not in DRAFTERS:
            return download_drafter(ModelName.parse(text), None, progress) if is_name(text) else given
        if self.repository is not None:
            return download_drafter(ModelName.parse(self.repository), text, progress)
        beside = sorted(self.path.parent.glob(f"{text}-*.gguf"))
        if not beside:
            raise TrigraphError(f"no {text}-*.gguf is beside {self.path}; give the file or the repository of a drafter")
        return beside[0]


class Companions(NamedTuple):
    """Files that belong to a model."""

    mtp: Path | None
    mmproj: Path | None
    draft_model: Path | None


def located(model: Path, progress: Progress = silent) -> GivenModel:
    """The files that a path or a name means: USER/REPO:QUANT, ollama:NAME, or tiny.

    Raises TrigraphError for what cannot be downloaded or found.
    """
    if model.is_symlink() and not os.path.exists(model):
        raise TrigraphError(f"{model}: is a link to a file that is not there")
    if os.path.lexists(model) or (model.parent.name and model.parent.is_dir()):
        return GivenModel(model)
    if (name := model.as_posix()).startswith("ollama:"):
        return _of_ollama(name)
    if name == "tiny":
        return GivenModel(TINY_GGUF)
    from trigraph.runtime.hub.repository import is_name

    return downloaded(name, progress) if is_name(name) else GivenModel(model)


def downloaded(text: str, progress: Progress = silent) -> GivenModel:
    """The files of USER/REPO:QUANT. Raises TrigraphError."""
    from trigraph.runtime.hub.download import download
    from trigraph.runtime.hub.repository import ModelName

    found = download(ModelName.parse(text), progress)
    elsewhere = found.mtp is not None and found.mtp.parent != found.path.parent
    return GivenModel(found.path, found.mtp if elsewhere else None, notice=found.notice, repository=text)


def _of_ollama(text: str) -> GivenModel:
    from trigraph.runtime.hub.ollama import OllamaName, find

    found = find(OllamaName.parse(text))
    return GivenModel(found.path, mmproj=found.projector)
