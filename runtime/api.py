"""The public names of `trigraph.runtime`."""

from trigraph.runtime.decoding.constraint import Grammar as Grammar
from trigraph.runtime.decoding.constraint import JsonSchema as JsonSchema
from trigraph.runtime.decoding.constraint import Regex as Regex
from trigraph.runtime.decoding.options import Options as Options
from trigraph.runtime.decoding.sampling import Sampling as Sampling
from trigraph.runtime.decoding.stats import Stats as Stats
from trigraph.runtime.engine import Engine as Engine
from trigraph.runtime.loading import load as load
from trigraph.runtime.scheduler.request import Request as Request
from trigraph.runtime.scheduler.waiting import QueueFullError as QueueFullError
