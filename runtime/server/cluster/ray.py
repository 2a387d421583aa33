"""Engines as replicas of a deployment on Ray Serve.

With `trigraph serve --replicas` this process is the front: the usual server, whose engine is `engines_on`. With
`serve run trigraph.runtime.server.cluster.ray:app model=MODEL.gguf` fronts are a deployment as well, behind Ray's
proxies.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray reports its use, unless it is told not to

import ray
from fastapi import FastAPI
from pydantic import BaseModel
from ray import serve
from ray._private import ray_constants
from ray.exceptions import RayError, RayTaskError
from ray.serve._private import replica as serve_replica
from ray.serve.config import AutoscalingConfig, RequestRouterConfig
from ray.serve.exceptions import BackPressureError, RayServeException, RequestCancelledError
from ray.serve.handle import DeploymentHandle
from ray.serve.schema import LoggingConfig
from ray.util.metrics import Gauge

from trigraph.models.errors import TrigraphError
from trigraph.runtime.config import DEFAULT_WAITING
from trigraph.runtime.execution.threads import default_threads
from trigraph.runtime.loading import load
from trigraph.runtime.requests.options import Options
from trigraph.runtime.scheduler.waiting import QueueFullError
from trigraph.runtime.server.app import make_app
from trigraph.runtime.server.cluster.remote import RemoteEngine, ReplicaLostError
from trigraph.runtime.server.cluster.replica import Description, Replica, Ticket, Update
from trigraph.runtime.server.heartbeat import alive
from trigraph.runtime.server.metrics import Metrics
from trigraph.runtime.server.service import Service
from trigraph.runtime.server.settings import Settings
from trigraph.runtime.state.sizes import DEFAULT_SEQUENCES

NAME = "trigraph"
PREFIX_ROUTER = "trigraph.runtime.server.cluster.prefix_router.PrefixRouter"
_PUBLISHING_SECONDS = 5.0
_GROWING_SECONDS = 5.0  # that requests wait before another engine is started, which takes about as long
_SHRINKING_SECONDS = 600.0  # that fewer would do, before one is stopped
_DRAIN_SECONDS = 600.0  # for the completions of a replica that is stopped
_BEAT_SECONDS = 2.0  # between signs of life of a replica that has nothing to tell
_SILENCE_SECONDS = 30.0  # after which it counts as lost: no connection ends when a machine loses its power
_LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Deployed:
    """How many engines there are, and how each is loaded."""

    model: str
    """The path of a package or GGUF file, on every node."""
    replicas: int = 1
    max_replicas: int | None = None
    """More than `replicas`: as many as the requests that wait call for."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Those of `load`."""
    router: str = PREFIX_ROUTER
    """The class of Ray Serve's request router."""

    def application(self) -> serve.Application:
        """The engines alone."""
        sequences = self.arguments.get("sequences") or DEFAULT_SEQUENCES
        number: dict[str, Any] = {"num_replicas": self.replicas}
        if self.max_replicas is not None:
            number = {
                "autoscaling_config": AutoscalingConfig(
                    min_replicas=self.replicas,
                    max_replicas=self.most,
                    target_ongoing_requests=sequences,  # those above it wait
                    upscale_delay_s=_GROWING_SECONDS,
                    downscale_delay_s=_SHRINKING_SECONDS,
                )
            }
        deployment = serve.deployment(
            EngineReplica,
            name="engine",
            ray_actor_options={"num_cpus": self.threads},
            # What waits at a replica shares prefixes; what waits at the front goes where room is first.
            max_ongoing_requests=2 * sequences,
            health_check_period_s=5,
            health_check_timeout_s=30,
            graceful_shutdown_timeout_s=_DRAIN_SECONDS,
            request_router_config=RequestRouterConfig(request_router_class=self.router),
            logging_config=LoggingConfig(enable_access_log=False),
            **number,
        )
        # All of them may come to lie on one machine.
        return deployment.bind(self.model, {"memory_share": 1 / self.most, **self.arguments})

    @property
    def threads(self) -> int:
        """Processors of a replica."""
        return self.arguments.get("threads") or default_threads()

    @property
    def most(self) -> int:
        """Replicas at most."""
        return max(self.replicas, self.max_replicas or 0)


class EngineReplica(Replica):
    """A replica that loads its engine."""

    def __init__(self, model: str, arguments: dict[str, Any]) -> None:
        if ray.util.get_node_ip_address() == _LOOPBACK:
            _bind_to_loopback()
        super().__init__(load(Path(model), **arguments))

    async def stream(self, ticket: Ticket) -> AsyncGenerator[str | Update | None, None]:
        """See `complete`; the replica's name before, and None as a sign of life."""
        yield serve.get_replica_context().replica_id.unique_id
        async with aclosing(self.complete(ticket)) as updates, aclosing(alive(updates, _BEAT_SECONDS, None)) as found:
            async for update in found:
                yield update

    def check_health(self) -> None:
        """See Ray Serve: raises when the model's file is not what it was."""
        self.engine.model.weights.check()

    def record_replica_metadata(self) -> dict[str, Any]:
        """See Ray Serve: what routers know of a replica."""
        return {"weights": self.engine.identity.weights, "fingerprint": self.fingerprint}


