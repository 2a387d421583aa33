"""The command `trigraph`."""

from __future__ import annotations

import json
import os
import secrets
import sys
import time
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from trigraph.custom_ops import explain_bus_errors
from trigraph.exporter import ExportOptions, describe, is_package
from trigraph.exporter import export as export_package
from trigraph.exporter.describe.picture import write_picture
from trigraph.exporter.package.state_tensors import KV_TYPES
from trigraph.models.errors import TrigraphError
from trigraph.models.geometries import GEOMETRIES
from trigraph.models.synth import QUANTS, write_synthetic
from trigraph.runtime import Engine, Options, Sampling, load
from trigraph.runtime.cli import arguments, measure
from trigraph.runtime.cli.arguments import parse_constraint, parse_logit_bias, read_text
from trigraph.runtime.cli.chat import interact
from trigraph.runtime.cli.console import progress_bars, say, stream
from trigraph.runtime.device.choice import open_device

app = typer.Typer(
    help="Speculative decoding of hybrid Gated-DeltaNet models from GGUF files on ONNX Runtime.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_USER_ERROR, _INTERRUPTED = 2, 130
_DEFAULTS = Sampling()


def _print_version(wanted: bool) -> None:
    if wanted:
        try:
            print(f"trigraph {version('trigraph')}")
        except PackageNotFoundError:
            print("trigraph (not installed)")
        raise typer.Exit


@app.callback()
def _main_options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and leave.")
    ] = False,
) -> None:
    pass


@app.command()
def run(
    model: arguments.Model,
    context: arguments.Context = None,
    threads: arguments.Threads = None,
    mtp: arguments.Mtp = None,
    prompt: arguments.Prompt = None,
    file: arguments.File = None,
    system: arguments.System = None,
    raw: arguments.Raw = False,
    prompt_cache: arguments.PromptCache = None,
    temperature: arguments.Temperature = _DEFAULTS.temperature,
    top_k: arguments.TopK = _DEFAULTS.top_k,
    top_p: arguments.TopP = _DEFAULTS.top_p,
    min_p: arguments.MinP = _DEFAULTS.min_p,
    seed: arguments.Seed = -1,
    repeat_penalty: arguments.RepeatPenalty = _DEFAULTS.repeat_penalty,
    presence_penalty: arguments.PresencePenalty = _DEFAULTS.presence_penalty,
    frequency_penalty: arguments.FrequencyPenalty = _DEFAULTS.frequency_penalty,
    repeat_last_n: arguments.RepeatLastN = _DEFAULTS.penalty_window,
    logit_bias: arguments.LogitBias = None,
    json_schema: arguments.JsonSchemaText = None,
    grammar: arguments.GrammarFile = None,
    regex: arguments.Pattern = None,
    spec: arguments.Spec = True,
    draft_tokens: arguments.DraftTokens = None,
    draft_p_min: arguments.DraftPMin = None,
    max_tokens: arguments.MaxTokens = -1,
    stop: arguments.Stop = None,
    ignore_eos: arguments.IgnoreEos = False,
    as_json: arguments.AsJson = False,
    device: arguments.DeviceName = "cpu",
    experts: arguments.Experts = "gpu",
    verbose: arguments.Verbose = False,
) -> None:
    """Generate text: to stdout as it comes, statistics to stderr. Without a prompt on a terminal: chat."""
    options = Options(
        sampling=Sampling(
            temperature,
            top_k,
            top_p,
            min_p,
            repeat_penalty,
            presence_penalty,
            frequency_penalty,
            repeat_last_n,
            seed=secrets.randbits(32) if seed == -1 else seed,
            logit_bias=tuple(map(parse_logit_bias, logit_bias or ())),
        ),
        max_tokens=None if max_tokens == -1 else max_tokens,
        stop=tuple(stop or ()),
        ignore_eos=ignore_eos,
        constraint=parse_constraint(json_schema, grammar, regex),
        speculate=spec,
        draft_tokens=draft_tokens,
        draft_p_min=draft_p_min,
    )
    text = _prompt(prompt, file)
    if text is None and as_json:
        raise TrigraphError("--json needs a prompt (-p or -f)")
    if text is None and prompt_cache is not None:
        raise TrigraphError("--prompt-cache needs a prompt (-p or -f); a chat has /save and /load")
    if mtp is not None and model.is_dir():
        raise TrigraphError(f"--mtp {mtp}: {model} is a package; give --mtp when exporting")
    started = time.perf_counter()
    with progress_bars() as progress:
        engine = load(
            model,
            threads=threads,
            context=context or None,
            speculation=spec,
            options=ExportOptions(mtp=mtp),
            device=device,
            experts=experts,
            progress=progress,
        )
    if engine.kernels != "no":
        explain_bus_errors()
    if engine.device.reason is not None:
        say(f"note: running on the CPU: {engine.device.reason}")
    if verbose:
        _describe_engine(engine, time.perf_counter() - started)
    if text is None:
        interact(engine, options, system, raw=raw)
        return
    if raw or engine.template is None:
        if system is not None:
            raise TrigraphError(
                "--system-prompt needs a chat template, and " + ("--raw was given" if raw else "the model has none")
            )
        ids = engine.tokenizer.encode(text)
    else:
        ids = engine.chat_prompt(text, system)
    generation = engine.generate(ids, options, prompt_cache)
    if as_json:
        generation.run()
        print(
            json.dumps(
                {"text": generation.text, "ids": generation.ids, "stats": generation.stats.as_json()},
                ensure_ascii=False,
            )
        )
        return
    stream(generation)
    say(generation.stats.line())


