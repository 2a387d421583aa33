"""The CUDA library: its kernels in an emulator, what nvcc makes of them, and what is said where no GPU is."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from support.devices.placed import budget_for_layers, host_layers
from support.models.packages import Packages
from support.operators.run import OPERATOR_TESTS, SKIPPED_ON_DEVICES
from support.requests.step_rows import rows_of_steps
from trigraph.custom_ops import library_path
from trigraph.models.errors import TrigraphError
from trigraph.runtime import Options, Sampling, load
from trigraph.runtime.device.cuda.device import open_cuda
from trigraph.runtime.device.cuda.library import CudaLibrary
from trigraph.runtime.doctor.examine import (
    compute,
    make_packages,
    recorded_bits,
)

ROOT = Path(__file__).parents[2]


SMALL = {"TRIGRAPH_EMULATED_MULTIPROCESSORS": "3", "TRIGRAPH_EMULATED_PARTIAL_BYTES": "20000"}
"""A GPU of three multiprocessors, whose memory for splits of attention some texts do not fit into."""


def test_operators(emulator: Path) -> None:
    """The operators' own tests: references, bits of rows, errors."""
    done = run_tests(emulator, OPERATOR_TESTS, {})
    for file in OPERATOR_TESTS:  # one that is skipped passes too
        assert re.search(rf"^tests/{re.escape(file)}\b.* PASSED", done.stdout, re.MULTILINE), done.stdout
    assert set(re.findall(r"^SKIPPED \[\d+\] \S+: (.*)", done.stdout, re.MULTILINE)) <= SKIPPED_ON_DEVICES, done.stdout


@pytest.mark.parametrize(("model", "rows", "calls"), [("small", "1,4,8,16", 4 * 32 + 3 * 7), ("odd", "3", 32 + 7)])
def test_gpu_kernels(emulator: Path, model: str, rows: str, calls: int) -> None:
    """The program for a first look at a GPU, on shapes that the emulator can do."""
    command = [str(emulator / "gpu_kernels"), "--bits", "--rows", rows, model]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (found,) = json.loads(done.stdout)["models"]
    assert len(found["kernels"]) == calls and all(row["bits"] for row in found["kernels"])


def test_gpu_kernels_of_a_prompt(emulator: Path) -> None:
    """More tokens than `small` has positions: the stage `delta-rule` of tools/gpu.py asks for 4,096."""
    command = [str(emulator / "gpu_kernels"), "--bits", "--only", "delta rule", "--rows", "1100", "small"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_operators_on_a_small_gpu(emulator: Path) -> None:
    """The same bits, however work is shared out. Those are the portable kernels', so that no other oracle is asked."""
    names = ("block_matmul", "fused", "gated_delta_net", "grouped", "paged")
    files = [file for file in OPERATOR_TESTS if any(name in file for name in names) and "errors" not in file]
    run_tests(emulator, files, SMALL, "-k", "not transformers and not torch and not function_bodies")


def run_tests(
    emulator: Path, files: Iterable[str], settings: dict[str, str], *options: str
) -> subprocess.CompletedProcess[str]:
    """Runs files of operator tests on the emulator; what they print."""
    environment = os.environ | {"TRIGRAPH_LIBRARY_DIR": str(emulator), "TRIGRAPH_TEST_LIBRARY": "cuda"} | settings
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT / "tests"), os.environ.get("PYTHONPATH"))))
    paths = [str(ROOT / "tests" / file) for file in files]
    assert paths
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-vv", *options, *paths]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


WRITER = """
int main(int, char** arguments) {
  const size_t zone = emulator::red_zone();
  std::vector<char> memory(40 + 2 * zone);
  emulator::prepare_scratch(memory.data(), 40, zone);
  memory[zone + std::atoi(arguments[1])] = 1;
  emulator::check_zones(memory.data(), 40, zone);
}
"""


LAUNCHES = """
int main(int, char** arguments) {
  alignas(16) static char from[32] = "01234567", to[32];
  const std::string what = arguments[1];
  if (what == "unasked") emulator::launch(from, [] {}, 1, 32, 1024, nullptr);
  emulator::copy_ahead(what == "odd" ? to + 4 : to, from, what == "behind" ? 17 : 8, 16);
  if (what != "unended") emulator::end_copies();
  if (what != "unawaited") emulator::await_copies(0);
  if (std::memcmp(to, "01234567\\0\\0\\0\\0\\0\\0\\0\\0", 16)) emulator::die("no copy");
}
"""


@pytest.fixture
def run_emulated(emulator: Path, tmp_path: Path) -> Callable[[str, str], subprocess.CompletedProcess[str]]:
    """Compiles a program with the emulator, and runs it with an argument."""

    def run(source: str, argument: str) -> subprocess.CompletedProcess[str]:
        here, program = ROOT / "tests" / "cuda" / "emulator", tmp_path / "program"
        if not program.exists():
            (tmp_path / "program.cc").write_text(source)
            command = [os.environ.get("CXX", "c++"), "-std=c++17", "-include", str(here / "cuda_emulator.h")]
            subprocess.run([*command, tmp_path / "program.cc", here / "host_calls.cc", "-o", program], check=True)
        return subprocess.run([program, argument], capture_output=True, text=True, check=False)

    return run


def test_writes_beside_scratch_memory_are_seen(
    run_emulated: Callable[[str, str], subprocess.CompletedProcess[str]],
) -> None:
    for at, words in ((0, ""), (39, ""), (40, "wrote behind its scratch"), (-1, "wrote before its scratch")):
        done = run_emulated(WRITER, str(at))
        assert (done.returncode == 0) == (not words) and words in done.stderr


