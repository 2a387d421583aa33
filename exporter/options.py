"""The choices of an export, and whether a model can have them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trigraph.exporter.package.state_tensors import KV_TYPES
from trigraph.exporter.placement import MODES
from trigraph.models.config import ModelConfig
from trigraph.models.drafter.drafter import BlockDrafter
from trigraph.models.errors import TrigraphError

ACTIVATIONS = ("float32", "int8")


@dataclass(frozen=True)
class ExportOptions:
    """Choices of an export."""

    mtp: Path | None = None
    """A GGUF file with the MTP head, when the model's own file has none; one that is found beside it unless given."""
    mmproj: Path | None = None
    """A GGUF file with the model's vision tower; one that is found beside it unless given."""
    max_context: int | None = None
    """Most positions of a sequence; the model's context length unless given."""
    draft_vocab: int | None = None
    """Draft only token ids below this; DRAFT_VOCAB unless given."""
    kv_type: str = "f16"
    """"f16", "f32" or "q8_0"."""
    rope_scaling: str | None = None
    """Context extension: "yarn:FACTOR", or "none"; as the file says unless given."""
    activations: str | None = None
    """How block matrix products hold activations: "float32" or "int8"; the faster int8 unless given or portable."""
    weights: str = "link"
    """"link" the GGUF into the package, "copy" it, or "reference" it where it is, as "link" does, too, where the file
    system cannot link it; the manifest's `weights_folder` tells."""
    portable: bool = False
    """Whether graphs carry function bodies, for hosts without the operator library: of text, with one residual stream,
    float32 activations, and keys and values that are numbers."""
    draft_model: Path | None = None
    """A GGUF file with a block drafter (DFlash, DFlash2, DSpark), which drafts beside an MTP head if there is one."""

    @property
    def activation_kind(self) -> str:
        """The kind of activations that the graphs will have."""
        return "float32" if self.portable else self.activations or "int8"


def check_options(options: ExportOptions, config: ModelConfig, drafter: BlockDrafter | None) -> None:
    """Raises TrigraphError for options that the model, or another option, does not go with."""
    if options.portable:
        _check_portable(options, config)
    for name, value, known in (
        ("kv_type", options.kv_type, tuple(KV_TYPES)),
        ("activations", options.activation_kind, ACTIVATIONS),
        ("weights", options.weights, MODES),
    ):
        if value not in known:
            raise TrigraphError(f"{name} is {value!r}, expected one of {', '.join(known)}")
    if options.max_context is not None and not 1 <= options.max_context <= config.context_length:
        raise TrigraphError(
            f"max_context is {options.max_context}, expected 1 to {config.context_length}, the model's context length"
        )
    if options.draft_vocab is not None:
        if not config.mtp_layers and drafter is None:
            raise TrigraphError(
                f"draft_vocab is {options.draft_vocab}, but the model has no MTP head to draft with; leave it out"
            )
        if drafter is not None and drafter.tokens is not None:
            raise TrigraphError(
                f"draft_vocab is {options.draft_vocab}, but the drafter has a vocabulary of its own; leave it out"
            )
        least = 1 if drafter is None else drafter.config.candidates
        if not least <= options.draft_vocab <= config.vocab:
            raise TrigraphError(
                f"draft_vocab is {options.draft_vocab}, expected {least} to {config.vocab}, the size of the vocabulary"
            )


def _check_portable(options: ExportOptions, config: ModelConfig) -> None:
    """Raises TrigraphError for what has no function bodies."""
    for unusable, what in (
        (config.streams is not None, "the model has residual streams"),
        (options.kv_type == "q8_0", "kv_type is q8_0"),
        (options.mmproj is not None, "mmproj names a vision tower"),
        (options.draft_model is not None, "draft_model names a block drafter"),
    ):
        if unusable:
            raise TrigraphError(
                f"{what}: portable packages, which run without the operator library, have text alone, one residual "
                "stream, and keys and values of type f16 or f32; leave that out, or export without portable"
            )
