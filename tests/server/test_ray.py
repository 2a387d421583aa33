"""Replicas of an engine on Ray Serve, one of which is killed while it streams."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncGenerator, Iterator
from importlib import import_module
from pathlib import Path

import pytest

from trigraph.models.errors import TrigraphError
from trigraph.models.tiny import TINY_GGUF
from trigraph.runtime import Options, Sampling, load

pytest.importorskip("ray", reason="ray is not installed: no replicas (pip install 'ray[serve]')")

from support.servers.held import HeldReplica
from support.servers.ray_cluster import await_replicas, engines, kill, listening, processor_seconds, replica_ids
from trigraph.runtime.requests.handle import Handle
from trigraph.runtime.server.cluster.remote_engine import RemoteEngine
from trigraph.runtime.server.cluster.replica import Ticket, Update

PROMPTS = [f"In the beginning there was number {number}, and it said" for number in range(6)]


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file that holds streams back while it exists."""
    return tmp_path_factory.mktemp("hold") / "hold"


@pytest.fixture
def hold(held: Path) -> Iterator[Path]:
    """The same; streams are held back until it is removed."""
    held.touch()
    yield held
    held.unlink(missing_ok=True)


@pytest.fixture(scope="module")
def engine(held: Path) -> Iterator[RemoteEngine]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "disabled")  # else Ray writes a token into the home folder
        # Ray Serve leaves it to the front to find a replica that is silent.
        patch.setattr("trigraph.runtime.server.cluster.deployment._HEALTH_SECONDS", 3600.0)
        patch.setattr("trigraph.runtime.server.cluster.deployment.EngineReplica", HeldReplica)
        patch.setenv("PYTHONPATH", str(Path(__file__).parents[1]), prepend=os.pathsep)
        with engines(TINY_GGUF, 2, sequences=8, hold=held) as engine:
            yield engine


def asked(number: int, **others: object) -> Options:
    sampling = Sampling(temperature=0.8, repeat_penalty=1.1, seed=number)
    return Options(sampling, **{"max_tokens": 200, "ignore_eos": True, **others})  # type: ignore[arg-type]


async def text_of(stream: Handle) -> str:
    return "".join([piece async for piece in stream])


async def all_begun(engine: RemoteEngine) -> list[asyncio.Task[str]]:
    """The texts of all prompts, which have begun."""
    texts = []
    for i, prompt in enumerate(PROMPTS):
        stream = engine.generate(engine.tokenizer.encode(prompt), asked(i))
        texts.append(asyncio.create_task(text_of(stream)))
        while not stream.ids:  # so that the next one goes to another replica
            await asyncio.sleep(0.005)
    return texts


