"""A small byte-level vocabulary for synthetic files, trained on the spot."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from trigraph.models.errors import TrigraphError
from trigraph.models.tokenizer import CONTROL, NORMAL, PRE_TOKENIZERS, UNUSED, USER_DEFINED, byte_alphabet

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}"
    "{% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part.text }}{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

_SPECIAL = {
    "<|endoftext|>": CONTROL,
    "<|im_start|>": CONTROL,
    "<|im_end|>": CONTROL,
    "<|vision_start|>": CONTROL,
    "<|vision_end|>": CONTROL,
    "<|image_pad|>": CONTROL,
    "<think>": USER_DEFINED,
    "</think>": USER_DEFINED,
    "<tool_call>": USER_DEFINED,
    "</tool_call>": USER_DEFINED,
}

_TEXT = """\
The quick brown fox jumps over the lazy dog, and then the dog runs after the fox in the field near the river.
Once upon a time there was a small model that could read every file and write every graph; it wasn't slow.
It is what it is, and what it was before it was not what it will be after the next token is drawn.
They're sure that we've seen what you'd said: "I'm here, and she'll be there in 1987 or 2026, at 12:45."
def main(argv: list[str]) -> int:
    return sum(x for x in range(10))  # the answer is that this is only a test of the tokenizer
for (int i = 0; i < count; ++i) { total += values[i] * weights[i]; }
Der schnelle Fuchs überquert die Straße, während der müde Hund schläft. Où est passé l'été dernier, déjà?
Быстрая лиса перепрыгнула через ленивую собаку, и собака побежала за лисой по полю у реки.
敏捷的狐狸跳过了懒狗。今天的天气很好,我们去河边走走。人工智能模型正在生成下一个词。
すばやい狐がのろまな犬を飛び越えた。今日はいい天気ですね。
नमस्ते दुनिया, यह एक छोटा सा परीक्षण है। สวัสดีชาวโลก นี่คือการทดสอบ
Emoji: 😀 😀 🚀 🚀 👍🏽 👍🏽 ❤️ ❤️ and a family: 👨‍👩‍👧‍👦 👨‍👩‍👧‍👦.
"""


@dataclass(frozen=True)
class Vocabulary:
    """Token texts and `token_type`s by id, merges by rank, and the ids with a role."""

    tokens: tuple[str, ...]
    types: tuple[int, ...]
    merges: tuple[str, ...]
    end_of_text: int
    end_of_turn: int


def make_vocabulary(size: int, pre_tokenizer: str) -> Vocabulary:
    """Bytes, merges as far as the text gives them, unused fillers, and the special tokens at the end (as in Qwen)."""
    alphabet = byte_alphabet()
    merges_wanted = size - len(alphabet) - len(_SPECIAL)
    if merges_wanted < 0:
        raise TrigraphError(f"--vocab is {size}; it must be at least {len(alphabet) + len(_SPECIAL)}")
    tokens, merges = list(alphabet), []
    known = set(alphabet)
    for left, right in _train(pre_tokenizer):
        if len(tokens) == len(alphabet) + merges_wanted:
            break
        merges.append(f"{left} {right}")
        if left + right not in known:
            known.add(left + right)
            tokens.append(left + right)
    types = [NORMAL] * len(tokens)
    first_special = size - len(_SPECIAL)
    types += [UNUSED] * (first_special - len(tokens))
    tokens += [f"[unused{i}]" for i in range(len(tokens), first_special)]
    names = list(_SPECIAL)
    return Vocabulary(
        tokens=(*tokens, *names),
        types=(*types, *_SPECIAL.values()),
        merges=tuple(merges),
        end_of_text=first_special + names.index("<|endoftext|>"),
        end_of_turn=first_special + names.index("<|im_end|>"),
    )


@cache
def _train(pre_tokenizer: str) -> tuple[tuple[str, str], ...]:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PRE_TOKENIZERS[pre_tokenizer]), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=4096, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator([_TEXT], trainer)
    return tuple((left, right) for left, right in json.loads(tokenizer.to_str())["model"]["merges"])
