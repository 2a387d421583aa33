"""Packages of small models, made once a test run."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.models.drafters import drafter_of
from trigraph.exporter import ExportOptions, export

Make = Callable[[str, str], Path]
FILES = {"prefill.onnx", "draft.onnx", "verify.onnx", "manifest.json", "tokenizer.json"}
"""Of a package whose model has no chat template, but for its weights."""


class Packages:
    """`packages("tiny-moe", "F32")` -> folder; the trained model is ("trained", "Q8_0").

    `drafter="dflash2"` adds a random block drafter of that kind: see `drafter_of`.
    """

    def __init__(self, folder: Path, trained: Path, synthetic: Make) -> None:
        self._folder = folder
        self._trained = trained
        self._synthetic = synthetic

    def __call__(self, geometry: str, quant: str, **options: Any) -> Path:
        """The package's folder, exported at the first call with these arguments."""
        out = self._folder / "-".join((geometry, quant, *(Path(str(value)).name for value in options.values())))
        if not out.exists():
            source = self._trained if geometry == "trained" else self._synthetic(geometry, quant)
            if (kind := options.pop("drafter", None)) is not None:
                options["draft_model"] = drafter_of(
                    source, self._folder / f"dflash-{geometry}-{quant}-{kind}.gguf", kind
                )
            export(source, out, ExportOptions(weights="reference", **options))
        return out


def names(folder: Path) -> set[str]:
    """Of what a folder holds."""
    return {path.name for path in folder.iterdir()}
