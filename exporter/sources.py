"""The files that a package is made of, opened and checked."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from trigraph.exporter.options import ExportOptions, check_options
from trigraph.models.drafter.drafter import BlockDrafter, open_drafter
from trigraph.models.errors import TrigraphError
from trigraph.models.keys import MAX_SIZE
from trigraph.models.model import Model, companion, open_model
from trigraph.models.rope_scaling import parse_rope_scaling
from trigraph.models.vision.tower import Tower, find_tower, open_tower


@dataclass(frozen=True)
class Sources:
    """What a package is made of."""

    model: Model
    tower: Tower | None
    drafter: BlockDrafter | None
    unusable: tuple[str, ...]
    """Why what might be a tower is none."""

    @property
    def parts(self) -> tuple[Tower | BlockDrafter, ...]:
        """What has tensors beside the model."""
        return tuple(part for part in (self.tower, self.drafter) if part is not None)

    @property
    def drafts(self) -> bool:
        """Whether the package has an MTP head or a block drafter."""
        return self.model.config.mtp_layers > 0 or self.drafter is not None

    @property
    def weight_files(self) -> dict[Path, int]:
        """Every file of the model and its parts, and the size of its header."""
        model = self.model
        files = [model.file, *([model.mtp_file] if model.mtp_file else []), *(part.file for part in self.parts)]
        return {path: size for file in files for path, size in file.header_bytes.items()}

    @classmethod
    def open(cls, source: Path, options: ExportOptions) -> Sources:
        """Open and check every file."""
        model = _extended(open_model(source, options.mtp or companion(source)), options.rope_scaling)
        drafter = None if options.draft_model is None else open_drafter(options.draft_model, model.config)
        check_options(options, model.config, drafter)
        tower, unusable = _tower(model, options)
        return cls(model, tower, drafter, unusable)


def _tower(model: Model, options: ExportOptions) -> tuple[Tower | None, tuple[str, ...]]:
    """The model's vision tower, and why what might be one is none."""
    if options.mmproj is not None:
        return open_tower(options.mmproj, model.config), ()
    tower, reasons = find_tower(model)
    if options.portable and tower is not None:
        tower, reasons = None, ("portable packages are for text alone",)
    return tower, tuple(f"images cannot be read: {reason}" for reason in reasons)


def _extended(model: Model, rope_scaling: str | None) -> Model:
    """The model with the context that its own scaling, or the one that is asked for, extends it to."""
    config, own = model.config, model.config.rope_scaling
    trained = config.context_length if own is None else own.original_context
    scaling = own if rope_scaling is None else parse_rope_scaling(rope_scaling, trained)
    length = min(config.context_length, trained)
    if scaling is not None:
        scaling.ramp(config.rope_dims, config.rope_theta)
        extended = int(trained * scaling.factor)
        length = max(config.context_length, extended) if rope_scaling is None else extended
    if length > MAX_SIZE:
        raise TrigraphError(f"the scaling of positions extends the context to {length} tokens, above {MAX_SIZE}")
    return dataclasses.replace(model, config=dataclasses.replace(config, rope_scaling=scaling, context_length=length))
