"""The applications of a Ray cluster: which one a front takes, and which are left alone."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from support.fakes.engine import TEMPLATE, engine_of
from support.fakes.rounds import LOGITS
from trigraph.models.errors import TrigraphError

pytest.importorskip("ray", reason="ray is not installed: no replicas (pip install 'ray[serve]')")

import ray
from ray import serve

from trigraph.runtime.cli.arguments import ModelArguments
from trigraph.runtime.cli.opening import load_arguments
from trigraph.runtime.cli.serve import ReplicaArguments
from trigraph.runtime.server.cluster import deployment
from trigraph.runtime.server.cluster.deployment import Deployed, application_name, engines_on
from trigraph.runtime.server.cluster.replica import Replica


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> dict[str, SimpleNamespace]:
    """The applications of a running cluster that needs no Ray; what is deployed is added."""
    replica = Replica(engine_of(LOGITS, context=200, template=TEMPLATE)[0])
    applications = {"one": SimpleNamespace(deployments={"engine": None}), "page": SimpleNamespace(deployments={})}
    described = SimpleNamespace(remote=lambda: SimpleNamespace(result=lambda timeout_s: replica.describe()))
    handle = SimpleNamespace(describe=described, options=lambda **_: SimpleNamespace(stream=None))

    def run(application: object, *, name: str, route_prefix: str | None) -> SimpleNamespace:
        applications[name] = SimpleNamespace(deployments={"engine": application})
        return handle

    monkeypatch.setattr(ray, "init", lambda *_, **__: None)
    monkeypatch.setattr(serve, "start", lambda **_: None)
    monkeypatch.setattr(serve, "run", run)
    monkeypatch.setattr(serve, "status", lambda: SimpleNamespace(applications=applications))
    monkeypatch.setattr(serve, "get_deployment_handle", lambda *_: handle)
    return applications


def test_a_second_model_leaves_the_first_one_alone(cluster: dict[str, SimpleNamespace]) -> None:
    first = cluster["one"]
    engines_on("auto", "org/two", Deployed("two.gguf"))
    assert [*cluster] == ["one", "page", "org-two"]
    assert cluster["one"] is first
    engines_on("auto", "org/two", None)


def test_a_front_without_engines_says_which_there_are(cluster: dict[str, SimpleNamespace]) -> None:
    with pytest.raises(TrigraphError, match=r"no engines of three; it has those of one \(choose with --alias\)"):
        engines_on("auto", "three", None)
    del cluster["one"]
    with pytest.raises(TrigraphError, match="no engines of three; it has none at all; --replicas deploys them"):
        engines_on("auto", "three", None)


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("error", [RuntimeError("no port file"), Exception("timed out during startup")])
def test_a_cluster_that_does_not_start_is_started_again(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[None] = []
    starts: Iterator[Exception] = iter([error, error])

    def start(*_: object, **__: object) -> None:
        for failure in starts:
            raise failure

    monkeypatch.setenv("RAY_WORKER_NICENESS", "0")
    monkeypatch.setattr(deployment, "_stay_on_this_machine", lambda: None)
    monkeypatch.setattr(ray, "shutdown", lambda: ended.append(None))
    monkeypatch.setattr(ray, "init", start)
    engines_on(None, "two", Deployed("two.gguf"))
    assert len(ended) == 2
    starts = itertools.repeat(error)
    with pytest.raises(TrigraphError, match=f"Ray does not start on this machine: {error}"):
        engines_on(None, "two", Deployed("two.gguf"))


def test_engines_find_files_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a cluster run in folders of their own; what is found beside a link's name stays beside it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "blob").touch()
    (tmp_path / "model.gguf").symlink_to("blob")
    monkeypatch.setattr(deployment, "engines_on", lambda address, name, deployed: deployed)
    files: dict[str, Any] = {name: Path(f"{name}.gguf") for name in ("mtp", "mmproj", "draft_model")}
    model = ModelArguments(model=Path("model.gguf"), cache_dir=Path("cache"), **files)
    deployed = ReplicaArguments(replicas=1).engines(model.path, "m", load_arguments(model, speculation=True))
    assert isinstance(deployed, Deployed)
    assert deployed.model == str(tmp_path / "model.gguf")
    assert deployed.arguments["cache_dir"] == tmp_path / "cache"
    options = deployed.arguments["options"]
    assert {name: getattr(options, name) for name in files} == {name: tmp_path / file for name, file in files.items()}


def test_applications_have_names_that_ray_takes() -> None:
    names = ["Qwen3.6-27B-UD-Q4_K_XL", "org/model:v2", "a#b", ""]
    assert [*map(application_name, names)] == ["Qwen3.6-27B-UD-Q4_K_XL", "org-model-v2", "a-b", "trigraph"]


def test_engines_that_do_not_start_say_why(
    cluster: dict[str, SimpleNamespace], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray Serve itself says that a deployment failed, and keeps what its replicas raised."""
    said = "failed to start 3 times:\n  File ...\ntrigraph.models.errors.TrigraphError: device is tpu; use cpu\n"

    def run(application: object, *, name: str, route_prefix: str | None) -> None:
        cluster[name] = SimpleNamespace(deployments={"engine": SimpleNamespace(message=said)})
        raise RuntimeError("Failed to update the deployments ['engine'].")

    monkeypatch.setattr(serve, "run", run)
    with pytest.raises(TrigraphError, match=r"the engines of two do not start: device is tpu; use cpu$"):
        engines_on("auto", "two", Deployed("model"))
