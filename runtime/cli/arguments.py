"""Options of the command line, those of `trigraph run` by panels of its help, and how their values are read."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Annotated

import typer

from trigraph.exporter.export import ACTIVATIONS, ExportOptions
from trigraph.models.errors import TrigraphError, quote
from trigraph.runtime.decoding.constraint import Constraint, Grammar, JsonSchema, Regex
from trigraph.runtime.device.choice import DEVICES, EXPERTS

_MODEL, _PROMPT, _SAMPLING, _CONSTRAINTS, _SPECULATION, _OUTPUT = (
    {"rich_help_panel": panel} for panel in ("Model", "Prompt", "Sampling", "Constraints", "Speculation", "Output")
)

Model = Annotated[
    Path,
    typer.Argument(metavar="DIR|MODEL.gguf", help="A package, or a GGUF file, which is exported to a cache first."),
]
Context = Annotated[
    int | None,
    typer.Option(
        "-c", "--ctx-size", help="Most tokens of a text (default: the package's limit, up to 32768)", **_MODEL
    ),
]
_THREADS = "-t", "--threads"
_THREADS_HELP = "Threads to compute with (default: the physical cores)"
Threads = Annotated[int | None, typer.Option(*_THREADS, help=_THREADS_HELP, **_MODEL)]
Mtp = Annotated[
    Path | None, typer.Option(help="GGUF file with the MTP head, beside a MODEL.gguf without one.", **_MODEL)
]
_DEVICE_HELP = "Where to compute: cpu, cuda, or auto, which is a GPU where one can be used."
DeviceName = Annotated[str, typer.Option("--device", help=_DEVICE_HELP, autocompletion=lambda: list(DEVICES), **_MODEL)]
Experts = Annotated[
    str,
    typer.Option(
        help="With a GPU: compute routed experts on the gpu or the cpu.", autocompletion=lambda: list(EXPERTS), **_MODEL
    ),
]

Prompt = Annotated[str | None, typer.Option("-p", "--prompt", help="Text to answer; - reads stdin.", **_PROMPT)]
File = Annotated[Path | None, typer.Option("-f", "--file", help="File with the text to answer.", **_PROMPT)]
System = Annotated[str | None, typer.Option("-sys", "--system-prompt", help="System message of a chat.", **_PROMPT)]
Raw = Annotated[bool, typer.Option("--raw", help="Complete the text as it is, without the chat template.", **_PROMPT)]
PromptCache = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Take the state of the prompt's beginning from FILE; keep it there.", **_PROMPT),
]

Temperature = Annotated[
    float,
    typer.Option("--temp", "--temperature", help="How even the choice is; 0: the most likely token.", **_SAMPLING),
]
TopK = Annotated[int, typer.Option(help="Choose among so many of the most likely tokens; 0: all.", **_SAMPLING)]
TopP = Annotated[
    float, typer.Option(help="Choose among the most likely tokens of this probability together; 1: off.", **_SAMPLING)
]
MinP = Annotated[
    float,
    typer.Option(help="Leave out tokens less likely than this fraction of the most likely one; 0: off.", **_SAMPLING),
]
Seed = Annotated[int, typer.Option("-s", "--seed", help="Of the random numbers; -1: a new one each time.", **_SAMPLING)]
RepeatPenalty = Annotated[
    float, typer.Option(help="Make tokens that are there already less likely: divide; 1: off.", **_SAMPLING)
]
PresencePenalty = Annotated[float, typer.Option(help="The same: subtract once; 0: off.", **_SAMPLING)]
FrequencyPenalty = Annotated[
    float, typer.Option(help="The same: subtract for each time that they are there; 0: off.", **_SAMPLING)
]
RepeatLastN = Annotated[int, typer.Option(help="Tokens that penalties look at; -1: all, 0: none.", **_SAMPLING)]
LogitBias = Annotated[
    list[str] | None,
    typer.Option(
        metavar="ID(+|-)BIAS",
        help="Add to the logit of a token: 15043+1.5; 15043-inf bans it. May be repeated.",
        **_SAMPLING,
    ),
]

JsonSchemaText = Annotated[
    str | None,
    typer.Option("-j", "--json-schema", metavar="FILE|JSON", help="Answer with JSON of this schema.", **_CONSTRAINTS),
]
GrammarFile = Annotated[
    Path | None,
    typer.Option("--grammar", help="File with a grammar that the answer follows: Lark or GBNF.", **_CONSTRAINTS),
]
Pattern = Annotated[
    str | None, typer.Option("--regex", help="Regular expression that the whole answer matches.", **_CONSTRAINTS)
]

Spec = Annotated[
    bool, typer.Option("--spec/--no-spec", help="Speculative decoding; the text is the same.", **_SPECULATION)
]
DraftTokens = Annotated[
    int | None,
    typer.Option(help="Tokens to draft each round (default: as many as pay, by measurement)", **_SPECULATION),
]
DraftPMin = Annotated[
    float | None, typer.Option(help="A draft less likely than this is not verified (default: 0)", **_SPECULATION)
]

MaxTokens = Annotated[
    int,
    typer.Option(
        "-n", "--n-predict", "--max-tokens", help="Most tokens to generate; -1: until the context is full.", **_OUTPUT
    ),
]
Stop = Annotated[
    list[str] | None,
    typer.Option("--stop", metavar="TEXT", help="Text that ends the answer. May be repeated.", **_OUTPUT),
]
IgnoreEos = Annotated[bool, typer.Option("--ignore-eos", help="Go on after stop tokens.", **_OUTPUT)]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object: text, ids, stats.", **_OUTPUT)]
Verbose = Annotated[bool, typer.Option("-v", "--verbose", help="Say what is loaded, and how.", **_OUTPUT)]

# Of other commands, without panels.
DeviceOnly = Annotated[str, typer.Option("--device", help=_DEVICE_HELP, autocompletion=lambda: list(DEVICES))]
ThreadsOnly = Annotated[int | None, typer.Option(*_THREADS, help=_THREADS_HELP)]
AsJsonOnly = Annotated[bool, typer.Option("--json", help="One JSON object instead of a text.")]
Activations = Annotated[
    str | None,
    typer.Option(
        help="Of products with block-quantised weights: float32, or int8, the faster ones (default: int8)",
        autocompletion=lambda: list(ACTIVATIONS),
    ),
]

_BIAS = re.compile(r"(\d{1,18})([+-](?:inf|\d+\.?\d*|\.\d+))", re.ASCII)


def parse_logit_bias(text: str) -> tuple[int, float]:
    """`ID(+|-)BIAS`, as llama.cpp writes it, to a pair for `Sampling.logit_bias`."""
    match = _BIAS.fullmatch(text)
    if match is None:
        raise TrigraphError(f"--logit-bias {quote(text)}: write ID+BIAS or ID-BIAS, such as 15043+1.5 or 15043-inf")
    return int(match[1]), float(match[2])


def parse_constraint(json_schema: str | None, grammar: Path | None, regex: str | None) -> Constraint | None:
    """The constraint that one of the three options asks for; `json_schema` is JSON, or the name of a file with it."""
    given = [value for value in (json_schema, grammar, regex) if value is not None]
    if len(given) > 1:
        raise TrigraphError("--json-schema, --grammar and --regex exclude each other")
    if json_schema is not None:
        return JsonSchema(json_schema if json_schema.lstrip().startswith("{") else read_text(Path(json_schema)))
    if grammar is not None:
        return Grammar(read_text(grammar))
    return None if regex is None else Regex(regex)


def read_text(file: Path | None) -> str:
    """The text in a file; without one, of stdin."""
    try:
        return sys.stdin.buffer.read().decode("utf-8") if file is None else file.read_text(encoding="utf-8")
    except OSError as error:
        raise TrigraphError(f"{file or 'stdin'}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise TrigraphError(f"{file or 'stdin'}: is not UTF-8 text ({error.reason} at byte {error.start})") from error


def settle_activations(model: Path, activations: str | None) -> ExportOptions:
    """The export that `--activations` asks for; a package has been exported already."""
    if activations is not None and model.is_dir():
        raise TrigraphError(f"{model}: is a package, whose activations are settled; give the .gguf file instead")
    return ExportOptions(activations=activations)