def test_streams_outlive_a_replica_that_is_killed(
    engine: RemoteEngine, hold: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = load(TINY_GGUF, threads=1)
    expected = [local.generate(prompt, asked(i)).run() for i, prompt in enumerate(PROMPTS)]

    tickets: list[Ticket] = []
    complete = engine.replicas.complete

    def recorded(ticket: Ticket) -> AsyncGenerator[Update, None]:
        tickets.append(ticket)
        return complete(ticket)

    monkeypatch.setattr(engine.replicas, "complete", recorded)

    async def ask() -> list[str]:
        texts = await all_begun(engine)
        kill(replica_ids()[0])
        hold.unlink()
        return await asyncio.gather(*texts)

    assert len(replica_ids()) == 2
    assert asyncio.run(ask()) == expected
    assert not engine.streams
    assert any(ticket.completed for ticket in tickets), "no stream was cut"


def test_a_conversation_goes_where_its_state_is(engine: RemoteEngine) -> None:
    async def talk(number: int) -> int:
        text, stream = f"{number} " + "It was a dark night; " * 20, None
        for _ in range(2):
            stream = engine.generate(engine.tokenizer.encode(text), asked(number, max_tokens=8))
            text += await text_of(stream) + " And then it was "
        assert stream is not None
        return stream.reused

    async def ask() -> list[int]:
        return [await talk(number) for number in range(8)]  # a busy replica's would go elsewhere

    assert min(asyncio.run(ask())) > 60


def test_a_replica_that_falls_silent_is_lost(engine: RemoteEngine, hold: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trigraph.runtime.server.cluster.replicas.SILENCE_SECONDS", 3.0)

    async def ask() -> list[str]:
        texts = await all_begun(engine)
        os.kill(stopped, signal.SIGSTOP)  # as when its machine has lost its power: no connection ends
        texts += await all_begun(engine)  # some of which Ray sends there, too
        hold.unlink()
        return await asyncio.gather(*texts)

    local = load(TINY_GGUF, threads=1)
    expected = [local.generate(prompt, asked(i)).run() for i, prompt in enumerate(PROMPTS)]
    await_replicas(2)
    stopped = replica_ids()[0]
    try:
        assert asyncio.run(asyncio.wait_for(ask(), 900)) == 2 * expected
    finally:
        os.kill(stopped, signal.SIGCONT)


def test_streams_that_are_left_end_at_the_replica(engine: RemoteEngine) -> None:
    async def ask() -> float:
        long = [engine.generate([1, 2, 3 + i], asked(i, max_tokens=None)) for i in range(8)]
        for stream in long:
            stream.begin()
        while min(len(stream.ids) for stream in long) < 10:
            await asyncio.sleep(0.005)
        for stream in long:
            stream.cancel()
        before = processor_seconds()
        await asyncio.gather(*(text_of(engine.generate([1, 2, i], asked(i, max_tokens=2))) for i in range(8)))
        return processor_seconds() - before

    assert asyncio.run(ask()) < 5  # the long ones would take more


def test_replicas_have_the_priority_of_this_process(engine: RemoteEngine) -> None:
    priorities = {os.getpriority(os.PRIO_PROCESS, process) for process in replica_ids()}
    assert priorities == {os.getpriority(os.PRIO_PROCESS, 0)}


def test_nothing_listens_on_the_network(engine: RemoteEngine) -> None:
    found = listening()
    assert len(found) > 5
    assert [each for each in found if not each.startswith("127.")] == []


def test_errors_are_those_of_the_engine(engine: RemoteEngine) -> None:
    with pytest.raises(TrigraphError, match="token ids must be from 0"):
        engine.generate([10**6], asked(0))
    stream = engine.generate([1, 2, 3], asked(0, draft_tokens=99))
    with pytest.raises(TrigraphError, match="draft_tokens is 99"):
        asyncio.run(text_of(stream))


def test_the_manifest_is_one_that_ray_takes() -> None:
    yaml = pytest.importorskip("yaml")
    from ray.serve.schema import ServeDeploySchema

    from trigraph.runtime.server.cluster.front import Arguments

    manifest = yaml.safe_load((Path(__file__).parents[2] / "docs" / "kuberay.yaml").read_text())
    (application,) = ServeDeploySchema.model_validate(yaml.safe_load(manifest["spec"]["serveConfigV2"])).applications
    arguments = Arguments.model_validate(application.args)
    assert set(application.args) <= set(Arguments.model_fields)
    cluster = manifest["spec"]["rayClusterConfig"]  # fields as KubeRay's types of ray.io/v1 have them
    assert set(cluster) == {"rayVersion", "enableInTreeAutoscaling", "headGroupSpec", "workerGroupSpecs"}
    assert set(cluster["headGroupSpec"]) == {"rayStartParams", "template"}
    (group,) = cluster["workerGroupSpecs"]
    assert set(group) == {"groupName", "replicas", "minReplicas", "maxReplicas", "rayStartParams", "template"}
    parameters = [*cluster["headGroupSpec"]["rayStartParams"].values(), *group["rayStartParams"].values()]
    assert all(isinstance(value, str) for value in parameters)
    (container,) = group["template"]["spec"]["containers"]
    most = group["maxReplicas"] * int(container["resources"]["requests"]["cpu"])
    assert arguments.threads is not None
    assert arguments.max_replicas is not None
    assert arguments.max_replicas * arguments.threads + arguments.fronts <= most
    package, _, name = application.import_path.partition(":")
    assert callable(getattr(import_module(package), name))
