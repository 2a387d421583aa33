"""The command `trigraph run`: a completion, or a chat."""

from __future__ import annotations

import json
import time

from trigraph.custom_ops import explain_bus_errors
from trigraph.exporter import ExportOptions
from trigraph.models.errors import TrigraphError
from trigraph.runtime import Engine, Options, load
from trigraph.runtime.cli.arguments import (
    ConstraintArguments,
    ModelArguments,
    OutputArguments,
    PromptArguments,
    SamplingArguments,
    SpeculationArguments,
    parse_bytes,
)
from trigraph.runtime.cli.chat import interact
from trigraph.runtime.cli.command import grouped
from trigraph.runtime.cli.console import progress_bars, say, stream
from trigraph.runtime.scheduler.request import Request


@grouped
def run(
    model: ModelArguments,
    prompt: PromptArguments,
    sampling: SamplingArguments,
    constraint: ConstraintArguments,
    speculation: SpeculationArguments,
    output: OutputArguments,
) -> None:
    """Generate text: the completion goes to stdout as it is generated, statistics go to stderr.

    Without a prompt, on a terminal: chat.
    """
    options = Options(
        sampling=sampling.sampling(),
        max_tokens=None if output.max_tokens == -1 else output.max_tokens,
        stop=tuple(output.stop or ()),
        ignore_eos=output.ignore_eos,
        constraint=constraint.constraint(),
        speculate=speculation.spec,
        draft_tokens=speculation.draft_tokens,
        draft_p_min=speculation.draft_p_min,
    )
    text = prompt.text()
    if text is None and output.as_json:
        raise TrigraphError("--json needs a prompt (-p or -f)")
    if text is None and prompt.prompt_cache is not None:
        raise TrigraphError("--prompt-cache needs a prompt (-p or -f); in a chat, use /save and /load")
    engine = open_engine(model, speculation=speculation.spec, verbose=output.verbose)
    if text is None:
        interact(engine, options, prompt.system, raw=prompt.raw)
        return
    request = engine.generate(_prompt_ids(engine, text, prompt), options, prompt.prompt_cache)
    if output.as_json:
        _print_json(request)
    else:
        stream(request)
        say(request.stats.line())


def open_engine(model: ModelArguments, *, speculation: bool, verbose: bool, sequences: int | None = None) -> Engine:
    """Loads the model, with progress bars, and says what the user should know of it."""
    if model.mtp is not None and model.model.is_dir():
        raise TrigraphError(f"--mtp {model.mtp}: {model.model} is a package; give --mtp when exporting")
    started = time.perf_counter()
    with progress_bars() as progress:
        engine = load(
            model.model,
            threads=model.threads,
            context=model.context or None,
            sequences=sequences,
            kv_memory=parse_bytes("--kv-memory", model.kv_memory),
            checkpoint_memory=parse_bytes("--checkpoint-memory", model.checkpoint_memory),
            cache_dir=model.cache_dir,
            cache_size=parse_bytes("--cache-size", model.cache_size),
            speculation=speculation,
            options=ExportOptions(mtp=model.mtp),
            device=model.device,
            experts=model.experts,
            progress=progress,
        )
    if engine.kernels != "no":
        explain_bus_errors()
    for notice in engine.notices:
        say(f"note: {notice}")
    if engine.device.reason is not None:
        say(f"note: running on the CPU: {engine.device.reason}")
    if verbose:
        _describe(engine, time.perf_counter() - started)
    return engine


def _describe(engine: Engine, seconds: float) -> None:
    say(
        f"loaded in {seconds:.2f} s: context {engine.context}, {engine.kernels} kernels, state of up to "
        f"{engine.steps.state.nbytes() / 1e6:,.0f} MB, speculation {engine.no_draft or 'on'}"
    )


def _prompt_ids(engine: Engine, text: str, prompt: PromptArguments) -> list[int]:
    if not prompt.raw and engine.template is not None:
        return engine.chat_prompt(text, prompt.system)
    if prompt.system is not None:
        reason = "--raw was given" if prompt.raw else "the model has none"
        raise TrigraphError(f"--system-prompt needs a chat template, and {reason}")
    return engine.tokenizer.encode(text)


def _print_json(request: Request) -> None:
    try:
        request.run()
    finally:  # a finished completion is shown even if its state cannot be saved
        stats = request.stats
        if stats.finish_reason != "unfinished":
            result = {"text": request.text, "ids": request.ids, "stats": stats.as_json()}
            print(json.dumps(result, ensure_ascii=False))
