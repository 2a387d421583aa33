"""An engine whose fake model chats: it gives the n-th question the n-th answer, with reasoning."""

import numpy as np

from support.fakes.engine import END, METADATA
from support.fakes.model import FakeModel, History, chaotic
from trigraph.models.tokenizer import tokenizer_json
from trigraph.runtime import Engine, Options, Sampling
from trigraph.runtime.cache.identity import ModelIdentity
from trigraph.runtime.scheduler.model import Model
from trigraph.runtime.text.template import ChatTemplate
from trigraph.runtime.text.tokenizer import Tokenizer

# In the manner of Qwen's: reasoning is left out of all answers but those after the last question.
QWEN = """\
{%- set last = namespace(question=-1) %}
{%- for m in messages %}{% if m.role == "user" %}{% set last.question = loop.index0 %}{% endif %}{% endfor %}
{%- for m in messages %}
    {%- if m.role == "assistant" %}
        {%- set content = m.content %}
        {%- set thought = "" %}
        {%- if "</think>" in content %}
            {%- set thought = content.split("</think>")[0].split("<think>")[-1].strip("\n") %}
            {%- set content = content.split("</think>")[-1].lstrip("\n") %}
        {%- endif %}
        {%- if loop.index0 > last.question %}
            {%- set content = "<think>\n" + thought + "\n</think>\n\n" + content %}
        {%- endif %}
        {{- "<|im_start|>assistant\n" + content + "<|im_end|>\n" }}
    {%- else %}
        {{- "<|im_start|>" + m.role + "\n" + m.content + "<|im_end|>\n" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ "<|im_start|>assistant\n" }}{% endif %}"""
# Later ones open the reasoning in the prompt, and then the answer has no tag of its own at its beginning.
OPEN = QWEN.replace('{{ "<|im_start|>assistant\n" }}', '{{ "<|im_start|>assistant\n<think>\n" }}')
# Answers stay as they were given.
PLAIN = QWEN.replace('"</think>" in content', "false").replace("loop.index0 > last.question", "false")
TEMPLATES = {"reasoning is cut": QWEN, "reasoning is opened": OPEN, "answers are kept": PLAIN}

# "he" is one token for the tokenizer, and two in the answers of our model.
SPECIAL = ["<|im_start|>", "<|im_end|>", "</think>"]
VOCABULARY = {
    **METADATA,
    "tokenizer.ggml.tokens": [*METADATA["tokenizer.ggml.tokens"], *SPECIAL, "he"],
    "tokenizer.ggml.token_type": [*METADATA["tokenizer.ggml.token_type"], 3, 3, 4, 1],
    "tokenizer.ggml.merges": ["h e"],
}
START, STOP, THOUGHT, HE = range(END + 2, END + 6)
SYSTEM = "You are a careful assistant who answers in few words."
QUESTIONS = ["Where is the house?", "Who lives there?", "\nSince when?", "Hehe, really?", "And the garden?"]


def tokenizer() -> Tokenizer:
    return Tokenizer(tokenizer_json(VOCABULARY), [STOP])


def answer(turn: int, opened: bool) -> list[int]:
    """Reasoning and an answer, byte for byte; one begins with a line break, one has no reasoning."""
    think = [*list(b"" if opened else b"<think>\n"), *b"hmm the case", ord("\n"), THOUGHT, *b"\n\n"]
    texts = [b"On the hill.", b"he and she", b"\n\nthe time", b"here", b"there"]
    return [*([] if turn == 2 and not opened else think), *texts[turn % 5], STOP]


def engine_of(template: str, context: int = 1200, sequences: int = 8) -> tuple[Engine, FakeModel]:
    """A model that gives the n-th question the n-th answer. It checks that each step is of the text it claims."""
    header = tokenizer().encode("<|im_start|>assistant\n" + ("<think>\n" if template == OPEN else ""))

    def next_logits(history: History) -> np.ndarray:
        row = np.zeros(len(VOCABULARY["tokenizer.ggml.tokens"]), np.float32)
        tokens = list(history)
        starts = [i for i in range(len(tokens)) if tokens[i : i + len(header)] == header]
        if starts:
            expected = answer(tokens.count(START) // 2 - 1, template == OPEN)
            row[expected[min(len(tokens) - starts[-1] - len(header), len(expected) - 1)]] = 1
        return row

    model = FakeModel(
        len(VOCABULARY["tokenizer.ggml.tokens"]), next_logits, lambda history: (int(next_logits(history).argmax()), 0.9)
    )
    steps = model.steps(context, sequences, chunk=64)
    return Engine(Model(steps, tokenizer(), ChatTemplate(template, {}), identity=ModelIdentity("fake"))), model


def random_engine(template: str = PLAIN) -> Engine:
    """A model that says anything: tokens that the tokenizer would not choose, bytes that are no text."""
    vocab = len(VOCABULARY["tokenizer.ggml.tokens"])
    logits = chaotic(vocab, 1.0)

    def often_he(history: History) -> np.ndarray:
        row = logits(history)
        row[[*b"he ", HE]] += 3
        row[[START, STOP]] -= 5
        return row

    steps = FakeModel(vocab, often_he).steps(1200, 4, chunk=64)
    return Engine(
        Model(
            steps,
            tokenizer(),
            ChatTemplate(template, {}),
            no_draft="the model has no MTP head",
            identity=ModelIdentity("fake"),
        )
    )


OPTIONS = Options(Sampling(temperature=0), draft_tokens=3, max_tokens=100)


def prefilled(model: FakeModel) -> int:
    """Tokens that went through prefills since the last call."""
    count = sum(sum(lengths) for graph, lengths in model.runs if graph == "prefill")
    model.runs.clear()
    return count
