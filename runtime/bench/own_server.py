"""Our own engine under a load of requests."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from trigraph.runtime.bench.load import Load, Served, ServedLoad
from trigraph.runtime.engine.engine import Engine
from trigraph.runtime.requests.options import Options
from trigraph.runtime.requests.stats import peak_memory
from trigraph.runtime.sampling.sampling import Sampling


class OwnServer:
    """This process as a server: requests go through `Engine.submit`, as a user's do."""

    name = "trigraph"

    def __init__(self, engine: Engine, draft_tokens: int | None = None) -> None:
        """`draft_tokens`: None leaves the draft length to the governor."""
        self._engine = engine
        self._draft_tokens = draft_tokens
        drafts = "the governor's drafts" if draft_tokens is None else f"{draft_tokens} drafts a round"
        self.settings = f"{engine.model.kernels} kernels, {drafts}"

    def serve(self, load: Load) -> ServedLoad:
        options = Options(Sampling(temperature=0), load.tokens, ignore_eos=True, draft_tokens=self._draft_tokens)
        with ThreadPoolExecutor(load.concurrency) as clients:
            served = list(clients.map(lambda prompt: self._serve(prompt, options), load.prompts))
        return ServedLoad(served, peak_memory())

    def close(self) -> None:
        """The engine is its owner's."""

    def _serve(self, prompt: list[int], options: Options) -> Served:
        request = self._engine.submit(prompt, options)
        request.result()
        assert request.first_token is not None
        rounds = request.rounds
        return Served(
            request.created,
            [request.first_token, *(done.ended for done in rounds)],
            request.stats.tokens,
            request.reused,
            sum(done.drafted for done in rounds),
            sum(done.accepted for done in rounds),
            sum(1 / done.sequences for done in rounds),
        )
