"""Names of models as users write them, and the files of a repository that each one means."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from trigraph.models.errors import TrigraphError

_NAME = re.compile(
    r"(?:(?:https?:/{1,2})?(?:www\.)?(?:hf\.co|huggingface\.co)/|hf:/{1,2})?"
    r"(?P<repository>[\w-][\w.-]{0,95}/[\w-][\w.-]{0,95})(?::(?P<quant>[\w.-]+))?/?",
    re.ASCII,
)
_LINK = re.compile(  # as the site's pages and their download buttons give it
    r"(?:https?:/{1,2})?(?:www\.)?(?:hf\.co|huggingface\.co)/(?P<repository>[\w-][\w.-]{0,95}/[\w-][\w.-]{0,95})"
    r"/(?:blob|resolve|tree)/[^/?#]+(?:/(?P<path>[^?#]*))?(?:[?#].*)?",
    re.ASCII,
)
_OLLAMA = re.compile(r"(?P<model>[a-z][\w.-]*):(?P<size>[\w.-]+)", re.ASCII)
_PART = re.compile(r"-(\d{5})-of-(\d{5})$")
_QUANT = re.compile(r"(?:^|[-._/])((?:UD-)?(?:I?Q\d\w*|T?Q\d\w*|MXFP4\w*|NVFP4\w*|BF16|F16|F32))$", re.IGNORECASE)
# Where none is named.
_PREFERRED = ("Q4_K_M", "UD-Q4_K_M", "UD-Q4_K_XL", "Q4_K_XL", "Q4_K_L", "Q4_K_S", "Q4_0", "Q5_K_M", "Q8_0")
DRAFTERS = ("dflash", "dspark")
"""How names of files begin that have a block drafter beside its model."""
_DRAFTER_PREFIXES = tuple(f"{kind}-" for kind in DRAFTERS)
_PROJECTORS = ("f16", "bf16", "f32")


@dataclass(frozen=True)
class ModelName:
    """A repository, and the quantisation or file in it; None leaves the choice to us."""

    repository: str
    quant: str | None = None

    def __str__(self) -> str:
        return self.repository if self.quant is None else f"{self.repository}:{self.quant}"

    @classmethod
    def parse(cls, text: str) -> ModelName:
        """`user/repo` or `user/repo:QUANT`, also with the address of the site before it. Raises TrigraphError."""
        if match := _NAME.fullmatch(text):
            return cls(match["repository"], match["quant"])
        if match := _LINK.fullmatch(text):
            file = (match["path"] or "").rpartition("/")[2]
            return cls(match["repository"], file if file.endswith(".gguf") else None)
        if text.startswith("ollama:"):
            raise TrigraphError(
                f"{text}: is a model of Ollama's, not of a hub; 'ollama pull {text.removeprefix('ollama:')}' downloads "
                f"it, and 'trigraph run {text}' runs it"
            )
        if match := _OLLAMA.fullmatch(text):
            repository = f"unsloth/{match['model'].capitalize()}-{match['size'].upper()}-GGUF:Q4_K_M"
            raise TrigraphError(
                f"{text}: this is a name of Ollama's; write ollama:{text} if Ollama has pulled it, or give a "
                f"repository of GGUF files, such as {repository}"
            )
        raise TrigraphError(f"{text}: write USER/REPO or USER/REPO:QUANT, such as unsloth/Qwen3.6-27B-MTP-GGUF:Q4_K_M")


def is_name(text: str) -> bool:
    """Whether a text that is no path may be the name of a model."""
    if _LINK.fullmatch(text):
        return True
    return not text.endswith(".gguf") and bool(_NAME.fullmatch(text) or _OLLAMA.fullmatch(text))


@dataclass(frozen=True)
class ModelFiles:
    """Files of a repository: the parts of a model, and what belongs to it."""

    parts: tuple[str, ...]
    mtp: str | None = None
    projector: str | None = None

    @property
    def all(self) -> tuple[str, ...]:
        """Every file, the model's first."""
        return (*self.parts, *(name for name in (self.mtp, self.projector) if name is not None))


