"""What users give in the place of a model file, and what they should give."""

from __future__ import annotations

import os
import re
from pathlib import Path

from trigraph.models.errors import TrigraphError

_URL = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]+):/+(?P<rest>.*)")  # a Path has one slash of the two
_HUB = re.compile(r"(?:(?:www\.)?(?:hf\.co|huggingface\.co)/|hf://)(?P<repository>[\w.-]+/[\w.-]+)")
_HUB_NAME = re.compile(r"(?P<repository>[\w.-]+/[\w.-]+)(?::[\w.-]+)?")
_BESIDE = ("mmproj", "mtp-", "dflash-", "dspark-", "imatrix")
"""How files that belong to a model begin."""


def wrong_path(path: Path, found: str) -> TrigraphError:
    """The error for a path that is no model file; `found` says what is wrong when nothing better can be said."""
    text = path.as_posix()
    if not os.path.exists(path):
        if url := _URL.fullmatch(text):
            text = f"{url['scheme']}://{url['rest']}"
        if repository := _repository(text):
            return TrigraphError(
                f"{text}: is on Hugging Face; download a file first ('hf download {repository} --include "
                f'"*Q4_K_M*.gguf" --local-dir .\'), then give its path'
            )
        if url and url["scheme"] == "file":
            return TrigraphError(f"{text}: is a URL; give the path without 'file://'")
        if url:
            return TrigraphError(f"{text}: is a URL; download the file first, then give its path")
        if "/" not in text and not text.endswith(".gguf"):
            return TrigraphError(f"{text}: there is no such file; by name, models are USER/REPO:QUANT or ollama:NAME")
    elif os.path.isdir(path):
        if models := sorted(path.glob("*.gguf"), key=lambda file: (file.name.startswith(_BESIDE), file.name)):
            return TrigraphError(f"{path}: is a folder of GGUF files; give one of them, such as {models[0]}")
        if next(path.glob("*.safetensors"), None):
            return TrigraphError(f"{path}: holds a model in safetensors files; give a GGUF file of it")
    return TrigraphError(f"{path}: {found}")


def _repository(text: str) -> str | None:
    """The repository on Hugging Face that a text names, if it does."""
    match = _HUB.match(text.removeprefix("https://").removeprefix("http://"))
    if match is None and "gguf" in text.lower() and not text.endswith(".gguf"):
        match = _HUB_NAME.fullmatch(text)  # as llama.cpp's -hf takes it
    return match and match["repository"]
