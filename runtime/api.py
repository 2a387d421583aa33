"""The public names of `trigraph.runtime`."""

from trigraph.models.errors import TrigraphError
from trigraph.runtime.engine.chat import Conversation
from trigraph.runtime.engine.config import EngineConfig
from trigraph.runtime.engine.engine import Engine
from trigraph.runtime.engine.loading import load
from trigraph.runtime.receipt.receipt import Receipt
from trigraph.runtime.receipt.verify import Verdict
from trigraph.runtime.requests.handle import Handle as Request
from trigraph.runtime.requests.logprobs import TokenLogprob
from trigraph.runtime.requests.options import Options
from trigraph.runtime.requests.stats import Stats
from trigraph.runtime.sampling.constraint import Grammar, JsonSchema, Regex
from trigraph.runtime.sampling.sampling import Sampling
from trigraph.runtime.scheduler.waiting import QueueFullError

__all__ = [
    "Conversation",
    "Engine",
    "EngineConfig",
    "Grammar",
    "JsonSchema",
    "Options",
    "QueueFullError",
    "Receipt",
    "Regex",
    "Request",
    "Sampling",
    "Stats",
    "TokenLogprob",
    "TrigraphError",
    "Verdict",
    "load",
]
