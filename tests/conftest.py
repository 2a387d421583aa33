"""Fixtures that several test files share."""

from __future__ import annotations

import ctypes
import functools
import gc
import os
import platform
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import onnxruntime as ort
import pytest
from hypothesis import HealthCheck, settings

from support.command import CommandInput, Result, Run
from support.models.drafters import Drafters
from support.models.packages import Packages
from support.models.random_gguf import HALF_NORMS, with_half_norms, write_random
from support.models.seeing import SeeingPackages
from support.operators.run import LIBRARY
from trigraph.custom_ops import instruction_sets, library_path
from trigraph.exporter import ExportOptions, export
from trigraph.models.synth import write_synthetic
from trigraph.models.tiny import TINY_GGUF
from trigraph.runtime.cli.app import main
from trigraph.runtime.device.heap import trim_heap
from trigraph.runtime.execution import sessions
from trigraph.runtime.requests.stats import peak_memory

# The CPU's operators find scratch memory full of NaNs, and may not write beside it (custom_ops/scratch.h).
os.environ.setdefault("TRIGRAPH_CHECK_SCRATCH", "1")

# No example fails for the time that it takes: others may have the processors.
settings.register_profile("trigraph", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("trigraph")

# A shell starts a run in the background with SIGINT ignored, and children inherit that; tests send it.
signal.signal(signal.SIGINT, signal.default_int_handler)

_session_options = sessions.session_options


def _options_without_spinning(threads: int, weights_folder: Path, library: Path | None) -> ort.SessionOptions:
    """Threads that wait leave the processor to others: tests run beside each other."""
    options = _session_options(threads, weights_folder, library)
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return options


sessions.session_options = _options_without_spinning


def pytest_collection_finish() -> None:
    """What was imported stays, and the collector need not go through it again and again."""
    gc.collect()
    gc.freeze()


_collected_at = [0]  # peaks


def pytest_runtest_logfinish() -> None:
    """What nobody has any more goes before it adds up.

    Hypothesis or a failure may hold engines in a cycle, and the heap keeps hundreds of MB of PyTorch's models.
    """
    if (peak := peak_memory() or 0) > _collected_at[-1] + 100_000_000:
        _collected_at.append(peak)
        gc.collect()
        trim_heap()


@pytest.fixture(scope="module", autouse=True)
def nothing_cached(request: pytest.FixtureRequest) -> Iterator[None]:
    """Engines and sessions that functions of a test file keep go with it."""
    yield
    for value in vars(request.module).values():
        if isinstance(value, functools._lru_cache_wrapper) and value.__module__ == request.module.__name__:
            value.cache_clear()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fails a run that took more memory than `make test` allows each process."""
    peak, most = peak_memory(), os.environ.get("TRIGRAPH_TEST_MEMORY")
    if peak is None:
        return
    print(f"\npeak memory {peak / 1e6:.0f} MB", end="")
    if most and peak > int(most):
        print(f", more than {int(most) / 1e6:.0f} MB", end="")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture(scope="session")
def tiny_gguf() -> Path:
    """The shipped trained model: qwen35moe, Q8_0, with an MTP head."""
    return TINY_GGUF


@pytest.fixture(scope="session")
def nano_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model of 1 MB: qwen35moe, F32, with an MTP head."""
    return write_random(tmp_path_factory.mktemp("nano") / "model.gguf", "qwen35moe", preset="nano")


@pytest.fixture(scope="session")
def synthetic(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    """`synthetic(geometry, quant)`: a random file of a small geometry (tiny-dense, tiny-moe, tiny-next), made once."""
    folder = tmp_path_factory.mktemp("synthetic")

    def make(geometry: str, quant: str) -> Path:
        path = folder / f"{geometry}-{quant}.gguf"
        if not path.exists():
            write_synthetic(geometry, path, quant=quant)
        return path

    return make


@pytest.fixture(scope="session")
def drafters(tmp_path_factory: pytest.TempPathFactory) -> Drafters:
    """Random block drafters of all kinds for the small models; each is made once."""
    return Drafters(tmp_path_factory.mktemp("drafters"))


@pytest.fixture(scope="session")
def operator_library() -> Path:
    """The built operator library. A test that needs it fails where it is missing."""
    return library_path(LIBRARY)


@pytest.fixture
def trigraph(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """`trigraph("run", ..., stdin=b"...")`, in this process, with a cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))

    def run(*arguments: object, stdin: bytes = b"", terminal: bool = False) -> Result:
        monkeypatch.setattr(sys, "argv", ["trigraph", *map(str, arguments)])
        monkeypatch.setattr(sys, "stdin", CommandInput(stdin, terminal))
        with pytest.raises(SystemExit) as ended:
            main()
        output = capsys.readouterr()
        return Result(int(ended.value.code or 0), output.out, output.err)

    return run


@pytest.fixture(scope="session")
def packages(
    tmp_path_factory: pytest.TempPathFactory,
    tiny_gguf: Path,
    synthetic: Callable[[str, str], Path],
    operator_library: Path,
) -> Packages:
    """Packages of small models, and of the trained one, to run; each is made once."""
    return Packages(tmp_path_factory.mktemp("packages"), tiny_gguf, synthetic)


@pytest.fixture(scope="session")
def seeing(
    tmp_path_factory: pytest.TempPathFactory, synthetic: Callable[[str, str], Path], operator_library: Path
) -> SeeingPackages:
    """Packages of small models with a vision tower; each is made once."""
    return SeeingPackages(tmp_path_factory.mktemp("seeing"), synthetic)


@pytest.fixture(scope="session")
def tiny_package(packages: Packages) -> Path:
    """The trained model's package, with weights by reference; not to be changed."""
    return packages("trained", "Q8_0")


@pytest.fixture(scope="session")
def copied_package(tmp_path_factory: pytest.TempPathFactory, operator_library: Path) -> Path:
    """The trained model with weights of its own; tests that change a file of it make a copy first."""
    out = tmp_path_factory.mktemp("copied") / "package"
    export(TINY_GGUF, out, ExportOptions(weights="copy"))
    return out


@pytest.fixture(scope="session")
def rich_source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file whose export makes each kind of file: graphs, a side file, a tokenizer, a template, copied weights."""
    path = tmp_path_factory.mktemp("source") / "model.gguf"
    return write_random(path, "qwen35", preset="blocks", types=HALF_NORMS, edit=with_half_norms)


def _instruction_sets() -> list[pytest.ParameterSet]:
    """Every day the sets of this processor are its best one and the portable one; the others are slow tests."""
    if LIBRARY == "cuda":
        return [pytest.param("cuda")]
    arm = platform.machine() in ("aarch64", "arm64")
    names = ["i8mm", "dotprod", "neon", "portable"] if arm else ["avx512", "avx_vnni", "avx2", "portable"]
    daily = (instruction_sets()[0], "portable")
    return [pytest.param(name, marks=() if name in daily else pytest.mark.slow) for name in names]


@pytest.fixture(params=_instruction_sets())
def isa(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, operator_library: Path) -> str:
    """Every instruction set in turn; sessions made in the test use its kernels. Skips where the processor lacks it."""
    if LIBRARY == "cuda":
        return "cuda"
    monkeypatch.setenv("TRIGRAPH_ISA", request.param)
    library = ctypes.CDLL(str(operator_library))
    library.trigraph_instruction_set.restype = ctypes.c_char_p
    if not library.trigraph_instruction_set():
        pytest.skip(f"this processor does not run {request.param}")
    return str(request.param)
