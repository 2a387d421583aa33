"""What a model has beside its own weights: a vision tower, a block drafter."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trigraph.exporter.describe.words import printable, readable_size
from trigraph.models.drafter.config import ARCHITECTURE, KIND_NAMES, BlockDrafterConfig
from trigraph.models.drafter.drafter import BlockDrafter
from trigraph.models.vision.config import VisionConfig
from trigraph.models.vision.tower import Tower

# What imports rich waits for a description to be shown: a run shows none.
if TYPE_CHECKING:
    from rich.console import RenderableType


@dataclass(frozen=True)
class TowerDescription:
    """A vision tower in summary."""

    path: str
    config: VisionConfig
    parameters: int
    bytes: int

    @classmethod
    def of(cls, tower: Tower) -> TowerDescription:
        """The description of an open tower."""
        size = sum(tensor.nbytes for tensor in tower.tensors.values())
        return cls(str(tower.file.paths[0]), tower.config, tower.parameters, size)

    def __str__(self) -> str:
        c, millions = self.config, round(self.parameters / 1e6)
        shape = f"{c.layers} layers of width {c.width}, {c.heads} heads of {c.head_dim}, feed-forward {c.ffn}"
        return f"{shape}; {millions} M parameters, {readable_size(self.bytes)}"


@dataclass(frozen=True)
class DrafterDescription:
    """A block drafter in summary."""

    path: str
    config: BlockDrafterConfig
    parameters: int
    bytes: int

    @classmethod
    def of(cls, drafter: BlockDrafter) -> DrafterDescription:
        """The description of an open drafter."""
        size = sum(tensor.nbytes for tensor in drafter.tensors.values())
        return cls(str(drafter.file.paths[0]), drafter.config, drafter.parameters, size)

    def as_json(self) -> dict[str, Any]:
        """The description in JSON's types."""
        return dataclasses.asdict(self)

    def __rich__(self) -> RenderableType:
        from rich.table import Table
        from rich.text import Text

        title = Text(f"{printable(self.config.name)} ({ARCHITECTURE})", style="table.title")
        table = Table(title=title, show_header=False)
        for name, value in (("file", printable(self.path)), *self.rows()):
            table.add_row(name, Text(value))
        return table

    def rows(self) -> list[tuple[str, str]]:
        """Lines of a table."""
        c, millions = self.config, round(self.parameters / 1e6)
        drafts = f"{KIND_NAMES[c.kind]}, up to {c.most_drafts} tokens at once, among {c.candidates} candidates each"
        layers = f"{c.layers} layers of width {c.hidden}, {c.heads} heads of {c.head_dim}, feed-forward {c.ffn}"
        window = f", {sum(c.sliding)} of them see {c.window} positions" if c.window else ""
        taps = f"what enters layers {', '.join(map(str, c.taps))} of the model"
        return [
            ("block drafter", drafts),
            ("", f"{layers}{window}; {millions} M parameters, {readable_size(self.bytes)}"),
            ("reads", taps),
        ]
