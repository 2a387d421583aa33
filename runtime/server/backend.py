"""What the server asks of an engine: one in this process, or replicas of one elsewhere."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from trigraph.models.vision.config import VisionConfig
from trigraph.runtime.cache.disk_tier import DiskTier
from trigraph.runtime.cache.identity import ModelIdentity
from trigraph.runtime.images.limits import ImageLimits
from trigraph.runtime.images.prompt import ImagePrompt
from trigraph.runtime.requests.handle import Handle
from trigraph.runtime.requests.options import Options
from trigraph.runtime.sampling.sampling import Sampling
from trigraph.runtime.scheduler.driver import EngineLoad
from trigraph.runtime.text.template import ChatTemplate
from trigraph.runtime.text.tokenizer import Tokenizer


class Backend(Protocol):
    """Continues prompts, and knows what its model is."""

    @property
    def tokenizer(self) -> Tokenizer: ...

    @property
    def context(self) -> int:
        """Most tokens of a sequence."""

    @property
    def vocab(self) -> int:
        """Tokens that logits are of."""

    @property
    def identity(self) -> ModelIdentity: ...

    @property
    def tower(self) -> VisionConfig | None:
        """What reads the images of prompts; None for a model that reads text only."""

    @property
    def tower_sha256(self) -> str | None:
        """A hash of its weights."""

    @property
    def image_limits(self) -> ImageLimits:
        """What an image may take."""

    @property
    def sampling(self) -> Sampling:
        """What a request gets that does not say otherwise."""

    @property
    def load(self) -> EngineLoad:
        """How busy it is just now."""

    @property
    def disk(self) -> DiskTier | None:
        """Where it keeps checkpoints beyond the program, if that can be seen from here."""

    async def outage(self) -> str | None:
        """Why no request can be computed just now, if so."""

    def close(self) -> None:
        """Ends it; requests that are not done fail."""

    def chat_template(self) -> ChatTemplate:
        """The chat template: the model file's, or a default one."""

    def generate(
        self, prompt: list[int] | ImagePrompt, options: Options, *, checkpoints: Collection[int] = ()
    ) -> Handle:
        """Continues `prompt`, from when the result is begun; see Engine. Raises TrigraphError when it cannot."""
