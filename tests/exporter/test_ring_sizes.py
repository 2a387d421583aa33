"""How large the rings of a published block drafter are."""

from dataclasses import replace
from typing import Any

from trigraph.exporter.package.state_tensors import state_tensors
from trigraph.models import open_model
from trigraph.models.drafter.geometries import DRAFTER_GEOMETRIES


def test_rings_are_as_small_as_rounds_let_them_be(synthetic: Any) -> None:
    """More rows in a verify take more; windows too wide for a checkpoint have pages."""
    model, drafter = open_model(synthetic("tiny-dense", "F32")).config, DRAFTER_GEOMETRIES["dflash2-qwen3.8-27b"][1]
    for window, pending, rows in (
        (2048, 8, ("slots", 2112)),
        (2048, 65, ("slots", 2112)),
        (2048, 66, ("slots", 2176)),
        (1, 8, ("slots", 64)),
        (4096, 8, ("slots", 4160)),
        (4097, 8, ("pages", 64)),
    ):
        found = state_tensors(model, "f16", pending, replace(drafter, window=window))
        own = [tensor for tensor in found if tensor.name.startswith("draft.")]
        assert {tensor.dims for tensor in own} == {(*rows, 8, 128)} and len(own) == 2 * drafter.layers
        assert sum(tensor.item_bytes for tensor in own) == 20480 * rows[1]
        assert {tensor.ring for tensor in found} == {0, rows[1]} if rows[0] == "slots" else {0}
