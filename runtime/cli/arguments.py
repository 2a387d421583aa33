"""Arguments and options of the commands.

A dataclass is a panel of `--help`, and a parameter of a command that `grouped` decorates.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, ClassVar, TypedDict, Unpack

import typer

from trigraph.exporter.options import ACTIVATIONS, ExportOptions
from trigraph.exporter.package.state_tensors import KV_TYPES
from trigraph.models.errors import TrigraphError, file_errors, quote
from trigraph.runtime.cli.naming import Hub, Model, companions, given_model
from trigraph.runtime.device.choice import DEVICES, EXPERTS
from trigraph.runtime.engine.config import REPACK
from trigraph.runtime.sampling.constraint import Constraint, Grammar, JsonSchema, Regex

_COUNT = re.compile(r"(\d{1,10})([km]?)", re.ASCII | re.IGNORECASE)


def parse_tokens(text: str | int) -> int:
    """A number of tokens; 32k is 32768. Raises BadParameter for anything else."""
    match = _COUNT.fullmatch(str(text))
    if match is None:
        raise typer.BadParameter(f"{quote(text)} is not a number of tokens, such as 4096 or 32k")
    return int(match[1]) << 10 * " km".index(match[2].lower() or " ")


Context = Annotated[
    int | None,
    typer.Option(
        "-c",
        "--ctx-size",
        parser=parse_tokens,
        metavar="N",
        help="Context size in tokens, such as 64k; 0: the model's (default: that, as far as memory allows)",
    ),
]
Threads = Annotated[
    int | None, typer.Option("-t", "--threads", help="CPU threads (default: the physical cores; one for a small model)")
]
Device = Annotated[
    str,
    typer.Option(
        "--device",
        help="Device: cpu, cuda (or GPUs: cuda:1, or cuda:0,cuda:1), auto (cuda if usable), or webgpu.",
        autocompletion=lambda: list(DEVICES),
    ),
]
Activations = Annotated[
    str | None,
    typer.Option(
        help="Type of activations multiplied with quantised weights: float32, or int8, which is faster (default: int8)",
        autocompletion=lambda: list(ACTIVATIONS),
    ),
]
KVType = Annotated[
    str | None,
    typer.Option(
        help="Type of keys and values: f16, f32, or q8_0, which takes about half the memory (default: f16)",
        autocompletion=lambda: list(KV_TYPES),
    ),
]
RopeScaling = Annotated[
    str | None,
    typer.Option(metavar="yarn:FACTOR|none", help="Extend the context by YaRN: yarn:4 to 4 times (default: file's)"),
]
Repack = Annotated[
    str,
    typer.Option(
        metavar="|".join(REPACK),
        help="On x86, copy Q4_K to Q6_K, IQ3 and IQ2 weights to a faster layout: in the background if memory allows, "
        "at loading, never.",
    ),
]
MTP = Annotated[Path | None, typer.Option(help="GGUF file with the MTP head; an mtp-*.gguf beside the model is found.")]
MMProj = Annotated[Path | None, typer.Option(help="Vision tower (GGUF); an mmproj-*.gguf beside the model is found.")]
DraftModel = Annotated[
    Path | None,
    typer.Option(
        "-md",
        "--draft-model",
        metavar="FILE|NAME",
        help="Block drafter beside the MTP head: a GGUF file, USER/REPO:QUANT, or dflash or dspark for the file "
        "of that kind beside the model.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]


@dataclass(frozen=True)
class ModelArguments:
    """The model, its device and its memory."""

    panel: ClassVar = "Model"
    common: ClassVar = ("hub", "context", "device", "threads")

    model: Model = None
    hub: Hub = None
    context: Context = None
    threads: Threads = None
    mtp: MTP = None
    mmproj: MMProj = None
    draft_model: DraftModel = None
    kv_type: KVType = None
    rope_scaling: RopeScaling = None
    device: Device = "cpu"
    experts: Annotated[
        str,
        typer.Option(
            help="With a GPU, device of the routed experts: gpu or cpu.", autocompletion=lambda: list(EXPERTS)
        ),
    ] = "gpu"
    gpu_memory: Annotated[
        str | None,
        typer.Option(
            metavar="BYTES",
            help="GPU memory to use, such as 12G, or 10G,22G for two GPUs; the CPU computes what does not fit "
            "(default: what is free)",
        ),
    ] = None
    split: Annotated[
        str | None,
        typer.Option(metavar="N,N", help="With several GPUs, shares of the layers, such as 1,2 (default: by memory)"),
    ] = None
    repack: Repack = "auto"
    kv_memory: Annotated[
        str | None,
        typer.Option(
            metavar="BYTES",
            help="Memory for keys and values, such as 800M or 4G; cached recurrent states may take half as much "
            "(default: half of the free memory)",
        ),
    ] = None
    image_tokens: Annotated[
        int, typer.Option(metavar="N", help="Most tokens of an image, 64 to 16384; larger images are made smaller.")
    ] = 1024
    cache_dir: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder that keeps the state of prompts for later runs of the same model."),
    ] = None
    cache_size: Annotated[
        str | None,
        typer.Option(
            metavar="BYTES", help="Size limit of that folder (default: 16G, or half of the free disk space if less)"
        ),
    ] = None

    @property
    def path(self) -> Path:
        """The model's path, once it is `found`."""
        if self.model is None:
            raise TrigraphError("name a model")
        return self.model

    def found(self) -> ModelArguments:
        """These arguments with a path, to which what is named is downloaded first."""
        given = given_model(self.model, self.hub)
        files = companions(given, self.mtp, self.mmproj, self.draft_model)
        return replace(self, model=given.path, hub=None, **files._asdict())


