"""A loaded model: what every request of it shares."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from trigraph.models.checks import check
from trigraph.models.drafter.config import KIND_NAMES
from trigraph.models.errors import TrigraphError
from trigraph.runtime.cache.disk_tier import DiskTier
from trigraph.runtime.cache.identity import ModelIdentity
from trigraph.runtime.device.device import HOST, Device
from trigraph.runtime.device.mapped_weights import MappedWeights
from trigraph.runtime.drafting.acceptance import Acceptance
from trigraph.runtime.execution.prefill_speed import PrefillSpeed
from trigraph.runtime.execution.repacking import Repacking
from trigraph.runtime.execution.steps import Steps
from trigraph.runtime.execution.vision import Vision
from trigraph.runtime.images.image import ResizedImage
from trigraph.runtime.images.limits import ImageLimits
from trigraph.runtime.images.prompt import ImagePrompt, PromptLengthError, prompt_with_images
from trigraph.runtime.images.reader import NO_TOWER, ImageReader
from trigraph.runtime.requests.draft_length import MTP_HEAD, OFF, DraftLength, Head, no_drafts
from trigraph.runtime.requests.options import Options
from trigraph.runtime.sampling.constraint import Constraint
from trigraph.runtime.sampling.guide import Guide, guidance_vocabulary
from trigraph.runtime.sampling.sampling import Sampling
from trigraph.runtime.sampling.thought import Thought, ThoughtTokens
from trigraph.runtime.text.default_template import default_template
from trigraph.runtime.text.template import ChatTemplate
from trigraph.runtime.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLTokenizer


_COUNTED = 4  # times the context: of a longer prompt the tokens are not counted
_NO_OTHER = {"mtp": "the model has no MTP head", "block": "the package has no block drafter"}


@dataclass(frozen=True)
class Scheduling:
    """How requests share a model."""

    max_waiting: int = 1024
    """How many may wait for others to end."""
    prefill_ms: float | None = None
    """Milliseconds that a piece of a prompt may hold up the requests that decode; None: see Admission.piece."""

    def __post_init__(self) -> None:
        check("max_waiting", self.max_waiting, int, lambda value: value >= 1, "1 or more")
        if self.prefill_ms is not None:
            check("prefill_ms", self.prefill_ms, float, lambda value: 0 < value < math.inf, "above 0")


@dataclass(frozen=True)
class Model:
    """The steps of decoding, text to tokens and back, and what was measured of them."""

    steps: Steps
    tokenizer: Tokenizer
    template: ChatTemplate | None
    """The model file's own."""
    notices: tuple[str, ...] = ()
    """What the user should know of the model, one sentence each."""
    no_draft: str | None = None
    """Why the model cannot draft; None when it can."""
    device: Device = HOST
    """Where the graphs run, and with which kernels."""
    layout: str = "plain"
    """How the weights lie when the model is loaded."""
    repacking: Repacking | None = None
    """What changes that in the background."""
    scheduling: Scheduling = field(default_factory=Scheduling)
    prefill_speed: PrefillSpeed = field(default_factory=PrefillSpeed)
    weights: MappedWeights = field(default_factory=MappedWeights)
    identity: ModelIdentity = field(default_factory=ModelIdentity)
    sampling: Sampling = field(default_factory=Sampling)
    """What a request gets that does not say otherwise: the model's own suggestion."""
    vision: Vision | None = None
    """What reads the images of prompts; None in a package of text alone."""
    image_limits: ImageLimits = field(default_factory=ImageLimits)
    """What an image of a prompt may take."""
    disk: DiskTier | None = None
    """Where the prefix cache keeps checkpoints beyond the program."""

    @property
    def kernels(self) -> str:
        """The instruction set of the operators' kernels, or CUDA; "no" when function bodies run in their place."""
        return self.device.kernels

    @property
    def weight_layout(self) -> str:
        """How the weights lie that steps read: "plain", "repacked" and the like, in a few words."""
        return self.layout if self.repacking is None else self.repacking.layout

    @property
    def speculation(self) -> str:
        """How drafts are made, in a few words."""
        if self.no_draft is None or self.no_draft == OFF:
            block = self.steps.block
            if self.no_draft or block is None:
                return self.no_draft or "on"
            also = "the MTP head or " if self.steps.can_draft else ""
            return f"on, by {also}a block drafter ({KIND_NAMES[block.kind]})"
        return f"by n-grams alone: {self.no_draft}"

    @property
    def context(self) -> int:
        """Most tokens of a sequence."""
        return self.steps.state.limits.context

    @property
    def vocab(self) -> int:
        """Tokens that logits are of."""
        return self.steps.vocab

    def encode(self, text: str, before: Sequence[int] = ()) -> list[int]:
        """The token ids of a text, after those `before` it, which begin it.

        Raises PromptLengthError when they outgrow the context, without counting far more of them.
        """
        most = _COUNTED * self.context
        ids = [*before, *self.tokenizer.encode(text, start=not before, most=most - len(before))]
        if len(ids) > self.context:
            raise PromptLengthError.of(len(ids), self.context, more=len(ids) > most)
        return ids

    def encode_images(self, text: str, images: Sequence[ResizedImage], before: Sequence[int] = ()) -> ImagePrompt:
        """A text with an image token for each of `images`, after those `before` it, as `ImagePrompt.written` has them.

        Raises TrigraphError when they outgrow the context, and unless there is a token for each image.
        """
        return prompt_with_images(text, self.tokenizer, images, before=before, most=self.context)

    @property
    def images(self) -> ImageReader:
        """What reads images. Raises TrigraphError for a model that reads text only."""
        if self._images is None:
            raise TrigraphError(NO_TOWER)
        return self._images

    def chat_template(self) -> ChatTemplate:
        """The chat template: the model file's, or a default one."""
        return self.template or self._default_template

    def guide(self, constraint: Constraint) -> Guide:
        """What the tokens of a new completion under `constraint` may be."""
        return Guide(constraint, self._guidance_vocabulary)

    def thought(self, options: Options, prompt: list[int]) -> Thought | None:
        """The thought that a new completion begins with, where something depends on its end."""
        tokens = self._thought_tokens
        if tokens is None:
            return None
        opened, constrained = tokens.opened_by(prompt), options.constraint is not None
        if not (opened if constrained else options.reasoning_budget is not None):
            return None
        stop_ids = self.tokenizer.stop_ids if constrained else frozenset[int]()
        return Thought(tokens, opened=opened, budget=options.reasoning_budget, stop_ids=stop_ids)

    @cached_property
    def _images(self) -> ImageReader | None:
        return None if self.vision is None else ImageReader(self.vision.config, self.image_limits)

    @cached_property
    def _default_template(self) -> ChatTemplate:
        return default_template(self.tokenizer)

    @cached_property
    def _thought_tokens(self) -> ThoughtTokens | None:
        return ThoughtTokens.of(self.tokenizer)

    @cached_property
    def _guidance_vocabulary(self) -> LLTokenizer:
        return guidance_vocabulary(self.tokenizer, self.steps.vocab)

    def draft_length(self, options: Options, common: Acceptance) -> DraftLength:
        """How many tokens a request drafts, where the drafts of all were right as often as `common` says.

        Raises TrigraphError when it asks for more than a round holds.
        """
        most, fixed = self.steps.max_pending - 1, options.draft_tokens
        if self.no_draft == OFF or not options.speculate or fixed == 0:
            return no_drafts(OFF)
        heads = [head for head in self.heads if options.drafter in ("auto", "block" if head.block else "mtp")]
        if fixed is not None and fixed > (limit := min(most, max((head.drafts for head in heads), default=most))):
            raise TrigraphError(f"draft_tokens is {fixed}; a round drafts at most {limit}")
        if not heads and options.drafter in _NO_OTHER:
            return no_drafts(f"off: {_NO_OTHER[options.drafter]}")
        ngrams = options.drafter in ("auto", "ngram") and not (fixed is not None and heads)
        note = f", n-grams alone: {self.no_draft}" if self.no_draft else ""
        return DraftLength(common, most, heads=heads, ngrams=ngrams, fixed=fixed, note=note)

    @property
    def heads(self) -> tuple[Head, ...]:
        """How the model's own drafters work, the MTP head and a block drafter, as far as they are there."""
        block = self.steps.block
        blocks = () if block is None else (Head(block.block, block.most_drafts, self.context - block.block),)
        return (MTP_HEAD, *blocks) if self.steps.can_draft else blocks