def test_copies_that_are_not_awaited_and_unasked_memory_are_seen(
    run_emulated: Callable[[str, str], subprocess.CompletedProcess[str]],
) -> None:
    for what, words in (
        ("right", ""),
        ("unended", "no copy"),
        ("unawaited", "no copy"),
        ("odd", "is not aligned"),
        ("behind", "more than it may"),
        ("unasked", "more shared memory than was asked for"),
    ):
        done = run_emulated(LAUNCHES, what)
        assert (done.returncode == 0) == (not words) and words in done.stderr, what


@pytest.fixture
def emulated(emulator: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--device cuda` is the emulator."""
    monkeypatch.setenv("TRIGRAPH_LIBRARY_DIR", str(emulator))


def test_texts_with_and_without_speculation(emulated: None, packages: Packages) -> None:
    """Sessions, state and results on a device of its own memory; a fork copies a page there."""
    engine = load(packages("tiny-moe", "Q4_K_M"), device="cuda", context=64)
    assert engine.model.kernels == "CUDA"
    prompt = [3, 1, 4, 1, 5, 9, 2, 6]
    for sampling in (Sampling(temperature=0), Sampling(seed=7, repeat_penalty=1.1)):
        plain, drafted = (
            engine.generate(prompt, Options(sampling, max_tokens=8, ignore_eos=True, draft_tokens=drafts))
            for drafts in (0, 3)
        )
        plain.run(), drafted.run()
        assert plain.ids == drafted.ids
    parent = engine.steps.new_sequence()
    engine.steps.prefill([parent], [prompt])
    child = engine.steps.fork(parent)
    one, other = (engine.steps.verify([text], [[7, 8]]).logits.copy() for text in (parent, child))
    assert one.tobytes() == other.tobytes()


@pytest.mark.parametrize("experts", ["gpu", "cpu"])
@pytest.mark.parametrize("activations", ["int8", "float32"])
@pytest.mark.parametrize("geometry", ["tiny-moe", "tiny-dense", "tiny-next"])
def test_whole_graphs_have_the_bits_of_the_portable_kernels(
    emulated: None, packages: Packages, monkeypatch: pytest.MonkeyPatch, geometry: str, activations: str, experts: str
) -> None:
    package = packages(geometry, "Q4_K_M", activations=activations)
    found = rows_of_steps(load(package, device="cuda", experts=experts, context=64, sequences=3))
    monkeypatch.setenv("TRIGRAPH_ISA", "portable")
    assert found == rows_of_steps(load(package, device="cpu", context=64, sequences=3))


@pytest.mark.parametrize("on_host", [1, 2, 4])
@pytest.mark.parametrize("geometry", ["tiny-moe", "tiny-dense", "tiny-next", "tiny-streams"])
def test_layers_on_the_cpu_have_the_bits_of_the_portable_kernels(
    emulated: None, packages: Packages, monkeypatch: pytest.MonkeyPatch, geometry: str, on_host: int
) -> None:
    package = packages(geometry, "mixed")
    budget = budget_for_layers(package, on_host, context=64, sequences=3)
    engine = load(package, device="cuda", gpu_memory=budget, context=64, sequences=3)
    assert host_layers(engine) == on_host
    found = rows_of_steps(engine)
    monkeypatch.setenv("TRIGRAPH_ISA", "portable")
    assert found == rows_of_steps(load(package, device="cpu", context=64, sequences=3))


def test_the_recorded_bits(emulated: None, tmp_path: Path) -> None:
    (bits,) = compute("cuda", make_packages(tmp_path)).values()
    assert bits == recorded_bits()


def test_where_experts_are(emulated: None, packages: Packages) -> None:
    with pytest.raises(TrigraphError, match="experts is disk; it must be one of gpu, cpu"):
        load(packages("tiny-moe", "Q4_K_M"), device="cuda", experts="disk")


def test_a_device_error_is_raised_after_the_run(emulated: None, packages: Packages) -> None:
    engine = load(packages("tiny-moe", "Q4_K_M"), device="cuda", context=64)
    sequence = engine.steps.new_sequence()
    engine.steps.prefill([sequence], [[1, 2, 3]])
    sequence.pages[0] = 99
    with pytest.raises(TrigraphError, match=r"Paged\w+: input page_table\[0\]\[0\] is page 99, outside \[0, 2\)"):
        engine.steps.verify([sequence], [[4]])


def test_the_library_that_nvcc_builds(monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        path = library_path("cuda")
    except TrigraphError as error:
        pytest.skip(str(error))
    library = CudaLibrary(path)
    assert library.provider == "CUDAExecutionProvider"
    assert library.problem() == "" or "CUDA" in library.problem() or "no device" in library.problem()


def test_a_missing_library_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRIGRAPH_LIBRARY_DIR", str(tmp_path))
    with pytest.raises(TrigraphError, match=r"TRIGRAPH_LIBRARY_DIR is .*, where there is no libtrigraph_cuda"):
        library_path("cuda")


def test_no_gpu_is_a_sentence_and_no_silent_cpu_run(packages: Packages, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        open_cuda()
    except TrigraphError as error:
        reason = str(error)
    else:
        pytest.skip("this machine has a GPU")
    assert "use device=cpu" in reason
    package = packages("tiny-moe", "Q4_K_M")
    with pytest.raises(TrigraphError, match="use device=cpu"):
        load(package, device="cuda", context=64)
    engine = load(package, device="auto", context=64)
    assert engine.model.device.name == "cpu" and engine.model.device.reason == reason
    with pytest.raises(TrigraphError, match="device is gpu; it must be one of auto, cpu, cuda"):
        load(package, device="gpu")
