"""The commands that read and write model files: `trigraph export`, `inspect` and `synth`."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from trigraph.exporter import ExportOptions, describe, read_manifest
from trigraph.exporter import export as export_package
from trigraph.exporter.describe.description import Description, model_of
from trigraph.exporter.describe.parts import DrafterDescription
from trigraph.exporter.describe.picture import write_picture
from trigraph.exporter.package.reader import is_package
from trigraph.exporter.package.state_tensors import MAX_PENDING, PAGE_SIZE, state_tensors
from trigraph.models.drafter.config import is_drafter
from trigraph.models.drafter.drafter import open_drafter
from trigraph.models.drafter.geometries import DRAFTER_GEOMETRIES
from trigraph.models.errors import TrigraphError
from trigraph.models.geometries import GEOMETRIES
from trigraph.models.gguf_file import GGUFFile
from trigraph.models.model import open_model
from trigraph.models.synth import (
    DRAFTER_QUANTS,
    QUANTS,
    TOWER_QUANTS,
    write_synthetic,
    write_synthetic_drafter,
    write_synthetic_mmproj,
)
from trigraph.models.vision.geometries import VISION_GEOMETRIES
from trigraph.runtime.cli import arguments
from trigraph.runtime.cli.console import progress_bars, say
from trigraph.runtime.cli.naming import Hub, companions, given_model
from trigraph.runtime.cli.numbers import parse_sizes
from trigraph.runtime.device.choice import open_devices
from trigraph.runtime.device.device import Device
from trigraph.runtime.device.parts.placement import Placement
from trigraph.runtime.device.parts.placing import WORKING_BYTES, place
from trigraph.runtime.device.parts.token_time import token_time
from trigraph.runtime.device.parts.weights import weights_of_file
from trigraph.runtime.execution.threads import default_threads
from trigraph.runtime.state.sequence import StateLimits
from trigraph.runtime.state.sizes import Budgets

_SYNTHETIC = (*GEOMETRIES, *VISION_GEOMETRIES, *DRAFTER_GEOMETRIES)


def export(
    model: Annotated[
        Path | None,
        typer.Argument(metavar="MODEL", help="A GGUF file (of a split model the first), or USER/REPO:QUANT."),
    ] = None,
    *,
    out: Annotated[Path, typer.Option("-o", "--out", help="Folder to write the package to.")],
    hub: Hub = None,
    mtp: arguments.MTP = None,
    mmproj: arguments.MMProj = None,
    draft_model: arguments.DraftModel = None,
    max_context: Annotated[int | None, typer.Option(help="Largest context size (default: the model's)")] = None,
    draft_vocab: Annotated[int | None, typer.Option(help="Draft only token ids below this (default: 65536)")] = None,
    kv_type: arguments.KVType = None,
    rope_scaling: arguments.RopeScaling = None,
    activations: arguments.Activations = None,
    copy_weights: Annotated[
        bool, typer.Option("--copy-weights", help="Copy the GGUF file instead of hard-linking it.")
    ] = False,
    reference: Annotated[
        bool, typer.Option("--reference", help="Refer to the GGUF file where it is instead of hard-linking it.")
    ] = False,
    portable: Annotated[
        bool,
        typer.Option("--portable", help="Add function bodies, so that text runs without the library, slowly."),
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing package.")] = False,
) -> None:
    """Write the graphs of a GGUF file: prefill.onnx, draft.onnx, verify.onnx, and vision.onnx for a vision tower.

    Weights stay in the GGUF file.
    """
    if copy_weights and reference:
        raise TrigraphError("--copy-weights and --reference exclude each other")
    given = given_model(model, hub)
    model, files = given.path, companions(given, mtp, mmproj, draft_model)
    if is_package(model):
        raise TrigraphError(f"{model}: is a package already; run and serve take it as it is")
    weights = "copy" if copy_weights else "reference" if reference else "link"
    options = ExportOptions(
        **files._asdict(),
        max_context=max_context,
        draft_vocab=draft_vocab,
        kv_type=kv_type or "f16",
        rope_scaling=rope_scaling,
        activations=activations,
        weights=weights,
        portable=portable,
    )
    started = time.perf_counter()
    with progress_bars() as progress:
        manifest = export_package(model, out, options, progress, replace=force)
    for notice in manifest.notices:
        say(f"note: {notice}")
    if weights == "link" and manifest.weights_folder is not None:
        say(f"note: {model} cannot be hard-linked into {out}, which refers to it instead; or use --copy-weights")
    if not {"draft", "block"} & {*manifest.graphs}:
        say("note: the model has no MTP head; its drafts are n-grams alone")
    print(f"{out}: {', '.join(manifest.graphs)} in {time.perf_counter() - started:.1f} s")


def inspect(
    path: Annotated[
        Path | None, typer.Argument(metavar="MODEL", help="A package, a GGUF file, USER/REPO:QUANT, or ollama:NAME.")
    ] = None,
    hub: Hub = None,
    mmproj: arguments.MMProj = None,
    draft_model: arguments.DraftModel = None,
    context: Annotated[
        int | None,
        typer.Option(
            "-c",
            "--ctx-size",
            "--context",
            parser=arguments.parse_tokens,
            metavar="N",
            help="Context size, in tokens, to compute the KV memory for.",
        ),
    ] = None,
    graph: Annotated[
        Path | None, typer.Option(metavar="FILE.svg", help="Draw the graphs with their state and weights.")
    ] = None,
    gpu_memory: Annotated[
        str | None,
        typer.Option(
            metavar="BYTES",
            help="Say which weights a GPU holds that may take so much memory, such as 12G, or several GPUs: 10G,22G.",
        ),
    ] = None,
    as_json: arguments.AsJson = False,
) -> None:
    """Show what a GGUF file or a package contains, and the memory that each sequence takes."""
    given = given_model(path, hub)
    path = given.path
    if path.is_file() and is_drafter(GGUFFile.open(path)):
        options = {"mmproj": mmproj, "draft-model": draft_model, "graph": graph, "gpu-memory": gpu_memory}
        if unused := next((name for name, value in options.items() if value is not None), None):
            raise TrigraphError(f"{path}: is a block drafter; --{unused} is for its model, leave it out")
        _show(DrafterDescription.of(open_drafter(path)), as_json=as_json)
        return
    files = companions(given, None, mmproj, draft_model)
    description = describe(path, context or None, files.mmproj, files.draft_model)
    if graph is not None:
        write_picture(path, graph, context)
    if sizes := parse_sizes("--gpu-memory", gpu_memory):
        names = [f"cuda:{number}" for number in range(len(sizes))]
        placement, gpus = _placed(path, description, sizes), list[Device]()
        with suppress(TrigraphError):  # this machine need not have them
            gpus += open_devices(",".join(names))
        told = placement.sentence(names) + token_time(placement, gpus, default_threads())
        say(f"with --gpu-memory {gpu_memory}: {told}")
    _show(description, as_json=as_json)


def _show(description: Description | DrafterDescription, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(description.as_json(), ensure_ascii=False))
    else:
        from rich import print as rich_print

        rich_print(description)


def _placed(path: Path, description: Description, sizes: Sequence[int]) -> Placement:
    """What GPUs with such budgets hold that serve two sequences, of as many positions as `load` chooses."""
    model = model_of(path, read_manifest(path)) if path.is_dir() else open_model(path)
    drafter = None if description.drafter is None else description.drafter.config
    tensors = state_tensors(model.config, description.kv_type, drafter=drafter)
    working = len(sizes) * WORKING_BYTES
    budgets, free = Budgets(), max(0, sum(sizes) - weights_of_file(model).nbytes - working)
    context = budgets.context(tensors, description.context, PAGE_SIZE, free, at_once=True)
    limits = StateLimits(context, PAGE_SIZE, MAX_PENDING, model.config.residual, MAX_PENDING)
    state = budgets.sizes(tensors, limits, None).nbytes(tensors)
    return place(weights_of_file(model, state), sizes, speeds=[0] * len(sizes))


def synth(
    geometry: Annotated[
        str,
        typer.Argument(
            metavar="GEOMETRY", help=f"One of {', '.join(_SYNTHETIC)}.", autocompletion=lambda: list(_SYNTHETIC)
        ),
    ],
    out: Annotated[Path, typer.Argument(metavar="OUT.gguf", help="File to write.")],
    layers: Annotated[int | None, typer.Option(help="Layers of the model, without the MTP head (default: all)")] = None,
    vocab: Annotated[int | None, typer.Option(help="Vocabulary size (default: the model's)")] = None,
    experts: Annotated[int | None, typer.Option(help="Experts in each layer (default: the model's)")] = None,
    mtp: Annotated[bool, typer.Option("--mtp/--no-mtp", help="Whether the file holds an MTP head.")] = True,
    quant: Annotated[
        str | None,
        typer.Option(
            help=f"One of {', '.join(QUANTS)} (default: Q4_K_M); of mmproj files one of {', '.join(TOWER_QUANTS)}"
            f" (default: F16), of drafters one of {', '.join(DRAFTER_QUANTS)} (default: Q8_0).",
            autocompletion=lambda: list(QUANTS),
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed of the weights.")] = 0,
    skew: Annotated[
        float, typer.Option(help="Exponent of Zipf's law for the popularity of experts, 0 to 2 (0: all alike).")
    ] = 0.0,
    hollow: Annotated[
        bool,
        typer.Option("--hollow", help="Leave matrices out: holes in the file, which read as zeros and take no disk."),
    ] = False,
) -> None:
    """Write a GGUF file with random weights in the shapes and types of a published model."""
    with progress_bars() as progress:
        total = [0]

        def show(tensor: str, done: int, size: int) -> None:
            total[0] = size
            progress("write", done, size)

        if geometry in VISION_GEOMETRIES:
            if vocab is not None or experts is not None or not mtp or hollow:
                raise TrigraphError(
                    f"geometry {geometry} is a vision tower; leave --vocab, --experts, --no-mtp and --hollow out"
                )
            write_synthetic_mmproj(geometry, out, layers=layers, quant=quant or "F16", seed=seed, progress=show)
        elif geometry in DRAFTER_GEOMETRIES:
            if experts is not None or not mtp:
                raise TrigraphError(f"geometry {geometry} is a drafter; leave --experts and --no-mtp out")
            write_synthetic_drafter(
                geometry, out, layers=layers, vocab=vocab, quant=quant or "Q8_0",
                seed=seed, hollow=hollow, progress=show,
            )  # fmt: skip
        else:
            write_synthetic(
                geometry, out, layers=layers, vocab=vocab, experts=experts, mtp=mtp, quant=quant or "Q4_K_M",
                seed=seed, skew=skew, hollow=hollow, progress=show,
            )  # fmt: skip
    print(f"{out}: {total[0] / 1e9:.2f} GB of weights")
