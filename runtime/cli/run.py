"""The command `trigraph run`: a completion, or a chat."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from typing import Any

from trigraph.custom_ops import explain_bus_errors
from trigraph.exporter import ExportOptions
from trigraph.models.errors import TrigraphError
from trigraph.runtime import Engine, Options, load
from trigraph.runtime.chat import first_messages
from trigraph.runtime.cli.arguments import (
    ConstraintArguments,
    ModelArguments,
    OutputArguments,
    PromptArguments,
    SpeculationArguments,
    parse_bytes,
)
from trigraph.runtime.cli.chat import Terminal, interact
from trigraph.runtime.cli.command import grouped
from trigraph.runtime.cli.console import events_of, progress_bars, say, stream
from trigraph.runtime.cli.sampling_arguments import SamplingArguments
from trigraph.runtime.cli.template_arguments import TemplateArguments
from trigraph.runtime.scheduler.request import Request
from trigraph.runtime.text.reply import assistant_message
from trigraph.runtime.text.reply_parser import ReplyParser


@grouped
def run(
    model: ModelArguments,
    prompt: PromptArguments,
    sampling: SamplingArguments,
    constraint: ConstraintArguments,
    template: TemplateArguments,
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
        reasoning_budget=template.reasoning_budget,
        speculate=speculation.spec,
        draft_tokens=speculation.draft_tokens,
        drafter=speculation.drafter,
        draft_p_min=speculation.draft_p_min,
    )
    text = prompt.text()
    if text is None and output.as_json:
        raise TrigraphError("--json needs a prompt (-p or -f)")
    if text is None and prompt.prompt_cache is not None:
        raise TrigraphError("--prompt-cache needs a prompt (-p or -f); in a chat, use /save and /load")
    tools, variables, hide = template.tools(), template.variables(), template.hides_reasoning
    engine = open_engine(model, speculation=speculation.spec, verbose=output.verbose)
    options = replace(options, sampling=sampling.sampling(engine.sampling))
    engine = replace(engine, template=None if prompt.raw else template.template_of(engine))
    if text is None:
        chat = engine.chat(prompt.system, tools=tools, variables=variables) if engine.template else None
        if chat is None and not prompt.raw:
            say("note: the model has no chat template; it completes each line that you type")
        interact(Terminal(engine, options, chat, hide_reasoning=hide))
        return
    if engine.template is None and prompt.system is not None:
        reason = "--raw was given" if prompt.raw else "the model has none"
        raise TrigraphError(f"--system-prompt needs a chat template, and {reason}")
    parser = ReplyParser()
    if engine.template is not None:
        messages = [*first_messages(prompt.system), {"role": "user", "content": text}]
        text = engine.template.render(messages, tools=tools, variables=variables)
        parser = engine.template.parser(text, tools)
    request = engine.generate(engine.tokenizer.encode(text), options, prompt.prompt_cache)
    if output.as_json:
        _print_json(request, parser)
        return
    as_written = not (hide or sys.stdout.isatty())
    stream(request if as_written else events_of(request, parser), request, hide_reasoning=hide)
    say(request.stats.line())


def load_arguments(model: ModelArguments, *, speculation: bool, sequences: int | None = None) -> dict[str, Any]:
    """What `load` is called with, beside the model's path."""
    if model.mtp is not None and model.model.is_dir():
        raise TrigraphError(f"--mtp {model.mtp}: {model.model} is a package; give --mtp when exporting")
    return dict(
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
    )


def open_engine(model: ModelArguments, *, speculation: bool, verbose: bool, sequences: int | None = None) -> Engine:
    """Loads the model, with progress bars, and says what the user should know of it."""
    arguments = load_arguments(model, speculation=speculation, sequences=sequences)
    started = time.perf_counter()
    with progress_bars() as progress:
        engine = load(model.model, **arguments, progress=progress)
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
        f"{engine.steps.state.nbytes() / 1e6:,.0f} MB, speculation {engine.speculation}"
    )


def _print_json(request: Request, parser: ReplyParser) -> None:
    try:
        request.run()
    finally:  # a finished completion is shown even if its state cannot be saved
        stats = request.stats
        if stats.finish_reason != "unfinished":
            message = assistant_message([*parser.push(request.text), *parser.finish()])
            result = {"text": request.text, "message": message, "ids": request.ids, "stats": stats.as_json()}
            print(json.dumps(result, ensure_ascii=False))
