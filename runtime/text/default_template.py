"""Chat templates for model files that have none."""

from __future__ import annotations

from trigraph.runtime.text.template import ChatTemplate
from trigraph.runtime.text.tokenizer import Tokenizer

_CHATML = """\
{%- for message in messages %}
    {{- "<|im_start|>" + message.role + "\\n" + (message.content or "") + "<|im_end|>\\n" }}
{%- endfor %}
{%- if add_generation_prompt %}{{ "<|im_start|>assistant\\n" }}{% endif %}"""
_PLAIN = """\
{%- for message in messages %}
    {%- if message.role != "system" %}{{ message.role | capitalize + ":\\n" }}{% endif %}
    {{- (message.content or "") + "\\n\\n" }}
{%- endfor %}
{%- if add_generation_prompt %}{{ "Assistant:\\n" }}{% endif %}"""


def default_template(tokenizer: Tokenizer) -> ChatTemplate:
    """ChatML where the vocabulary has its tokens, and plain turns where it has not; `notice` says which."""
    chatml = {"<|im_start|>", "<|im_end|>"} <= tokenizer.control_texts
    used = "ChatML" if chatml else 'plain turns ("User:", "Assistant:")'
    notice = f"the model file has no chat template; chats are written as {used}"
    return ChatTemplate(_CHATML if chatml else _PLAIN, {}, tokenizer.control_names, notice=notice)