class RayReplicas:
    """See Replicas: those of a deployment."""

    def __init__(self, handle: DeploymentHandle) -> None:
        self.handle = handle
        # Updates come over gRPC: as objects of Ray's store each would cost a front twice the time.
        self._stream = handle.options(stream=True, _by_reference=False).stream

    async def complete(self, ticket: Ticket) -> AsyncGenerator[Update, None]:
        """See Replicas."""
        updates = self._stream.remote(ticket)
        replica, patience = None, None  # it may wait for a replica that has room
        try:
            while True:
                async with asyncio.timeout(patience):
                    update = await anext(updates)
                patience = _SILENCE_SECONDS
                if isinstance(update, str):
                    replica = update
                elif update is not None:
                    yield update
        except StopAsyncIteration:
            return
        except TimeoutError as error:
            raise ReplicaLostError(f"no sign of life for {_SILENCE_SECONDS:.0f} s", replica) from error
        except Exception as error:
            raise _explained(error, replica) from error
        finally:
            updates.cancel()

    async def describe(self) -> Description:
        """See Replicas."""
        return cast(Description, await self.handle.describe.remote())


def _explained(error: Exception, replica: str | None) -> BaseException:
    """What Ray's error means for a ticket."""
    cause = error.cause if isinstance(error, RayTaskError) else error
    if isinstance(cause, RequestCancelledError):
        return asyncio.CancelledError()
    if isinstance(cause, BackPressureError):
        return QueueFullError("too many requests wait already; try again later")
    if isinstance(cause, RayServeException) or (isinstance(cause, RayError) and not isinstance(cause, RayTaskError)):
        return ReplicaLostError(str(cause), replica)
    return cause


def engines_on(address: str | None, deployed: Deployed | None) -> RemoteEngine:
    """Engines of the Ray cluster at `address`, or of one on this machine which ends with this process.

    They are deployed or changed first, unless `deployed` is None. Raises TrigraphError when the cluster cannot be
    reached, or the engines do not start.
    """
    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    own: dict[str, Any] = {}
    if address is None and deployed is not None:
        _stay_on_this_machine()
        cpus = max(deployed.threads * deployed.most, os.cpu_count() or 1)
        own = {"include_dashboard": False, "num_cpus": cpus}
    try:
        ray.init(address or "local", log_to_driver=False, logging_level="WARNING", **own)
    except (ConnectionError, OSError, ValueError) as error:
        raise TrigraphError(f"no Ray cluster answers at {address} ({error}); start one: ray start --head") from error
    try:
        if deployed is None:
            handle = serve.get_deployment_handle("engine", NAME)
        else:
            serve.start(proxy_location="Disabled")
            handle = serve.run(deployed.application(), name=NAME, route_prefix=None)
        return RemoteEngine(handle.describe.remote().result(), RayReplicas(handle), DEFAULT_WAITING)
    except (RuntimeError, RayServeException) as error:
        raise TrigraphError(f"the engines do not start: {error}") from error


def _stay_on_this_machine() -> None:
    """Has all that is started from now on listen on the loopback address: what Ray does where clusters are unusual."""
    os.environ[ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR] = "0"
    ray_constants.ENABLE_RAY_CLUSTER = False


def _bind_to_loopback() -> None:
    """The same for the port of Ray Serve in this process, a replica, which is opened after the replica is made."""
    add_port = serve_replica.add_port_to_grpc_server
    serve_replica.add_port_to_grpc_server = lambda server, address: add_port(server, address.replace("[::]", _LOOPBACK))


class Front:
    """A replica that answers HTTP: the server, whose engines are those of another deployment."""

    async def __init__(self, engines: DeploymentHandle, settings: Settings) -> None:  # type: ignore[misc]
        replicas = RayReplicas(engines)
        engine = RemoteEngine(await replicas.describe(), replicas, DEFAULT_WAITING)
        self._service = Service(engine, replace(settings, defaults=Options(engine.sampling)))
        self._publishing = asyncio.create_task(publish(self._service.metrics))

    def __serve_build_asgi_app__(self) -> FastAPI:
        return make_app(self._service)


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
    """Those of `serve run trigraph.runtime.server.cluster.ray:app`, and of an application in a configuration file."""

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
        graceful_shutdown_timeout_s=_DRAIN_SECONDS,
        logging_config=LoggingConfig(enable_access_log=False),
    )
    return front.bind(engines, settings)