def choose_files(name: ModelName, files: Sequence[str]) -> ModelFiles:
    """The files that `name` means, of those in its repository. Raises TrigraphError where none or several fit."""
    named = _gguf_files(name, files)
    beside = ("mtp-", "imatrix", *_DRAFTER_PREFIXES)
    models = _grouped([file for file in named if not (_is_projector(file) or _base(file).startswith(beside))])
    chosen = _chosen(name, models)
    quant = _quant(chosen)
    heads = [file for file in named if _base(file).startswith("mtp-") and not _PART.search(_stem(file))]
    projectors = [file for file in named if _is_projector(file)]
    return ModelFiles(models[chosen], _first(heads, quant, "q8_0"), _first(projectors, *_PROJECTORS))


def choose_drafter(name: ModelName, files: Sequence[str], kind: str | None = None) -> ModelFiles:
    """The block drafter that `name` means, of the files in its repository.

    With a `kind`, the one beside the model of that name; otherwise the repository is a drafter's own, unless it has
    files that are called drafters. Raises TrigraphError where none or several fit.
    """
    named = _gguf_files(name, files)
    if kind is None:
        called = [file for file in named if _base(file).startswith(_DRAFTER_PREFIXES)]
        models = _grouped(called or [file for file in named if not _is_projector(file)])
        return ModelFiles(models[_chosen(name, models)])
    beside = [file for file in named if _base(file).startswith(f"{kind}-") and not _PART.search(_stem(file))]
    found = _first(beside, None if name.quant is None else name.quant.lower(), "q8_0")
    if found is None:
        raise TrigraphError(f"{name.repository}: has no {kind}-*.gguf; give the file or the repository of a drafter")
    return ModelFiles((found,))


def _gguf_files(name: ModelName, files: Sequence[str]) -> list[str]:
    named = sorted(file for file in files if file.endswith(".gguf"))
    if not named:
        model = name.repository.partition("/")[2]
        raise TrigraphError(
            f"{name.repository}: has no GGUF files; look for a repository that has them, such as unsloth/{model}-GGUF"
        )
    return named


def _first(files: Sequence[str], *quants: str | None) -> str | None:
    """The file with the first of these quantisations that there is, or else any."""
    for quant in quants:
        for file in files:
            if _quant(_stem(file)) == quant:
                return file
    return next(iter(files), None)


def _chosen(name: ModelName, models: dict[str, tuple[str, ...]]) -> str:
    """The stem of the model that is meant."""
    if name.quant is not None:
        wanted = name.quant.lower().removesuffix(".gguf")
        for stem in sorted(models, key=len):  # Q4_K_M before UD-Q4_K_M
            lowered = stem.lower()
            if lowered == wanted or re.search(rf"(^|[-._/]){re.escape(wanted)}$", lowered):
                return stem
        raise TrigraphError(f"{name}: the repository has no {name.quant}; it has {_listed(models) or 'no model file'}")
    for quant in _PREFERRED:
        for stem in models:
            if _quant(stem) == quant.lower():
                return stem
    if len(models) == 1:
        return next(iter(models))
    if not models:
        raise TrigraphError(f"{name}: the repository has no model file")
    raise TrigraphError(f"{name}: name one of {_listed(models)}, such as {name}:{_label(next(iter(models)))}")


def _grouped(files: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The parts of each model, by its path without number and suffix."""
    groups: dict[str, list[str]] = {}
    for file in files:
        groups.setdefault(_PART.sub("", _stem(file)), []).append(file)
    return {stem: tuple(parts) for stem, parts in groups.items()}


def _listed(models: dict[str, tuple[str, ...]]) -> str:
    return ", ".join(sorted({_label(stem) for stem in models}))


def _label(stem: str) -> str:
    match = _QUANT.search(stem)
    return match[1] if match else _base(stem)


def _quant(stem: str) -> str | None:
    match = _QUANT.search(stem)
    return match[1].lower() if match else None


def _is_projector(file: str) -> bool:
    """Whether it is named as llama.cpp does: `mmproj-F16.gguf`, or `NAME.mmproj-f16.gguf`."""
    return bool(re.search(r"(^|[-._])mmproj([-._]|$)", _stem(_base(file))))


def _stem(file: str) -> str:
    return file.removesuffix(".gguf")


def _base(file: str) -> str:
    return PurePosixPath(file).name
