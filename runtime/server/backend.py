"""What continues the prompts of a server's requests."""

from __future__ import annotations

from typing import TypeAlias

from trigraph.runtime.engine.engine import Engine
from trigraph.runtime.server.cluster.remote_engine import RemoteEngine

Backend: TypeAlias = Engine | RemoteEngine
"""An engine in this process, or replicas of one elsewhere."""
