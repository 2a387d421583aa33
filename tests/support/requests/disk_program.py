"""Programs that share the folder of a disk tier."""

from pathlib import Path

from support.fakes.model import FakeModel
from support.fakes.steps import free
from support.requests.cached_prompts import compute
from support.requests.sessions import MODEL
from trigraph.runtime.cache.disk_tier import DiskTier
from trigraph.runtime.cache.identity import ModelIdentity
from trigraph.runtime.cache.prefix_cache import PrefixCache
from trigraph.runtime.execution.prefill_speed import PrefillSpeed


class Program:
    """A prefix cache on a folder. What states stand for is in the model, which programs share."""

    def __init__(
        self,
        folder: Path,
        model: FakeModel,
        budget: int | None = None,
        identity: ModelIdentity = MODEL,
        rate: int = 32,
        context: int = 160,
    ) -> None:
        """`rate`: tokens of a prompt a second."""
        self.steps, speed = model.steps(context, slots=40), PrefillSpeed()
        speed.observe(rate, 1.0)
        self.disk = DiskTier(folder, budget, identity, self.steps, speed)
        self.cache = PrefixCache(self.steps, self.disk)

    def __call__(self, *prompts: list[int]) -> list[int]:
        """How many tokens of each prompt are found."""
        found = [compute(self.steps, self.cache, prompt) for prompt in prompts]
        self.disk.finish()
        assert self.disk.problem is None
        return found

    def close(self) -> None:
        self.cache.clear()
        assert free(self.steps) == (self.steps.state.slots.size, self.steps.state.pages.size)


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*/*") if path.is_file())


def lengths(folder: Path) -> list[int]:
    return sorted(int(path.name.split("-")[0]) for path in files(folder))