@app.command()
def export(
    model: Annotated[Path, typer.Argument(metavar="MODEL.gguf", help="The model; of a split one, the first file.")],
    out: Annotated[Path, typer.Option("-o", "--out", help="Folder to write the package to.")],
    mtp: Annotated[Path | None, typer.Option(help="GGUF file with the MTP head, if the model's own has none.")] = None,
    max_context: Annotated[int | None, typer.Option(help="Most tokens of a text (default: the model's)")] = None,
    draft_vocab: Annotated[
        int | None, typer.Option(help="Draft only among the first so many ids (default: 65536)")
    ] = None,
    kv_type: Annotated[
        str, typer.Option(help="Of keys and values: f16 or f32.", autocompletion=lambda: list(KV_TYPES))
    ] = "f16",
    activations: arguments.Activations = None,
    copy_weights: Annotated[
        bool, typer.Option("--copy-weights", help="Copy the GGUF instead of hard-linking it.")
    ] = False,
    reference: Annotated[bool, typer.Option("--reference", help="Leave the GGUF where it is.")] = False,
    portable: Annotated[
        bool, typer.Option("--portable", help="Let the graphs run without the operator library too, slowly.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a package that is there.")] = False,
) -> None:
    """Write prefill.onnx, draft.onnx and verify.onnx for a GGUF file; the weights stay in it."""
    if copy_weights and reference:
        raise TrigraphError("--copy-weights and --reference exclude each other")
    if is_package(out) and not force:
        raise TrigraphError(f"{out}: holds a package already; --force replaces it")
    weights = "copy" if copy_weights else "reference" if reference else "link"
    options = ExportOptions(mtp, max_context, draft_vocab, kv_type, activations, weights, portable)
    started = time.perf_counter()
    with progress_bars() as progress:
        manifest = export_package(model, out, options, progress)
    for notice in manifest.notices:
        say(f"note: {notice}")
    if "draft" not in manifest.graphs:
        say("note: the model has no MTP head; it runs without speculation")
    print(f"{out}: {', '.join(manifest.graphs)} in {time.perf_counter() - started:.1f} s")


