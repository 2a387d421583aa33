"""The public names of `trigraph.runtime`."""

from trigraph.runtime.config import EngineConfig as EngineConfig
from trigraph.runtime.engine import Engine as Engine
from trigraph.runtime.loading import load as load
from trigraph.runtime.requests.options import Options as Options
from trigraph.runtime.requests.stats import Stats as Stats
from trigraph.runtime.sampling.constraint import Grammar as Grammar
from trigraph.runtime.sampling.constraint import JsonSchema as JsonSchema
from trigraph.runtime.sampling.constraint import Regex as Regex
from trigraph.runtime.sampling.sampling import Sampling as Sampling
from trigraph.runtime.scheduler.request import Request as Request
from trigraph.runtime.scheduler.waiting import QueueFullError as QueueFullError
