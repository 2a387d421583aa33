"""A loaded model that takes requests."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self, SupportsIndex, Unpack

import numpy as np
from numpy.typing import NDArray

from trigraph.models.errors import TrigraphError
from trigraph.models.vision.config import VisionConfig
from trigraph.runtime.cache.disk_tier import DiskTier
from trigraph.runtime.cache.identity import ModelIdentity
from trigraph.runtime.cache.prefix_cache import PrefixCache
from trigraph.runtime.cache.prompt_file import open_prompt_file
from trigraph.runtime.engine.chat import Conversation
from trigraph.runtime.execution.executor import Executor
from trigraph.runtime.execution.steps import Steps
from trigraph.runtime.images.limits import ImageLimits
from trigraph.runtime.images.prompt import ImagePrompt
from trigraph.runtime.images.reader import ImageLike
from trigraph.runtime.receipt.receipt import Receipt
from trigraph.runtime.receipt.verify import Verdict, verify
from trigraph.runtime.requests.completion import Completion, token_ids
from trigraph.runtime.requests.embedding import embedding, pooled
from trigraph.runtime.requests.handle import Handle
from trigraph.runtime.requests.keywords import Keywords, asked
from trigraph.runtime.requests.logprobs import TokenLogprob, scoring
from trigraph.runtime.requests.options import Options
from trigraph.runtime.sampling.sampling import Sampling
from trigraph.runtime.scheduler.detached import Detached, unpack
from trigraph.runtime.scheduler.driver import Driver, EngineLoad
from trigraph.runtime.scheduler.model import Model
from trigraph.runtime.scheduler.new_request import new_request
from trigraph.runtime.text.template import ChatTemplate
from trigraph.runtime.text.tokenizer import Tokenizer

Prompt = str | Iterable[SupportsIndex] | ImagePrompt


class Engine:
    """A model ready to run: `generate` and `submit` continue a text, `chat` holds a conversation.

    Any number of threads may use it. All requests are decoded together, in a thread of the engine's own; each gets the
    completion that it gets alone.
    """

    def __init__(self, model: Model) -> None:
        self.model = model
        self._driver = Driver(model)

    def __repr__(self) -> str:
        return f"Engine({self.identity.name!r}, context={self.context}, kernels={self.model.kernels!r})"

    @property
    def steps(self) -> Steps:
        """The steps of decoding, for programs with a loop of their own; they hold `steps.lock` meanwhile."""
        return self.model.steps

    @property
    def cache(self) -> PrefixCache:
        """The prefixes of earlier requests."""
        return self._driver.scheduler.cache

    @property
    def executor(self) -> Executor:
        """What runs the rounds of all requests."""
        return self._driver.scheduler.executor

    @property
    def disk(self) -> DiskTier | None:
        """Where the prefix cache keeps checkpoints beyond the program."""
        return self.model.disk

    @property
    def tokenizer(self) -> Tokenizer:
        """Turns text to token ids and back."""
        return self.model.tokenizer

    @property
    def context(self) -> int:
        """Most tokens of a sequence."""
        return self.model.context

    @property
    def vocab(self) -> int:
        """Tokens that logits are of."""
        return self.model.vocab

    @property
    def identity(self) -> ModelIdentity:
        """Which model it is."""
        return self.model.identity

    @property
    def sampling(self) -> Sampling:
        """What a request gets that does not say otherwise."""
        return self.model.sampling

    @property
    def tower(self) -> VisionConfig | None:
        """The vision tower that reads the images of prompts; None in a package of text alone."""
        return None if self.model.vision is None else self.model.vision.config

    @property
    def tower_sha256(self) -> str | None:
        """A hash of the vision tower's weights."""
        return None if self.model.vision is None else self.model.vision.sha256

    @property
    def image_limits(self) -> ImageLimits:
        """What an image of a prompt may take."""
        return self.model.image_limits

    @property
    def supports_images(self) -> bool:
        """Whether prompts may have images: the package has a vision tower."""
        return self.tower is not None

    def chat_template(self) -> ChatTemplate:
        """The chat template: the model file's, or a default one."""
        return self.model.chat_template()

    def generate(
        self,
        prompt: Prompt,
        options: Options | None = None,
        cache: str | Path | None = None,
        checkpoints: Collection[int] = (),
        completed: Iterable[SupportsIndex] = (),
        **keywords: Unpack[Keywords],
    ) -> Handle:
        """Continues `prompt`: iterate over the result for text in pieces, or call its `run`. It begins then.

        `keywords`: fields of Options and Sampling, such as `max_tokens=100, temperature=0`, in place of those of
        `options`; where both leave sampling out, it is as the model's file suggests. `cache`: a session file to take
        the state of the prompt's beginning from, and to leave that of prompt and completion in. `checkpoints`: lengths
        of the prompt that later prompts will begin with. `completed`: the first tokens of a completion that was begun
        elsewhere with the same options; it goes on with the same bits. Raises TrigraphError when the prompt is empty or
        longer than the context, or the file is no session file of this model.
        """
        finish = None
        if cache is not None:
            finish = open_prompt_file(Path(cache), self.identity, self.steps, self.cache, self._driver.call)
        ids, wanted = self._encode(prompt), asked(options, keywords, self.sampling)
        return new_request(
            self._driver, self.model, ids, wanted, completed=completed, checkpoints=checkpoints, finish=finish
        )

    def score(self, prompt: Prompt, top: int = 0) -> list[TokenLogprob]:
        """Log-probabilities of the prompt's tokens from the second on, with those of the `top` most likely ones.

        They have the same bits as when the model decodes these tokens. Raises TrigraphError when the prompt is empty
        or longer than the context.
        """
        request = self.generate(*scoring(self._text(prompt), top))
        request.run()
        return request.logprobs

    def embed(self, prompt: Prompt, pooling: str = "last") -> NDArray[np.float32]:
        """The hidden row of the prompt's last token, after the output norm: float32 [hidden], not normalised.

        `pooling`: "last"; "mean" of all tokens' rows; or "none" for all of them [tokens, hidden]. Raises TrigraphError
        when the prompt is empty or fills the context.
        """
        request = self.generate(*embedding(self._text(prompt), pooling, self.context))
        request.run()
        return pooled(request.hidden, pooling)

    def receipt(self, request: Completion) -> Receipt:
        """The receipt of a completion that was asked for with `Options(receipt=True)`.

        Any machine with the model computes the completion again with it (`verify`, or `trigraph verify`). Raises
        TrigraphError when none was asked for, or the completion was begun elsewhere.
        """
        return Receipt.of(request, self.identity, self.tower_sha256)

    def verify(
        self,
        receipt: Receipt,
        prompt: Iterable[SupportsIndex] | None = None,
        images: Sequence[ImageLike] = (),
    ) -> Verdict:
        """Computes the completion of a receipt again, in about the time of a prompt of its length, and compares.

        `prompt`: the token ids, for a private receipt. `images`: those of the prompt, in order. Raises TrigraphError
        for another model, another prompt or other images.
        """
        ids = None if prompt is None else token_ids("the prompt", prompt)
        return verify(self._driver, self.model, receipt, ids, images)

    def submit(
        self,
        prompt: Prompt,
        options: Options | None = None,
        *,
        priority: int = 0,
        timeout: float | None = None,
        completed: Iterable[SupportsIndex] = (),
        **keywords: Unpack[Keywords],
    ) -> Handle:
        """Begins to continue `prompt` in the background, and returns at once.

        Higher `priority` is served first. After `timeout` seconds the completion ends as it is. `completed`,
        `keywords` and errors: see `generate`. Raises QueueFullError when too many requests wait.
        """
        ids, wanted = self._encode(prompt), asked(options, keywords, self.sampling)
        request = new_request(
            self._driver, self.model, ids, wanted, completed=completed, priority=priority, timeout=timeout
        )
        request.begin()
        return request

    def detach(self, request: Handle) -> Detached:
        """Takes a request of this engine that is not done, for `attach` of another one of the same model.

        Here it ends as it is, cancelled. Its state goes along where that is read faster than it is computed again.
        Raises TrigraphError when it is done, or another engine's.
        """
        return self._driver.call(partial(Detached.of, self._driver, self.model, request, ends=True))

    def peek(self, request: Handle) -> Detached:
        """What `detach` would give just now, of a request that goes on."""
        return self._driver.call(partial(Detached.of, self._driver, self.model, request))

    def attach(self, detached: Detached) -> Handle:
        """Goes on with a request of another engine, on any device: it gets the text that it would have got there.

        The result has the whole text, but log-probabilities and hidden rows of new tokens alone. Raises TrigraphError
        for another model, or where the request does not fit into the context, and QueueFullError.
        """
        self.adopt(detached.state)
        return self.submit(
            detached.prompt,
            detached.options,
            priority=detached.priority,
            timeout=detached.seconds_left,
            completed=detached.completed,
        )

    def adopt(self, state: bytes | None) -> None:
        """Takes the state of a request of another engine into the prefix cache.

        Raises TrigraphError when it is of another model, or damaged.
        """
        if state is not None:
            self._driver.call(partial(unpack, state, self.model, self.cache))

    def close(self) -> None:
        """Ends the engine after the round in progress, as a `with` block does. Requests that are not done fail."""
        if self.model.repacking is not None:
            self.model.repacking.stop()
        self._driver.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        self.close()

    @property
    def load(self) -> EngineLoad:
        """How busy it is just now."""
        return self._driver.load

    async def outage(self) -> str | None:
        """Why no request can be computed just now: never so, in this process."""
        return None

    def chat(
        self,
        system: str | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        variables: Mapping[str, Any] | None = None,
        images: Sequence[ImageLike] = (),
        template: ChatTemplate | None = None,
    ) -> Conversation:
        """An empty conversation.

        `tools`: functions that replies may call, as the chat template describes them to the model. `variables`: those
        of the chat template, such as `enable_thinking`. `images`: what the first message shows; paths, bytes of files,
        images of Pillow or NumPy arrays. `template`: in place of the model's own.
        """
        template = template or self.chat_template()
        return Conversation(self.model, self._driver, template, system, tools=tools, variables=variables, images=images)

    def _encode(self, prompt: Prompt) -> Iterable[SupportsIndex] | ImagePrompt:
        return self.model.encode(prompt) if isinstance(prompt, str) else prompt

    def _text(self, prompt: Prompt) -> list[int]:
        """The token ids of a prompt without images."""
        if isinstance(prompt, ImagePrompt):
            if prompt.images:
                raise TrigraphError("scores and embeddings are of text alone; leave the images out")
            prompt = prompt.ids
        return token_ids("the prompt", self.model.encode(prompt) if isinstance(prompt, str) else prompt)
