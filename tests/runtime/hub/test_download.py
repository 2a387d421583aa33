"""Models by name, from a hub on loopback: what is downloaded, resumed, checked, and used without a network."""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.command import Run, assert_one_line_error, run_command
from support.servers.hub_server import Hub, hub_server
from trigraph.models.errors import TrigraphError
from trigraph.runtime.hub.download import download
from trigraph.runtime.hub.given import GivenModel, downloaded
from trigraph.runtime.hub.repository import ModelName

huggingface_hub = pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed")
NAME = ModelName("somebody/tiny-GGUF", "Q8_0")


@pytest.fixture
def hub(tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    """A hub with one repository, and an empty cache."""
    from huggingface_hub import constants

    files = {
        "README.md": b"# Tiny",
        "tiny-Q8_0.gguf": tiny_gguf.read_bytes(),
        "tiny-Q2_K.gguf": b"GGUF, but smaller",
        "parts/tiny-BF16-00001-of-00002.gguf": b"one",
        "parts/tiny-BF16-00002-of-00002.gguf": b"two",
        "mtp-tiny-Q8_0.gguf": b"a head",
        "mmproj-F16.gguf": b"a projector",
        "dflash-tiny-Q8_0.gguf": b"a drafter",
    }
    others = {"somebody/tiny": {"model.safetensors": b""}, "else/drafter-GGUF": {"tiny-DSpark-Q8_0.gguf": b"another"}}
    with hub_server({NAME.repository: files, **others}) as served:
        monkeypatch.setattr(constants, "ENDPOINT", served.address)
        template = served.address + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1 << 18)  # of these, whole ones survive
        yield served


def test_a_model_and_what_belongs_to_it(hub: Hub, tiny_gguf: Path) -> None:
    found = download(NAME)
    assert found.path.name == "tiny-Q8_0.gguf" and found.path.read_bytes() == tiny_gguf.read_bytes()
    assert found.mtp is not None and found.mtp.parent == found.path.parent and found.mtp.read_bytes() == b"a head"
    assert {name for name, _, _ in hub.sent} == {"tiny-Q8_0.gguf", "mtp-tiny-Q8_0.gguf", "mmproj-F16.gguf"}
    sent = len(hub.sent)
    assert download(NAME) == found and len(hub.sent) == sent, "downloaded once"


def test_split_parts_lie_side_by_side(hub: Hub) -> None:
    found = download(ModelName(NAME.repository, "BF16"))
    assert [path.name[10:] for path in sorted(found.path.parent.iterdir())] == [
        "00001-of-00002.gguf",
        "00002-of-00002.gguf",
    ]
    assert found.mtp is not None and found.mtp.parent != found.path.parent