@dataclass(frozen=True)
class ConstraintArguments:
    """The form that the completion must have."""

    panel: ClassVar = "Structured output"
    common: ClassVar = ("json_schema",)

    json_schema: Annotated[
        str | None,
        typer.Option(
            "-j", "--json-schema", metavar="FILE|JSON", help="Generate JSON that is valid against this schema."
        ),
    ] = None
    grammar: Annotated[
        Path | None, typer.Option("--grammar", help="Follow the grammar in this file: Lark or GBNF.")
    ] = None
    regex: Annotated[
        str | None, typer.Option("--regex", help="Match this regular expression with the whole completion.")
    ] = None

    def constraint(self) -> Constraint | None:
        """The constraint, if one was asked for; a schema is JSON, or the name of a file with it."""
        given = [value for value in (self.json_schema, self.grammar, self.regex) if value is not None]
        if len(given) > 1:
            raise TrigraphError("--json-schema, --grammar and --regex exclude each other")
        if self.json_schema is not None:
            schema = self.json_schema
            return JsonSchema(schema if schema.lstrip().startswith("{") else read_text(Path(schema)))
        if self.grammar is not None:
            return Grammar(read_text(self.grammar))
        return None if self.regex is None else Regex(self.regex)


@dataclass(frozen=True)
class SpeculationArguments:
    """Speculative decoding."""

    panel: ClassVar = "Speculation"

    spec: Annotated[
        bool, typer.Option("--spec/--no-spec", help="Decode speculatively; the output is the same either way.")
    ] = True
    draft_tokens: Annotated[
        int | None, typer.Option(help="Number of drafts per round (default: chosen by measured costs)")
    ] = None


@dataclass(frozen=True)
class EndArguments:
    """End of a completion."""

    max_tokens: Annotated[
        int,
        typer.Option(
            "-n",
            "--n-predict",
            "--max-tokens",
            help="Maximum number of tokens to generate; -1: until the context is full.",
        ),
    ] = -1
    stop: Annotated[
        list[str] | None, typer.Option("--stop", metavar="TEXT", help="Stop string; ends the completion. Repeatable.")
    ] = None
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Keep generating after end-of-text tokens.")] = False


@dataclass(frozen=True)
class OutputArguments(EndArguments):
    """End of the completion, and form of the output."""

    panel: ClassVar = "Output"
    common: ClassVar = ("max_tokens", "stop", "as_json", "verbose")

    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object: text, message, ids, stats.")] = False
    show_drafts: Annotated[
        bool, typer.Option("--show-drafts", help="Mark accepted and rejected drafts; compare with none.")
    ] = False
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Report what was loaded, and how.")] = False


_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,6})?)([KMGT]?)", re.ASCII | re.IGNORECASE)


def parse_bytes(option: str, text: str | None) -> int | None:
    """A number of bytes, or of KiB, MiB, GiB or TiB with a suffix K, M, G or T; None where the option is not given."""
    if text is None:
        return None
    match = _SIZE.fullmatch(text)
    if match is None or not (size := int(float(match[1]) * (1 << 10 * " KMGT".index(match[2].upper() or " ")))):
        raise TrigraphError(f"{option} {quote(text)}: write a number of bytes, such as 800M or 4G")
    return size


def read_text(file: Path | None) -> str:
    """The text in a file; without one, of stdin."""
    if file is None and sys.stdin is None:
        raise TrigraphError("stdin is closed; give the text with -p or -f")
    try:
        with file_errors(file or "stdin"):
            return sys.stdin.buffer.read().decode("utf-8") if file is None else file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise TrigraphError(f"{file or 'stdin'}: is not UTF-8 text ({error.reason} at byte {error.start})") from error


class ExportArguments(TypedDict, total=False):
    """Fields of ExportOptions that options of commands set."""

    mtp: Path | None
    mmproj: Path | None
    draft_model: Path | None
    kv_type: str | None
    rope_scaling: str | None
    activations: str | None


def export_options(model: Path, **given: Unpack[ExportArguments]) -> ExportOptions:
    """The export that options ask for. Raises TrigraphError for a package, which has been exported already."""
    options = {name: value for name, value in given.items() if value is not None}
    if options and model.is_dir():
        option = f"--{next(iter(options))}".replace("_", "-")
        raise TrigraphError(
            f"{option}: {model} is a package; give {option} when exporting, or give the .gguf file instead"
        )
    return ExportOptions(**options)  # type: ignore[arg-type]
