"""A block drafter is a file beside the model: how it is named, cached, refused, shown and timed."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from support.command import Run, assert_one_line_error
from support.models.drafters import drafter_of
from support.models.random_gguf import write_random
from trigraph.exporter import ExportOptions, read_manifest
from trigraph.models.drafter.geometries import drafter_geometry
from trigraph.models.errors import TrigraphError
from trigraph.models.model import open_model
from trigraph.runtime import Options, Sampling, load
from trigraph.runtime.bench.options import BenchOptions
from trigraph.runtime.bench.request_options import RequestOptions
from trigraph.runtime.device.device import Device
from trigraph.runtime.engine.package_cache import cached_package
from trigraph.runtime.execution import parts

GREEDY = Options(Sampling(temperature=0), max_tokens=24, ignore_eos=True)


@pytest.fixture(scope="module")
def drafter(nano_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return drafter_of(nano_gguf, tmp_path_factory.mktemp("drafter") / "dflash-nano.gguf", "dflash2")


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_it_drafts_beside_the_head(nano_gguf: Path, drafter: Path, operator_library: Path) -> None:
    with load(nano_gguf, threads=1, context=128, draft_model=drafter) as engine:
        assert engine.steps.block is not None and engine.steps.can_draft
        assert engine.model.speculation == "on, by the MTP head or a block drafter (DFlash2)"
        plain, drafted = (engine.generate([5, 6, 7], GREEDY, draft_tokens=tokens) for tokens in (0, 7))
        assert plain.run() == drafted.run()
        assert drafted.stats.drafted > 7
        assert drafted.stats.speculation == "on, 7 drafts a round as asked"
        for drafter_name in ("mtp", "block"):
            asked = engine.generate([5, 6, 7], GREEDY, draft_tokens=7, drafter=drafter_name)
            assert asked.run() == plain.text
            assert asked.stats.drafted > 7


@pytest.mark.slow
def test_its_keys_and_values_count_as_state(nano_gguf: Path, drafter: Path, operator_library: Path) -> None:
    with (
        load(nano_gguf, threads=1, context=128) as engine,
        load(nano_gguf, context=128, draft_model=str(drafter)) as other,
    ):
        names = {name for name in other.steps.state.paged if name.startswith("draft.")}
        assert names and any(name.startswith("mtp.") for name in other.steps.state.paged)
        size = sum(other.steps.state.paged[name].row_bytes for name in names)
        options = Options(Sampling(seed=3), max_tokens=24, ignore_eos=True)
        assert engine.generate([5, 6, 7], options).run() == other.generate([5, 6, 7], options, draft_tokens=7).run()
        assert other.steps.state.page_bytes == engine.steps.state.page_bytes + size


@pytest.mark.slow
def test_a_package_is_made_anew_for_another_drafter(nano_gguf: Path, drafter: Path, tmp_path: Path) -> None:
    copy = tmp_path / "dflash.gguf"
    copy.write_bytes(drafter.read_bytes())
    options = ExportOptions(draft_model=copy)
    entry = cached_package(nano_gguf, options)
    assert entry != cached_package(nano_gguf, ExportOptions())
    made = (entry.folder / "manifest.json").stat().st_mtime_ns
    assert cached_package(nano_gguf, options) == entry
    assert (entry.folder / "manifest.json").stat().st_mtime_ns == made
    copy.unlink()
    drafter_of(nano_gguf, copy, "dspark")
    assert cached_package(nano_gguf, options) == entry
    assert json.loads((entry.folder / "manifest.json").read_text())["drafter"]["kind"] == "dspark"


def test_a_head_beside_the_model_is_taken_too(tmp_path: Path, operator_library: Path) -> None:
    """One that is found in the folder, and one that is named."""
    trunk, head = tmp_path / "nano.gguf", tmp_path / "mtp-nano.gguf"
    write_random(trunk, "qwen35", preset="nano", mtp=False)
    write_random(head, "qwen35", preset="nano", mtp="only")
    drafter = drafter_of(trunk, tmp_path / "dflash-nano.gguf", "dflash")
    for options in (ExportOptions(), ExportOptions(mtp=head)):
        with load(trunk, threads=1, context=64, draft_model=drafter, options=options) as engine:
            assert engine.steps.block is not None and engine.steps.can_draft
    head.unlink()
    with load(trunk, threads=1, context=64, draft_model=drafter) as engine:
        assert engine.steps.block is not None and not engine.steps.can_draft
        assert engine.model.speculation == "on, by a block drafter (DFlash)"


def test_webgpu_runs_none(nano_gguf: Path, drafter: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Gpu(Device):
        name, arithmetic = "webgpu", "another's"

    monkeypatch.setattr(parts, "open_devices", lambda *asked: [Gpu(None, "WebGPU")])
    with pytest.raises(TrigraphError, match="block drafters do not run on webgpu; use device=cpu, or leave"):
        load(nano_gguf, draft_model=drafter, device="webgpu")


def test_its_name_may_be_a_string(nano_gguf: Path, drafter: Path) -> None:
    """As those of other files in the options of an export, which programs write without a type checker."""
    options = ExportOptions(draft_model=str(drafter))  # type: ignore[arg-type]
    assert read_manifest(cached_package(nano_gguf, options).folder).drafter is not None


def test_a_package_has_its_own(tiny_package: Path, drafter: Path) -> None:
    with pytest.raises(TrigraphError, match="is a package; draft_model is for the export"):
        load(tiny_package, draft_model=drafter)
    with pytest.raises(TrigraphError, match="is a package; options are for the export"):
        load(tiny_package, options=ExportOptions(draft_model=drafter))
    load(tiny_package, options=ExportOptions()).close()


@pytest.mark.slow
def test_commands_take_it(trigraph: Run, nano_gguf: Path, drafter: Path, operator_library: Path) -> None:
    options = ["-p", "hello", "-n", 12, "--seed", 1, "--ignore-eos", "--draft-tokens", 3]
    plain = trigraph("run", nano_gguf, *options)
    drafted = trigraph("run", nano_gguf, "-md", drafter, "-v", *options)
    assert (drafted.status, drafted.out) == (0, plain.out)
    assert "speculation on, by the MTP head or a block drafter (DFlash2)" in drafted.err
    assert "speculation on, 3 drafts a round as asked" in drafted.err
    shown = trigraph("run", nano_gguf, "--draft-model", drafter, "--show-drafts", *options)
    assert shown.status == 0
    assert "the same text" in shown.err
    package = ["run", nano_gguf.parent, "-md", drafter]
    assert_one_line_error(trigraph(*package, "-p", "a"), "give --draft-model when exporting")
    hint = trigraph("run", nano_gguf, "--model-draft", drafter)
    assert_one_line_error(hint, "unknown option --model-draft: use --draft-model with a block drafter")


def test_a_benchmark_has_room_for_a_block(tiny_package: Path) -> None:
    """Behind what it has verified, and what it generates."""
    manifest, block = read_manifest(tiny_package), replace(drafter_geometry("dflash-tiny-dense").config, block=64)
    whole = replace(manifest, drafter=block)
    steps = BenchOptions(prompt=8, tokens=4, verify_tokens=(1,), repetitions=1)
    assert steps.context(whole) >= 8 + 2 * 2 + 64
    loads = RequestOptions(2, (1,), prompt=8, tokens=4)
    assert (loads.context(manifest), loads.context(whole)) == (8 + 4 + manifest.max_pending, 8 + 4 + 64)


def test_a_folder_offers_the_model_not_its_drafter(tmp_path: Path) -> None:
    for name in ("dflash-nano.gguf", "dspark-nano.gguf", "mmproj-nano.gguf", "mtp-nano.gguf", "nano.gguf"):
        (tmp_path / name).touch()
    with pytest.raises(TrigraphError, match=rf"give one of them, such as {tmp_path}/nano\.gguf"):
        open_model(tmp_path)


@pytest.mark.slow
def test_the_benchmark_times_it(trigraph: Run, nano_gguf: Path, drafter: Path, operator_library: Path) -> None:
    options = ["-p", 16, "-n", 8, "-r", 1, "-t", 1, "--json"]
    found = trigraph("bench", nano_gguf, "--draft-model", drafter, "--accept", 0.8, *options)
    assert found.status == 0
    assert '"draft"' in found.out
