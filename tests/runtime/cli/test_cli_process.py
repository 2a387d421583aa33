"""The command in a process of its own: what it imports, Ctrl-C, streams that are closed, instruction sets."""

import platform
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support.command import Run


def test_starting_imports_nothing_that_takes_long() -> None:
    code = "import sys, trigraph.runtime.cli.app, trigraph.runtime.cli.run; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    slow = {"onnx_ir", "onnxscript", "sympy", "torch", "llguidance", "matplotlib"}
    slow |= {"asyncio", "fastapi", "gguf", "rich", "uvicorn", "yaml"}
    assert not slow & set(modules)


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGINT for child processes there")
def test_ctrl_c_ends_with_130(tiny_package: Path, operator_library: Path) -> None:
    # A shell that starts the tests in the background makes its children ignore SIGINT.
    handler = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    command = handler + "from trigraph.runtime.cli.app import main; main()"
    arguments = ["run", str(tiny_package), "-p", "And", "--ignore-eos", "--temp", "1.5", "-t", "1"]
    process = subprocess.Popen(
        [sys.executable, "-c", command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"Traceback" not in err
    assert out.endswith(b"\n")


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGINT for child processes there")
def test_ctrl_c_keeps_the_prompt(trigraph: Run, tiny_package: Path, operator_library: Path, tmp_path: Path) -> None:
    handler = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    command = handler + "from trigraph.runtime.cli.app import main; main()"
    arguments = [
        "run",
        str(tiny_package),
        "-p",
        "And it came",
        "--ignore-eos",
        "--prompt-cache",
        str(tmp_path / "text"),
    ]
    process = subprocess.Popen([sys.executable, "-c", command, *arguments], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    again = trigraph("run", tiny_package, "-p", "And it came", "-n", 2, "--prompt-cache", tmp_path / "text")
    assert "prompt 0 tokens" in again.err


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGINT for child processes there")
@pytest.mark.parametrize("delay", [0.02, 0.1, 0.3])
def test_ctrl_c_while_libraries_are_imported(delay: float) -> None:
    handler = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    command = handler + "from trigraph.runtime.__main__ import main; print(flush=True); main()"
    process = subprocess.Popen(
        [sys.executable, "-c", command, "run", "model.gguf", "-p", "-"],
        stdin=subprocess.PIPE,  # where it waits when it is faster than the delay
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    process.stdout.read(1)
    time.sleep(delay)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, b"")


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the system does not tell")
def test_peak_memory_is_that_of_the_process() -> None:
    large = b"x" * (300 << 20)  # a child of this process begins with its peak in getrusage
    command = "from trigraph.runtime.requests.stats import peak_memory; print(peak_memory())"
    output = subprocess.run([sys.executable, "-c", command], capture_output=True, check=True).stdout
    assert 1 << 20 < int(output) < len(large)


def run_in_shell(command: str) -> subprocess.CompletedProcess[bytes]:
    program = f"{sys.executable} -c 'from trigraph.runtime.cli.app import main; main()'"
    return subprocess.run(["sh", "-c", f"{program} {command}"], capture_output=True, check=False, timeout=60)


@pytest.mark.skipif(sys.platform == "win32", reason="no such shell")
def test_closed_streams(tiny_package: Path, operator_library: Path) -> None:
    closed = run_in_shell(f"run {tiny_package} -n 2 <&-")
    assert closed.stderr == b"error: stdin is closed; give the text with -p or -f\n"
    assert (closed.returncode, closed.stdout) == (2, b"")
    for command in (f"run {tiny_package} -p hi -n 2 >&-", "--help >&-"):
        result = run_in_shell(command)
        assert (result.returncode, result.stderr.count(b"\n")) == (2, 1)
        assert result.stderr.startswith(b"error: stdout is closed")
    result = run_in_shell(f"run {tiny_package} -p hi -n 2 --seed 1 <&-")
    assert (result.returncode, result.stdout.endswith(b"\n")) == (0, True)
    silent = run_in_shell(f"run {tiny_package} -p hi -n 2 --seed 1 2>&-")
    assert (silent.returncode, silent.stdout) == (0, result.stdout)


@pytest.mark.parametrize("name", ["bogus", "neon" if platform.machine() in ("x86_64", "AMD64") else "avx2"])
def test_an_instruction_set_that_is_not_there(
    monkeypatch: pytest.MonkeyPatch, trigraph: Run, tiny_gguf: Path, operator_library: Path, tmp_path: Path, name: str
) -> None:
    package = tmp_path / "package"  # with function bodies, which do not take the place of a library that is there
    assert trigraph("export", tiny_gguf, "-o", package, "--reference", "--portable").status == 0
    # In a process of its own: this one remembers its instruction set.
    monkeypatch.setenv("TRIGRAPH_ISA", name)
    for command in (f"run {package} -p hi -n 2", f"bench {package} -n 2"):
        result = run_in_shell(command)
        assert result.returncode == 2
        assert result.stderr.startswith(f"error: TRIGRAPH_ISA={name}: ".encode())
        assert result.stderr.count(b"\n") == 1


def test_a_closed_pipe_is_no_defect(tiny_package: Path, operator_library: Path) -> None:
    command = "from trigraph.runtime.cli.app import main; main()"
    arguments = ["run", str(tiny_package), "-p", "And", "--ignore-eos", "-t", "1"]
    process = subprocess.Popen(
        [sys.executable, "-c", command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.read(1)
    process.stdout.close()
    err = process.stderr.read()
    process.wait(timeout=60)
    assert b"Traceback" not in err
