"""Engines as replicas of a deployment on Ray Serve, and the connection of this process, a front, to them."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray reports its use, unless it is told not to

import ray
from ray import serve
from ray._private import ray_constants
from ray.serve._private import replica as serve_replica
from ray.serve.config import AutoscalingConfig, RequestRouterConfig
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle
from ray.serve.schema import LoggingConfig

from trigraph.models.errors import TrigraphError
from trigraph.runtime.engine.config import DEFAULT_WAITING
from trigraph.runtime.engine.loading import load
from trigraph.runtime.execution.threads import default_threads
from trigraph.runtime.server.cluster.remote_engine import RemoteEngine
from trigraph.runtime.server.cluster.replica import Replica, Ticket, Update
from trigraph.runtime.server.cluster.replicas import RayReplicas
from trigraph.runtime.server.heartbeat import alive
from trigraph.runtime.state.sizes import DEFAULT_SEQUENCES

PREFIX_ROUTER = "trigraph.runtime.server.cluster.prefix_router.PrefixRouter"
_GROWING_SECONDS = 5.0  # that requests wait before another engine is started, which takes about as long
_SHRINKING_SECONDS = 600.0  # that fewer would do, before one is stopped
DRAIN_SECONDS = 600.0  # for the completions of a replica that is stopped
_HEALTH_SECONDS = 30.0  # for a replica to answer Ray Serve
_BEAT_SECONDS = 2.0  # between signs of life of a replica that has nothing to tell
_ANSWER_SECONDS = 60.0  # for a replica to describe itself
_STARTS = 5  # of Ray's processes, which on a busy machine do not always find each other in the time that Ray gives them
_QUIET: dict[str, Any] = {"log_to_driver": False, "logging_level": "WARNING"}
_DEPLOYMENT = "engine"
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
    """The arguments of `load`."""
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
            name=_DEPLOYMENT,
            ray_actor_options={"num_cpus": self.threads},
            # What waits at a replica shares prefixes; what waits at the front goes where room is first.
            max_ongoing_requests=2 * sequences,
            health_check_period_s=5,
            health_check_timeout_s=_HEALTH_SECONDS,
            graceful_shutdown_timeout_s=DRAIN_SECONDS,
            request_router_config=RequestRouterConfig(request_router_class=self.router),
            logging_config=LoggingConfig(enable_access_log=False),
            **number,
        )
        # All of them may come to lie on one machine, and one goes on with what another one has begun.
        alike = {"memory_share": 1 / self.most, "context_by_memory": False}
        return deployment.bind(self.model, {**alike, **self.arguments})

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
        _before_shutdown(self.drain)

    async def stream(self, ticket: Ticket) -> AsyncGenerator[str | Update | None, None]:
        """Yields the replica's name, then the updates of `complete`, and None as a sign of life in between."""
        yield serve.get_replica_context().replica_id.unique_id
        async with aclosing(self.complete(ticket)) as updates, aclosing(alive(updates, _BEAT_SECONDS, None)) as found:
            async for update in found:
                yield update

    def check_health(self) -> None:
        """Raises when the model's file has changed: Ray Serve then replaces the replica."""
        self.engine.model.weights.check()

    def record_replica_metadata(self) -> dict[str, Any]:
        """Tells Ray Serve's routers which model the replica has."""
        return {"weights": self.engine.identity.weights, "fingerprint": self.fingerprint}


def engines_on(address: str | None, name: str, deployed: Deployed | None) -> RemoteEngine:
    """Connects to the engines of the model `name` on the Ray cluster at `address`.

    Without an address, to those of a cluster on this machine that ends with this process. They are deployed or changed
    first, unless `deployed` is None; engines of other names are left as they are. Raises TrigraphError when the cluster
    cannot be reached, has no such engines, or they do not start.
    """
    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    if address is None and deployed is not None:
        _start_cluster(max(deployed.threads * deployed.most, os.cpu_count() or 1))
    else:
        _join_cluster(address or "local")
    application = application_name(name)
    try:
        if deployed is None:
            handle = _deployed_engines(application)
        else:
            serve.start(proxy_location="Disabled")
            handle = serve.run(deployed.application(), name=application, route_prefix=None)
        description = handle.describe.remote().result(timeout_s=_ANSWER_SECONDS)
        return RemoteEngine(description, RayReplicas(handle), DEFAULT_WAITING)
    except (RuntimeError, TimeoutError, RayServeException) as error:
        reason = _refusal(application) or error or "no replica answers"
        raise TrigraphError(f"the engines of {application} do not start: {reason}") from error


def _refusal(application: str) -> str | None:
    """What the engines said that did not start, if Ray Serve knows it."""
    with suppress(Exception):  # of a cluster that has gone, whatever Ray raises
        found = serve.status().applications[application]
        said = [each.message for each in found.deployments.values()]
        refusals: list[str] = re.findall(rf"{TrigraphError.__name__}: (.+)", "\n".join(said))
        return refusals[-1].strip()
    return None


def _start_cluster(cpus: int) -> None:
    """Starts a cluster on this machine that ends with this process."""
    _stay_on_this_machine()
    # Ray starts workers at a niceness of 15; engines shall compute like one in this process.
    os.environ.setdefault(ray_constants.RAY_WORKER_NICENESS, "0")
    for attempt in range(1, _STARTS + 1):
        try:
            ray.init("local", include_dashboard=False, num_cpus=cpus, **_QUIET)
            return
        except Exception as error:  # Ray raises the class Exception itself, too
            ray.shutdown()
            if attempt == _STARTS:
                raise TrigraphError(f"Ray does not start on this machine: {error}") from error


def _join_cluster(address: str) -> None:
    try:
        ray.init(address, **_QUIET)
    except (ConnectionError, OSError, ValueError) as error:
        raise TrigraphError(f"no Ray cluster answers at {address} ({error}); start one: ray start --head") from error


def application_name(model: str) -> str:
    """The name of the Ray Serve application with the engines of a model, by the model's name to clients."""
    return re.sub(r"[^\w.-]", "-", model) or "trigraph"


def _deployed_engines(application: str) -> DeploymentHandle:
    found = {name for name, each in serve.status().applications.items() if _DEPLOYMENT in each.deployments}
    if application not in found:
        there = f"it has those of {', '.join(sorted(found))} (choose with --alias)" if found else "it has none at all"
        raise TrigraphError(f"the cluster has no engines of {application}; {there}; --replicas deploys them")
    return serve.get_deployment_handle(_DEPLOYMENT, application)


def _stay_on_this_machine() -> None:
    """Has all that is started from now on listen on the loopback address: what Ray does where clusters are unusual."""
    os.environ[ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR] = "0"
    ray_constants.ENABLE_RAY_CLUSTER = False


def _before_shutdown(act: Callable[[], None]) -> None:
    """Has Ray Serve call `act` in this process, a replica, when it is to end: before its requests are waited for."""
    shutdown = serve_replica.Replica.perform_graceful_shutdown

    async def told(replica: serve_replica.Replica) -> None:
        act()
        await shutdown(replica)

    serve_replica.Replica.perform_graceful_shutdown = told


def _bind_to_loopback() -> None:
    """Has the port of Ray Serve in this process, a replica, listen on the loopback address: it is opened later."""
    add_port = serve_replica.add_port_to_grpc_server
    serve_replica.add_port_to_grpc_server = lambda server, address: add_port(server, address.replace("[::]", _LOOPBACK))
