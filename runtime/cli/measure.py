"""The command `trigraph bench`: how fast a model is."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import typer
from rich.console import Console

from trigraph.models.errors import TrigraphError
from trigraph.runtime.bench import (
    BenchOptions,
    RequestOptions,
    bench_requests,
)
from trigraph.runtime.bench import bench as run_bench
from trigraph.runtime.bench.contender import OpenContender
from trigraph.runtime.bench.options import RunOptions
from trigraph.runtime.bench.plot import check_plot, write_plot
from trigraph.runtime.bench.report import Run
from trigraph.runtime.cli import arguments
from trigraph.runtime.cli.arguments import export_options
from trigraph.runtime.cli.command import grouped
from trigraph.runtime.cli.console import progress_bars, say
from trigraph.runtime.cli.naming import Hub, Model, companions, given_model
from trigraph.runtime.cli.numbers import parse_counts
from trigraph.runtime.engine.package_cache import CachedPackage, cached_package
from trigraph.runtime.execution.threads import choose_threads
from trigraph.runtime.hub.given import GivenModel

_TABLE_WIDTH = 126  # of a table with all its figures


@dataclass(frozen=True)
class BenchModelArguments:
    """The model to time, and where it runs."""

    panel: ClassVar = "Model"

    model: Model = None
    hub: Hub = None
    threads: arguments.Threads = None
    draft_model: arguments.DraftModel = None
    kv_type: arguments.KVType = None
    rope_scaling: arguments.RopeScaling = None
    activations: arguments.Activations = None
    device: arguments.Device = "cpu"
    repack: arguments.Repack = "auto"


@dataclass(frozen=True)
class BenchWorkArguments:
    """What to time."""

    panel: ClassVar = "Workload"

    prompt: Annotated[
        int | None,
        typer.Option("-p", "--n-prompt", help="Prompt length in tokens (default: 512; with --requests 128)"),
    ] = None
    tokens: Annotated[
        int | None,
        typer.Option("-n", "--n-gen", help="Tokens to generate; 0 skips that (default: 128; with --requests 64)"),
    ] = None
    verify_tokens: Annotated[
        str, typer.Option("-k", help="Numbers of tokens to verify in a step, comma-separated.")
    ] = "1,2,4,8"
    repetitions: Annotated[
        int | None,
        typer.Option(
            "-r", "--repetitions", help="Timed repetitions of each step, or load (default: 10; with --requests 3)"
        ),
    ] = None
    accept: Annotated[float | None, typer.Option(help="Simulate drafts that are accepted with this probability.")] = (
        None
    )
    contexts: Annotated[
        str, typer.Option(help="Context lengths to decode at as well, comma-separated: 1,1024,16384.")
    ] = ""
    sequences: Annotated[str, typer.Option(help="Batch sizes to decode as well, comma-separated: 1,2,4,8.")] = ""

    @property
    def given(self) -> dict[str, Any]:
        """The numbers that steps and loads have different defaults of."""
        numbers = {"prompt": self.prompt, "tokens": self.tokens, "repetitions": self.repetitions}
        return {name: value for name, value in numbers.items() if value is not None}

    def options(self, where: RunOptions) -> BenchOptions:
        """What the benchmark of steps needs. Raises TrigraphError for values out of range."""
        return BenchOptions(
            verify_tokens=parse_counts("-k", self.verify_tokens),
            accept=self.accept,
            contexts=parse_counts("--contexts", self.contexts),
            sequences=parse_counts("--sequences", self.sequences),
            **self.given,
            **asdict(where),
        )


@dataclass(frozen=True)
class BenchRequestArguments:
    """Loads of requests to serve instead of single steps."""

    panel: ClassVar = "Requests"

    requests: Annotated[
        int | None, typer.Option(help="Serve loads of this many requests instead of timing single steps.")
    ] = None
    concurrency: Annotated[str, typer.Option(help="Numbers of requests in flight, a load each, comma-separated.")] = (
        "1,2,4,8"
    )
    shared_prefix: Annotated[int, typer.Option(help="Tokens with which all prompts of a load begin.")] = 0
    draft_tokens: Annotated[
        str,
        typer.Option(help="Draft length instead of the governor's."),
    ] = ""

    def options(self, work: BenchWorkArguments, where: RunOptions) -> RequestOptions | None:
        """What the loads are; None when single steps are to be timed. Raises TrigraphError for values out of range."""
        if self.requests is None:
            if self.shared_prefix or self.draft_tokens:
                raise TrigraphError("--shared-prefix and --draft-tokens need --requests")
            return None
        return RequestOptions(
            self.requests,
            parse_counts("--concurrency", self.concurrency),
            shared_prefix=self.shared_prefix,
            draft_tokens=parse_counts("--draft-tokens", self.draft_tokens),
            **work.given,
            **asdict(where),
        )


@dataclass(frozen=True)
class BenchOutputArguments:
    """How the figures are shown."""

    panel: ClassVar = "Output"

    as_json: arguments.AsJson = False
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Plot the time of a step to a .png or .svg file.")
    ] = None


@grouped
def bench(
    measured: BenchModelArguments,
    work: BenchWorkArguments,
    load: BenchRequestArguments,
    output: BenchOutputArguments,
) -> None:
    """Time prefill, decode, verify, draft and whole completions, and compare them with the machine's roofline.

    With --requests: serve loads of requests.
    """
    if load.requests is not None and work.accept is not None:
        raise TrigraphError("--accept replaces the drafts of single completions; leave it out with --requests")
    run_benchmark(measured, work, load, output)


def run_benchmark(
    measured: BenchModelArguments,
    work: BenchWorkArguments,
    load: BenchRequestArguments,
    output: BenchOutputArguments,
    *,
    contenders: Sequence[OpenContender] = (),
    serve: Callable[[Path, RequestOptions], Run] = bench_requests,
) -> None:
    """Times a model as the options say: its steps, in turns with those of `contenders`, or what `serve` does."""
    threads, capped = choose_threads(measured.threads)
    given = given_model(measured.model, measured.hub)
    where = RunOptions(threads=threads, device=measured.device, repack=measured.repack)
    requests = load.options(work, where)
    if output.plot is not None:
        if requests is not None:
            raise TrigraphError("--plot draws single steps; it cannot be combined with --requests")
        check_plot(output.plot)
    if requests is not None:
        _show(serve(_package(given, measured, capped), requests), as_json=output.as_json)
        return
    options = work.options(where)
    report = run_bench(_package(given, measured, capped), options, contenders)
    _show(report, as_json=output.as_json)
    if output.plot is not None:
        write_plot(report, output.plot)


def _package(given: GivenModel, measured: BenchModelArguments, capped: str | None) -> Path:
    """The folder of the package, which a GGUF file is exported to first."""
    path, files = given.path, companions(given, None, None, measured.draft_model)
    exported = export_options(
        path,
        mtp=files.mtp,
        draft_model=files.draft_model,
        kv_type=measured.kv_type,
        rope_scaling=measured.rope_scaling,
        activations=measured.activations,
    )
    with progress_bars() as progress:
        package = CachedPackage(path) if path.is_dir() else cached_package(path, exported, progress)
    for notice in (*package.notices, *([capped] if capped else [])):
        say(f"note: {notice}")
    return package.folder


def _show(report: Run, *, as_json: bool) -> None:
    if report.machine.load > 0.2 * report.machine.cores:
        say(f"note: the machine is busy (load {report.machine.load:.2f}); times will vary")
    if as_json:
        print(json.dumps(report.as_json()))
    else:
        console = Console()
        console.width = max(console.width, _TABLE_WIDTH)
        console.print(report.table())
