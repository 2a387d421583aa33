"""A loaded model that takes requests."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trigraph.runtime.cache.prompt_cache import PromptCache
from trigraph.runtime.chat import Conversation, first_messages
from trigraph.runtime.decoding.options import Options
from trigraph.runtime.generate import Generation
from trigraph.runtime.model import Model


@dataclass(frozen=True)
class Engine(Model):
    """A model ready to run: `generate` continues a text, `chat` holds a conversation."""

    def generate(
        self, prompt: str | list[int], options: Options | None = None, cache: str | Path | None = None
    ) -> Generation:
        """Continues `prompt`: iterate over the result for text in pieces, or call its `run`.

        `cache`: a session file to take the state of the prompt's beginning from, and to leave that of prompt and
        completion in. Raises TrigraphError when the prompt is empty or longer than the context, or the file is no
        session file of this model.
        """
        ids = self.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
        kept = None if cache is None else PromptCache(Path(cache), self.identity, self.steps)
        return Generation(self, ids, options or Options(), kept)

    def chat(self, system: str | None = None) -> Conversation:
        """An empty conversation. Raises TrigraphError when the model has no chat template."""
        return Conversation(self, system)

    def chat_prompt(self, text: str, system: str | None = None) -> list[int]:
        """The prompt of a conversation's first turn. Raises TrigraphError when the model has no chat template."""
        messages = [*first_messages(system), {"role": "user", "content": text}]
        return self.tokenizer.encode(self.chat_template().render(messages))
