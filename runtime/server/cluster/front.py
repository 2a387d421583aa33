"""Fronts as a deployment of their own, behind Ray's proxies.

`serve run trigraph.runtime.server.cluster.front:app model=MODEL.gguf replicas=4 fronts=2`
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from fastapi import FastAPI
from pydantic import BaseModel
from ray import serve
from ray.serve.handle import DeploymentHandle
from ray.serve.schema import LoggingConfig
from ray.util.metrics import Gauge

from trigraph.runtime.engine.config import DEFAULT_WAITING
from trigraph.runtime.server.app import App, ServedModel
from trigraph.runtime.server.cluster.deployment import DRAIN_SECONDS, Deployed
from trigraph.runtime.server.cluster.remote_engine import RemoteEngine
from trigraph.runtime.server.cluster.replicas import RayReplicas
from trigraph.runtime.server.metrics import Metrics
from trigraph.runtime.server.routes import routes
from trigraph.runtime.server.settings import Settings

_PUBLISHING_SECONDS = 5.0


class Front:
    """A replica that answers HTTP: the server, whose engines are those of another deployment."""

    async def __init__(self, engines: DeploymentHandle, settings: Settings) -> None:  # type: ignore[misc]
        description = await engines.describe.remote()  # for as long as the engines load
        engine = RemoteEngine(description, RayReplicas(engines), DEFAULT_WAITING)
        self._model = ServedModel(engine, settings)
        self._publishing = asyncio.create_task(publish(self._model.metrics))

    def __serve_build_asgi_app__(self) -> FastAPI:
        return routes(App.of(self._model))


async def publish(metrics: Metrics) -> None:
    """Has Ray export a front's metrics, for good. Counters become gauges there, which Prometheus does not mind."""
    gauges: dict[str, Gauge] = {}
    while True:
        for sample in metrics.samples():
            name = sample.name.replace(":", "_")
            if name not in gauges:
                gauges[name] = Gauge(name, tag_keys=(*sample.labels, "front"))
            gauges[name].set(sample.value, {**sample.labels, "front": str(os.getpid())})
        await asyncio.sleep(_PUBLISHING_SECONDS)


class Arguments(BaseModel):
    """Arguments of the application `app`, on the command line or in a configuration file."""

    model: str
    replicas: int = 1
    max_replicas: int | None = None
    fronts: int = 1
    alias: str | None = None
    api_keys: tuple[str, ...] = ()
    threads: int | None = None
    context: int | None = None
    sequences: int | None = None
    kv_memory: int | None = None
    """Bytes."""
    checkpoint_memory: int | None = None
    cache_dir: str | None = None
    cache_size: int | None = None


def app(arguments: Arguments) -> serve.Application:
    """Fronts and engines."""
    settings = Settings(
        model=arguments.alias or Path(arguments.model).name.removesuffix(".gguf"),
        host="0.0.0.0",
        api_keys=arguments.api_keys,
    )
    names = ("threads", "context", "sequences", "kv_memory", "checkpoint_memory", "cache_dir", "cache_size")
    given = {name: value for name in names if (value := getattr(arguments, name)) is not None}
    engines = Deployed(arguments.model, arguments.replicas, arguments.max_replicas, given).application()
    front = serve.deployment(
        serve.ingress()(Front),
        name="front",
        num_replicas=arguments.fronts,
        max_ongoing_requests=DEFAULT_WAITING,
        graceful_shutdown_timeout_s=DRAIN_SECONDS,
        logging_config=LoggingConfig(enable_access_log=False),
    )
    return front.bind(engines, settings)
