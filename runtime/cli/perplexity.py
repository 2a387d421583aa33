"""The command `trigraph perplexity`: how good a model is."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from trigraph.exporter import ExportOptions
from trigraph.models.errors import TrigraphError, file_errors
from trigraph.runtime import Engine, EngineConfig, load
from trigraph.runtime.bench.perplexity import PARALLEL, score
from trigraph.runtime.bench.saved_logits import SavedLogits
from trigraph.runtime.cli import arguments
from trigraph.runtime.cli.arguments import export_options, read_text
from trigraph.runtime.cli.console import progress_bars
from trigraph.runtime.cli.naming import Hub, Model, given_model

_FLOAT32 = "float32"
_CONTEXT = 512


File = Annotated[Path | None, typer.Option("-f", "--file", help="Text to predict; - reads stdin.")]
Context = Annotated[
    int | None,
    typer.Option(
        "-c",
        "--ctx-size",
        parser=arguments.parse_tokens,
        metavar="N",
        help=f"Window size in tokens (default: {_CONTEXT})",
    ),
]
Chunks = Annotated[int | None, typer.Option(help="Maximum number of windows to compute (default: the whole text)")]
Against = Annotated[
    str | None,
    typer.Option(
        metavar="float32|MODEL|LOGITS",
        help="Compare with float32 activations, another model, or a file of logits, which replaces --file.",
    ),
]
SaveLogits = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Save the logits, for --against or llama.cpp's --kl-divergence-base."),
]


def perplexity(
    model: Model = None,
    *,
    hub: Hub = None,
    file: File = None,
    context: Context = None,
    chunks: Chunks = None,
    kv_type: arguments.KVType = None,
    rope_scaling: arguments.RopeScaling = None,
    activations: arguments.Activations = None,
    against: Against = None,
    save_logits: SaveLogits = None,
    threads: arguments.Threads = None,
    device: arguments.Device = "cpu",
    repack: arguments.Repack = "auto",
    as_json: arguments.AsJson = False,
) -> None:
    """Measure how well a model predicts a text. As in llama.cpp, the second half of each window counts."""
    for name, value in (("--ctx-size", context), ("--chunks", chunks)):
        if value is not None and value < 1:
            raise TrigraphError(f"{name} is {value}; it must be 1 or more")
    saved = _saved(against)
    text, size = _text(file, context, saved)
    given = given_model(model, hub)
    config = EngineConfig(
        threads=threads, context=size, device=device, repack=repack, sequences=PARALLEL, speculation=False
    )
    opened = partial(_opened, config)
    exported = partial(export_options, given.path, mtp=given.mtp, kv_type=kv_type, rope_scaling=rope_scaling)
    engine = opened(given.path, exported(activations=activations))
    reference: Engine | SavedLogits | None = saved
    if against == _FLOAT32:
        reference = opened(given.path, exported(activations=_FLOAT32))
    elif against is not None and saved is None:
        reference = opened(Path(against), ExportOptions())
    with Console(stderr=True).status("") as status:
        result = score(
            engine,
            text,
            size,
            chunks,
            reference,
            save_logits,
            lambda done, total, value: status.update(f"{done} of {total} windows, perplexity {value:.4f}"),
        )
    if as_json:
        print(json.dumps(result.as_json()))
    else:
        print("\n".join(result.lines()))


def _saved(against: str | None) -> SavedLogits | None:
    """The file of logits to compare with; None where it is a model, or nothing."""
    path = Path(against or "")
    if against == _FLOAT32 or not path.is_file():
        return None
    with file_errors(path), path.open("rb") as file:
        is_model = file.read(4) == b"GGUF"
    return None if is_model else SavedLogits(path)


def _text(file: Path | None, context: int | None, saved: SavedLogits | None) -> tuple[str | None, int]:
    """The text to predict, and the tokens of a window: those of saved logits are in their file."""
    if saved is None:
        if file is None:
            raise TrigraphError("Missing option --file: name a text to predict; - reads stdin")
        return read_text(None if str(file) == "-" else file), _CONTEXT if context is None else context
    if file is not None:
        raise TrigraphError(f"--file {file}: the tokens come with the logits that --against names; leave --file out")
    if context not in (None, saved.context):
        raise TrigraphError(f"--ctx-size is {context}, but the logits that --against names have {saved.context}")
    return None, saved.context


def _opened(config: EngineConfig, path: Path, exported: ExportOptions) -> Engine:
    """A model to be scored."""
    with progress_bars() as progress:
        return load(path, config, options=exported, progress=progress)
