"""Speculation made visible: which tokens were drafts, and what the same text takes without them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace

from trigraph.runtime.cli.console import say
from trigraph.runtime.engine.engine import Engine, Prompt
from trigraph.runtime.requests.handle import Handle
from trigraph.runtime.requests.options import Options
from trigraph.runtime.requests.stats import Stats
from trigraph.runtime.text.tokenizer import Detokenizer, Tokenizer

_DIM, _GREEN, _RED, _PLAIN = "\x1b[2m", "\x1b[32m", "\x1b[31m", "\x1b[0m"
_DEMONSTRATED = 3  # drafts a round, where nothing else is asked for


def demonstrate(engine: Engine, prompt: str, given: Prompt, options: Options) -> Stats:
    """Writes prompt and completion to stdout with its drafts marked, and to stderr what they have brought.

    `given`: the prompt for the engine. On a terminal, accepted drafts are green, and each rejected one is a red x;
    elsewhere they stand in [brackets].
    """
    if options.draft_tokens is None and options.speculate:
        most = max((head.drafts for head in engine.model.heads), default=_DEMONSTRATED)
        options = replace(options, draft_tokens=min(_DEMONSTRATED, most))
    request = engine.generate(given, options)
    colour = sys.stdout.isatty()
    sys.stdout.write(f"{_DIM}{prompt}{_PLAIN}" if colour else prompt)
    for piece in marked(request, engine.tokenizer, colour=colour):
        sys.stdout.write(piece)
        sys.stdout.flush()
    sys.stdout.write("\n")
    sys.stdout.flush()
    plain = engine.generate(given, replace(options, speculate=False))
    plain.run()
    for line in compared(request.stats, plain.stats, same=request.ids == plain.ids):
        say(line)
    return request.stats


def marked(request: Handle, tokenizer: Tokenizer, *, colour: bool) -> Iterator[str]:
    """The text of a completion, a piece for each round, with marks at its drafts."""
    detokenizer, done, begun = Detokenizer(tokenizer), 0, False
    for _ in request:
        rounds = request.rounds[done:]
        if not begun:
            begun = True
            yield detokenizer.push(request.ids[0]) if request.ids else ""
        left = len(request.ids) - 1 - sum(len(one.tokens) for one in request.rounds[:done])
        for one in rounds:
            tokens = one.tokens[:left]  # a final stop token has no text
            left -= len(tokens)
            accepted = "".join(map(detokenizer.push, tokens[: one.accepted]))
            own = "".join(map(detokenizer.push, tokens[one.accepted :]))
            yield _drafts(accepted, one.drafted - one.accepted, colour=colour) + own
        done += len(rounds)


def _drafts(accepted: str, rejected: int, *, colour: bool) -> str:
    crosses = "×" * rejected
    if not colour:
        return f"[{accepted}{crosses}]" if accepted or rejected else ""
    return (f"{_GREEN}{accepted}{_PLAIN}" if accepted else "") + (f"{_RED}{crosses}{_PLAIN}" if rejected else "")


def compared(drafted: Stats, plain: Stats, *, same: bool) -> Iterator[str]:
    """What speculation has brought, in sentences."""
    yield (
        f"with drafts:    {drafted.tokens} tokens in {drafted.rounds} rounds, {drafted.accepted} of {drafted.drafted} "
        f"drafts accepted, {drafted.rate:,.0f} tokens/s"
    )
    yield (
        f"without drafts: {plain.tokens} tokens in {plain.rounds} rounds, {plain.rate:,.0f} tokens/s, "
        f"{'the same text' if same else 'ANOTHER TEXT: please report this'}"
    )
    if drafted.rate < plain.rate:
        yield (
            "Speculation does not pay here: a step of so small a model costs little more than a draft. With larger "
            "models it does, and run decides by itself; 'trigraph bench MODEL.gguf --accept 0.8' measures it."
        )