def test_a_broken_download_goes_on_where_it_stopped(hub: Hub, tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = tiny_gguf.stat().st_size
    hub.break_after = [3_000_000] + [0] * 20  # and nothing comes for a while
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    with pytest.raises(TrigraphError, match=r"tiny-GGUF:Q8_0: the download failed \(.*run the command again"):
        download(NAME)
    hub.break_after = []
    begun = len(hub.sent)
    assert download(NAME).path.stat().st_size == size
    name, first, sent = hub.sent[begun]
    assert name == "tiny-Q8_0.gguf" and 0 < first <= 3_000_000 and sent == size - first


def test_a_damaged_file_is_found_and_removed(hub: Hub, tiny_gguf: Path, tmp_path: Path) -> None:
    hub.damaged.add("tiny-Q8_0.gguf")
    with pytest.raises(TrigraphError, match=r"tiny-Q8_0\.gguf: was damaged on its way and has been removed"):
        download(NAME)
    hub.damaged.clear()
    assert hashlib.sha256(download(NAME).path.read_bytes()).digest() == hashlib.sha256(tiny_gguf.read_bytes()).digest()


def test_without_a_network(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    with monkeypatch.context() as offline:
        offline.setattr(constants, "HF_HUB_OFFLINE", True)
        with pytest.raises(TrigraphError, match="is not downloaded, and HF_HUB_OFFLINE is set; unset it"):
            download(NAME)
    found = download(NAME)
    with monkeypatch.context() as offline:
        offline.setattr(constants, "HF_HUB_OFFLINE", True)
        assert download(NAME) == found
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    gone = download(NAME)
    assert gone.path == found.path and gone.notice is not None and "127.0.0.1:9 cannot be reached" in gone.notice
    with pytest.raises(TrigraphError, match=r"127\.0\.0\.1:9 cannot be reached .* or set HF_ENDPOINT to a mirror"):
        download(ModelName("somebody/else"))


def test_what_is_not_downloaded_is_not_said_to_be_missing(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    download(NAME)
    other = ModelName(NAME.repository, "BF16")
    with monkeypatch.context() as offline:
        offline.setattr(constants, "HF_HUB_OFFLINE", True)
        with pytest.raises(TrigraphError, match=r"BF16: is not downloaded \(.*tiny-Q8_0\.gguf\), and HF_HUB_OFFLINE"):
            download(other)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(TrigraphError, match=r"BF16: is not downloaded .* and http://127\.0\.0\.1:9 cannot be reached"):
        download(other)


def test_a_hub_that_never_answers(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    found = download(NAME)
    monkeypatch.setattr("trigraph.runtime.hub.download._PATIENCE_CACHED", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        late = download(NAME)
    assert late.path == found.path and late.notice is not None and "cannot be reached" in late.notice


def test_room_on_the_disk(hub: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1_000_000))
    with pytest.raises(TrigraphError, match=r"GB are to be downloaded, and .* has 0\.0 GB free; .* or set HF_HOME"):
        download(NAME)
    assert not hub.sent
    monkeypatch.undo()


def test_a_download_in_part_is_listed_and_removed(
    trigraph: Run, hub: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hub.break_after = [3_000_000] + [0] * 20
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    with pytest.raises(TrigraphError, match="the download failed"):
        download(NAME)
    listed = trigraph("models")
    assert "Downloaded in part; the same command goes on with it: " in listed.out and NAME.repository in listed.out
    assert f"{NAME.repository}: removed 2." in trigraph("rm", NAME.repository).out
    assert not [*(tmp_path / "hub").rglob("*.part")]
    hub.break_after = []
    assert trigraph("pull", NAME).out.strip().endswith("tiny-Q8_0.gguf")
    assert "tiny-Q8_0.gguf" in trigraph("list").out
    assert_one_line_error(trigraph("ps"), "a server says what it has loaded at /v1/models and /health")


def test_what_the_hub_refuses(hub: Hub) -> None:
    for name, message in (
        (ModelName("nobody/nothing"), "has no such repository; check its name, or set HF_TOKEN"),
        (ModelName("somebody/tiny"), "has no GGUF files; look for a repository that has them"),
        (ModelName(NAME.repository, "Q5_K_M"), "has no Q5_K_M; it has BF16, Q2_K, Q8_0"),
    ):
        with pytest.raises(TrigraphError, match=message):
            download(name)
    hub.gated.add(NAME.repository)
    with pytest.raises(TrigraphError, match=r"accept its licence at http://127.*/somebody/tiny-GGUF, and set HF_TOKEN"):
        download(NAME)


def test_the_package_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "huggingface_hub", None)
    with pytest.raises(TrigraphError, match=r"pip install huggingface-hub"):
        download(NAME)


def test_drafters(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One beside the model, and one from a repository of its own; each is downloaded when it is asked for."""
    given = downloaded(str(NAME))
    assert given.companions(None, None, None) == (given.mtp, None, None)
    sent = len(hub.sent)
    for name, content in (("dflash", b"a drafter"), ("else/drafter-GGUF", b"another"), ("else/drafter-GGUF:Q8_0", b"")):
        found = given.companions(None, None, Path(name))
        assert found.draft_model is not None
        assert found.draft_model.read_bytes() == (content or b"another")
    assert [name for name, _, _ in hub.sent[sent:]] == ["dflash-tiny-Q8_0.gguf", "tiny-DSpark-Q8_0.gguf"]
    with pytest.raises(TrigraphError, match=r"somebody/tiny-GGUF: has no dspark-\*.gguf"):
        given.companions(None, None, Path("dspark"))
    monkeypatch.chdir(tmp_path)
    for name in ("model.gguf", "dflash-b.gguf", "dflash-a.gguf"):
        Path(name).touch()
    local = GivenModel(Path("model.gguf"), mmproj=Path("tower.gguf"))
    assert local.companions(None, None, Path("dflash")) == (None, Path("tower.gguf"), Path("dflash-a.gguf"))
    assert local.companions(None, None, Path("dflash-b.gguf")).draft_model == Path("dflash-b.gguf")
    assert local.companions(None, None, Path("missing.gguf")).draft_model == Path("missing.gguf")
    with pytest.raises(TrigraphError, match=r"no dspark-\*.gguf is beside model.gguf; give the file or the repository"):
        local.companions(None, None, Path("dspark"))


@pytest.mark.slow
def test_commands(hub: Hub, tiny_package: Path, tmp_path: Path) -> None:
    """A name is good wherever a model is; the mirror comes from the environment."""
    hub.files[NAME.repository].pop("mtp-tiny-Q8_0.gguf")
    environment = {
        **os.environ,
        "HF_ENDPOINT": hub.address,
        "HF_HOME": str(tmp_path / "home"),
        "HF_HUB_DISABLE_XET": "1",
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }
    for arguments in (
        ["inspect", "-hf", str(NAME)],
        ["run", str(NAME), "-p", "In the", "-n", "8", "--seed", "1"],
        ["export", "-hf", f"hf.co/{NAME}", "-o", tmp_path / "package"],
        ["bench", str(NAME), "-p", "16", "-n", "2", "-r", "1", "-k", "1"],
    ):
        result = run_command(*arguments, env=environment)
        assert result.status == 0, result.err
        assert result.out
    assert (tmp_path / "package" / "tiny-Q8_0.gguf").exists()
    listed = run_command("models", env=environment)
    assert listed.status == 0 and str(NAME.repository) in listed.out and "tiny-Q8_0.gguf" in listed.out
    removed = run_command("models", "rm", NAME.repository, env=environment)
    assert removed.status == 0, removed.err
    assert "tiny" not in run_command("models", env=environment).out
    assert not list((tmp_path / "cache").rglob("*.onnx")) and not list((tmp_path / "home").rglob("*.gguf"))
    assert_one_line_error(
        run_command("models", "rm", "a/b", env=environment), "a/b: is not there; 'trigraph models' lists"
    )


def test_serve_takes_a_name(trigraph: Run, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[Path] = []

    def load(path: Path, **options: object) -> None:
        loaded.append(path)
        raise TrigraphError("enough")

    monkeypatch.setattr("trigraph.runtime.cli.opening.load", load)
    assert_one_line_error(trigraph("serve", "-hf", NAME, "--port", 0), "enough")
    assert loaded[0].name == "tiny-Q8_0.gguf"
