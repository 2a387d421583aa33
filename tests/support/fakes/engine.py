"""An engine on the fake model: a token for each byte, and texts as they are scripted."""

from collections.abc import Callable

import numpy as np

from support.fakes.blocks import FakeBlocks
from support.fakes.model import FakeModel, History
from trigraph.models.tokenizer import byte_alphabet, tokenizer_json
from trigraph.runtime import Engine, Sampling
from trigraph.runtime.scheduler.model import Model, Scheduling
from trigraph.runtime.text.template import ChatTemplate
from trigraph.runtime.text.tokenizer import Tokenizer

END, THINK = 256, 257
METADATA = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "qwen35",
    "tokenizer.ggml.tokens": [*byte_alphabet(), "<|end|>", "<think>"],
    "tokenizer.ggml.token_type": [1] * 256 + [3, 4],
    "tokenizer.ggml.merges": [],
}
TEMPLATE = """\
{%- for m in messages %}
    {%- if m.role not in ("system", "user", "assistant") %}{{ raise_exception("Unknown role " + m.role) }}{% endif %}
    {{- "<|" + m.role + "|>" + m.content + eos_token }}
{%- endfor %}
{%- if add_generation_prompt %}{{ "<|assistant|>" }}{% endif %}"""
VOCAB = len(METADATA["tokenizer.ggml.tokens"])
GREEDY = Sampling(temperature=0)


def scripted(text: bytes | list[int], prompt: int) -> Callable[[History], np.ndarray]:
    """Logits that make `text` follow a prompt of `prompt` tokens."""

    def logits(history: History) -> np.ndarray:
        row = np.zeros(VOCAB, np.float32)
        row[text[(len(history) - prompt) % len(text)]] = 1
        return row

    return logits


def engine_of(
    next_logits: Callable[[History], np.ndarray],
    *,
    draft: bool = True,
    context: int = 64,
    sequences: int = 4,
    template: str | None = None,
    slots: int = 0,
    pages: int = 0,
    max_waiting: int = 1024,
    blocks: FakeBlocks | None = None,
    guess: Callable[[History], tuple[int, float]] | None = None,
) -> tuple[Engine, FakeModel]:
    """An engine whose MTP head is always right, or as `guess` says; `blocks` alone drafts without a head."""
    if draft and blocks is None and guess is None:
        guess = lambda history: (int(next_logits(history).argmax()), 0.9)  # noqa: E731
    model = FakeModel(VOCAB, next_logits, guess, blocks)
    tokenizer = Tokenizer(tokenizer_json(METADATA), [END])
    chat = ChatTemplate(template, {"eos_token": "<|end|>"}) if template else None
    no_draft = None if draft or blocks else "the model has no MTP head"
    steps = model.steps(context, sequences, chunk=16, slots=slots, pages=pages)
    return Engine(Model(steps, tokenizer, chat, no_draft=no_draft, scheduling=Scheduling(max_waiting))), model


def assert_settled(engine: Engine) -> None:
    """No request holds state after the round in progress: the cache's is free when that is cleared."""
    if engine._driver.closed:
        engine.cache.clear()
    else:
        engine._driver.call(engine.cache.clear)
    state = engine.steps.state
    assert (state.slots.free, state.pages.free) == (state.slots.size, state.pages.size), "state was not given back"
