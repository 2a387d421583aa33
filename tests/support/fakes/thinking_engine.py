"""An engine whose replies are scripted, with thoughts and tool calls, on a token for each byte."""

from __future__ import annotations

import numpy as np

from support.fakes.engine import END, METADATA, THINK
from support.fakes.model import FakeModel, History
from trigraph.models.tokenizer import tokenizer_json
from trigraph.runtime import Engine
from trigraph.runtime.requests.draft_length import OFF
from trigraph.runtime.scheduler.model import Model
from trigraph.runtime.text.template import ChatTemplate
from trigraph.runtime.text.tokenizer import Tokenizer

CLOSE, VOCAB = THINK + 1, THINK + 2
VOCABULARY = {
    **METADATA,
    "tokenizer.ggml.tokens": [*METADATA["tokenizer.ggml.tokens"], "</think>"],
    "tokenizer.ggml.token_type": [*METADATA["tokenizer.ggml.token_type"], 4],
}
TEMPLATE = """\
{# </think> <tool_call> arguments #}
{%- if tools %}{{ tools|tojson }}{% endif %}
{%- for m in messages %}{{ m.role }}|{{ m.reasoning_content }}|{{ m.content }}{{ eos_token }}{% endfor %}
{%- if add_generation_prompt and enable_thinking is not false %}{{ "<think>\n" }}{% endif %}"""


def thinking_engine(*replies: str, context: int = 1000) -> Engine:
    """The n-th message of a conversation, counted from 0 and without a system message, gets `replies[n // 2]`."""
    tokenizer = Tokenizer(tokenizer_json(VOCABULARY), [END])
    scripts = [[*tokenizer.encode(reply), END] for reply in replies]

    def next_logits(history: History) -> np.ndarray:
        row = np.zeros(VOCAB, np.float32)
        tokens = list(history)
        if END in tokens:
            said = tokens[len(tokens) - tokens[::-1].index(END) :]
            said = said[2:] if said[:2] == [THINK, 10] else said
            script = scripts[(tokens.count(END) - 1) // 2 % len(scripts)]
            row[script[min(len(said), len(script) - 1)]] = 9
        return row

    model = FakeModel(VOCAB, next_logits)
    template = ChatTemplate(TEMPLATE, {"eos_token": "<|end|>"}, tokenizer.control_names)
    return Engine(Model(model.steps(context, 4, chunk=64), tokenizer, template, no_draft=OFF))
