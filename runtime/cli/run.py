"""The command `trigraph run`: a completion, or a chat."""

from __future__ import annotations

import json
import sys
from dataclasses import replace

from trigraph.models.errors import TrigraphError
from trigraph.runtime.cli.arguments import (
    ConstraintArguments,
    ModelArguments,
    OutputArguments,
    SpeculationArguments,
)
from trigraph.runtime.cli.chat import Terminal, interact
from trigraph.runtime.cli.command import examples, grouped
from trigraph.runtime.cli.console import events_of, say, stream
from trigraph.runtime.cli.demonstration import demonstrate
from trigraph.runtime.cli.opening import open_engine
from trigraph.runtime.cli.prompt_arguments import PromptArguments
from trigraph.runtime.cli.receipt_arguments import ReceiptArguments
from trigraph.runtime.cli.request_options import request_options
from trigraph.runtime.cli.sampling_arguments import SamplingArguments
from trigraph.runtime.cli.template_arguments import ReplyArguments, TemplateArguments
from trigraph.runtime.requests.handle import Handle
from trigraph.runtime.text.reply import assistant_message
from trigraph.runtime.text.reply_parser import ReplyParser


@examples(
    'trigraph run MODEL.gguf -p "Why is the sky blue?"',
    "trigraph run -hf unsloth/Qwen3.6-35B-A3B-MTP-GGUF:UD-Q4_K_XL",
    "trigraph run MODEL.gguf -f CHAPTER.txt --raw -n 200 --seed 1",
)
@grouped
def run(
    model: ModelArguments,
    prompt: PromptArguments,
    sampling: SamplingArguments,
    constraint: ConstraintArguments,
    template: TemplateArguments,
    reply: ReplyArguments,
    speculation: SpeculationArguments,
    receipt: ReceiptArguments,
    output: OutputArguments,
) -> None:
    """Generate text: the completion goes to stdout as it is generated, statistics go to stderr.

    Without a prompt, on a terminal: chat.
    """
    options = request_options(output, sampling, template, speculation, constraint.constraint())
    text = prompt.text()
    if text is None and output.as_json:
        raise TrigraphError("--json needs a prompt (-p or -f)")
    if text is None and prompt.prompt_cache is not None:
        raise TrigraphError("--prompt-cache needs a prompt (-p or -f); in a chat, use /save and /load")
    write_receipt = receipt.writer(chat=text is None)
    tools, variables, hide = reply.tools(), template.variables(), reply.hides_reasoning
    engine = open_engine(model.found(), speculation=speculation.spec, verbose=output.verbose)
    options = replace(options, sampling=sampling.sampling(engine.sampling), receipt=write_receipt is not None)
    used = None if prompt.raw else template.template_of(engine)
    if used is not None and used.notice is not None:
        if text is None:
            say(f"note: {used.notice}")
        else:  # a model that was made to continue text does so
            used = None
    if text is None:
        if prompt.image and not used:
            raise TrigraphError("--image needs a chat template, or a prompt with --raw")
        images, chat = prompt.image or (), None
        if used:
            chat = engine.chat(prompt.system, tools=tools, variables=variables, images=images, template=used)
        interact(Terminal(engine, options, chat, hide_reasoning=hide))
        return
    if used is None and prompt.system is not None:
        reason = "--raw was given" if prompt.raw else "the model has none"
        raise TrigraphError(f"--system-prompt needs a chat template, and {reason}")
    parser = ReplyParser()
    shown = [engine.model.images.read(image) for image in prompt.image or ()]
    if used is not None:
        text = used.render(prompt.messages(text), tools=tools, variables=variables)
        parser = used.parser(text, tools)
    given = engine.model.encode_images(text, shown) if shown else text
    if output.show_drafts:
        say(demonstrate(engine, text, given, options).line())
        return
    request = engine.generate(given, options, prompt.prompt_cache)
    if output.as_json:
        _print_json(request, parser)
    else:
        as_written = not (hide or sys.stdout.isatty())
        stream(request if as_written else events_of(request, parser), request, hide_reasoning=hide)
        say(request.stats.line())
    if write_receipt is not None:
        write_receipt(engine.receipt(request))


def _print_json(request: Handle, parser: ReplyParser) -> None:
    try:
        request.run()
    finally:  # a finished completion is shown even if its state cannot be saved
        stats = request.stats
        if stats.finish_reason != "unfinished":
            message = assistant_message([*parser.push(request.text), *parser.finish(request.ending)])
            result = {"text": request.text, "message": message, "ids": request.ids, "stats": stats.as_json()}
            print(json.dumps(result, ensure_ascii=False))
