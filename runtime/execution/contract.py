"""The graph contract from the host's side: a graph whose inputs and outputs are others is refused before it runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import onnxruntime as ort

from trigraph.exporter import Manifest
from trigraph.models.errors import TrigraphError, quote
from trigraph.models.vision.config import PATCH_INPUTS

Port: TypeAlias = tuple[str, tuple[int | str, ...]]
"""Element type and dimensions of an input or output; names are sizes that the host chooses."""


def check_contract(sessions: Sequence[ort.InferenceSession], path: Path, manifest: Manifest) -> None:
    """Raises TrigraphError when the graph in file `path` is not the one that the manifest describes.

    `sessions`: of the graph, or of its parts, which hand values to each other.
    """
    inputs, outputs = expected_ports(path.stem, manifest)
    taken = {arg.name: arg for session in sessions for arg in session.get_inputs()}
    made = {arg.name: arg for session in sessions for arg in session.get_outputs()}
    _compare(path, "input", [arg for arg in taken.values() if arg.name not in made], inputs)
    _compare(path, "output", [arg for arg in made.values() if arg.name not in taken], outputs)


def expected_ports(graph: str, manifest: Manifest) -> tuple[Mapping[str, Port], Mapping[str, Port]]:
    """Inputs and outputs of a graph of a package."""
    config, draft = manifest.config, graph in ("draft", "block")
    if graph == "vision":
        return _vision_ports(config.hidden)
    inputs: dict[str, Port] = {
        "input_ids": ("int64", ("T",)),
        "cu_seqlens": ("int32", ("S+1",)),
        "past_lens": ("int32", ("S",)),
        "page_table": ("int32", ("S", "P")),
    }
    if not draft:
        inputs |= dict.fromkeys(("accepted", "slots_in", "slots_out"), ("int32", ("S",)))
    block = manifest.drafter if graph == "block" else None
    if graph != "verify" and block is None:
        inputs["prev_hidden"] = ("float", ("T" if draft else "S", config.residual))
    if not draft and config.streams is not None and (ngrams := config.streams.ngrams) is not None:
        inputs["previous_ids"] = ("int64", ("S", ngrams.size - 1))
    if any(tensor.ring for tensor in manifest.state if graph in tensor.graphs):
        inputs["ring_table"] = ("int32", ("S", "Q"))
    if manifest.images is not None:
        inputs["positions"] = ("int32", (3, "T"))
        if draft and block is None:
            inputs["last_positions"] = ("int32", (3, "S"))
        if graph == "prefill":
            inputs |= {"image_rows": ("float", ("I", config.hidden)), "image_places": ("int64", ("I", 1))}
    rows = "T" if graph == "verify" else "S"
    outputs: dict[str, Port] = {"tokens": ("int64", (rows,)), "hidden": ("float", (rows, config.residual))}
    if block is not None:
        outputs = {
            "candidates": ("int64", ("T", block.candidates)),
            "edges": ("float", ("T", block.predecessors, block.candidates)),
        }
    elif draft:
        outputs["probability"] = ("float", (rows,))
        outputs["logits"] = ("float", (rows, manifest.draft_vocab or config.vocab))
    else:
        outputs["logits"] = ("float", (rows, config.vocab))
    for tensor in manifest.state:
        if graph in tensor.graphs:
            port = ("float" if tensor.dtype == "float32" else tensor.dtype, tensor.dims)
            inputs[f"past.{tensor.name}"] = outputs[f"present.{tensor.name}"] = port
    return inputs, outputs


def _vision_ports(hidden: int) -> tuple[Mapping[str, Port], Mapping[str, Port]]:
    inputs: dict[str, Port] = {
        "patches": ("float", ("N", PATCH_INPUTS)),
        "places": ("int32", (2, "N")),
        "table_rows": ("int32", (4, "N")),
        "table_weights": ("float", (4, "N")),
        "cu_seqlens": ("int32", ("images+1",)),
    }
    return inputs, {"embeddings": ("float", ("N/4", hidden))}


def _compare(path: Path, side: str, found: Sequence[ort.NodeArg], expected: Mapping[str, Port]) -> None:
    ports = {arg.name: (arg.type.removeprefix("tensor(").removesuffix(")"), tuple(arg.shape)) for arg in found}
    for name in {**expected, **ports}:
        there, wanted = ports.get(name), expected.get(name)
        if there != wanted:
            raise TrigraphError(
                f"{path}: {side} {quote(name)} is {_describe(there)}, the contract has {_describe(wanted)}; "
                "export the package again"
            )


def _describe(port: Port | None) -> str:
    return "absent" if port is None else f"{port[0]} [{', '.join(map(str, port[1]))}]"