@app.command()
def inspect(
    path: Annotated[Path, typer.Argument(metavar="DIR|MODEL.gguf", help="A package, or a GGUF file.")],
    context: Annotated[int | None, typer.Option("-c", "--context", help="Tokens to size the KV pages for.")] = None,
    graph: Annotated[
        Path | None, typer.Option(metavar="FILE.svg", help="Draw the graphs, their state and weights.")
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="Also say whether cpu, cuda or auto can run it, and which provider does.")
    ] = None,
    as_json: arguments.AsJsonOnly = False,
) -> None:
    """Show what a GGUF file or a package holds, and the memory that a text takes."""
    description = describe(path, context)
    if graph is not None:
        write_picture(path, graph, context)
    if device is not None:
        say(f"device: {open_device(device).description}")
    if as_json:
        print(json.dumps(description.as_json(), ensure_ascii=False))
    else:
        from rich import print as rich_print

        rich_print(description)


@app.command()
def synth(
    geometry: Annotated[
        str,
        typer.Argument(
            metavar="GEOMETRY", help=f"One of {', '.join(GEOMETRIES)}.", autocompletion=lambda: list(GEOMETRIES)
        ),
    ],
    out: Annotated[Path, typer.Argument(metavar="OUT.gguf", help="File to write.")],
    layers: Annotated[int | None, typer.Option(help="Trunk layers (default: the model's)")] = None,
    vocab: Annotated[int | None, typer.Option(help="Tokens in the vocabulary (default: the model's)")] = None,
    experts: Annotated[int | None, typer.Option(help="Experts in a layer (default: the model's)")] = None,
    quant: Annotated[
        str, typer.Option(help=f"One of {', '.join(QUANTS)}.", autocompletion=lambda: list(QUANTS))
    ] = "Q4_K_M",
    seed: Annotated[int, typer.Option(help="Of the random weights.")] = 0,
) -> None:
    """Write a GGUF file with random weights and the real shapes and types of a published model."""
    with progress_bars() as progress:
        total = [0]

        def show(tensor: str, done: int, size: int) -> None:
            total[0] = size
            progress("write", done, size)

        write_synthetic(
            geometry, out, layers=layers, vocab=vocab, experts=experts, quant=quant, seed=seed, progress=show
        )
    print(f"{out}: {total[0] / 1e9:.2f} GB of weights")


app.command()(measure.bench)
app.command()(measure.perplexity)


def _prompt(prompt: str | None, file: Path | None) -> str | None:
    """The text to answer, or None for an interactive chat."""
    if prompt is not None and file is not None:
        raise TrigraphError("--prompt and --file exclude each other")
    if file is not None or prompt == "-" or (prompt is None and not sys.stdin.isatty()):
        return read_text(file)
    return prompt


def _describe_engine(engine: Engine, seconds: float) -> None:
    for notice in engine.notices:
        say(f"note: {notice}")
    say(
        f"loaded in {seconds:.2f} s: context {engine.context}, {engine.kernels} kernels, state of up to "
        f"{engine.steps.state.nbytes() / 1e6:,.0f} MB, speculation {engine.no_draft or 'on'}"
    )


def _discard_output() -> None:
    """Lets go of what stdout still holds: writing that at exit would fail once more."""
    with suppress(OSError):
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, sys.stdout.fileno())
        os.close(nothing)


def main() -> NoReturn:
    """Runs the command line. What the user can put right ends with one line on stderr and status 2, Ctrl-C with 130."""
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")
    try:
        status = app(prog_name="trigraph", standalone_mode=False)
    except TrigraphError as error:
        say(f"error: {error}")
        status = _USER_ERROR
    except typer.TyperException as error:
        # No message: a command without arguments has shown its help.
        if error.format_message():
            context = getattr(error, "ctx", None)
            hint = "" if context is None else f" Try '{context.command_path} --help'."
            say(f"error: {error.format_message()}{hint}")
        status = _USER_ERROR
    except OSError as error:  # of stdout most likely: those of files have been explained
        say(f"error: input or output failed: {error}")
        _discard_output()
        status = _USER_ERROR
    except (KeyboardInterrupt, typer.Abort):
        status = _INTERRUPTED
    sys.exit(status or 0)
