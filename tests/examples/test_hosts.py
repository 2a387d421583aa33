"""Programs in other languages that know the contract only: their ids are those of our own runtime."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Sequence
from pathlib import Path

import onnx
import pytest
from PIL import Image

from support.cpp_host import BITS, export_for_host, host_arguments
from support.pictures.host_images import image_arguments
from trigraph.exporter import ExportOptions, export, read_manifest
from trigraph.models.synth import write_synthetic_mmproj
from trigraph.runtime import Options, Sampling, load

pytestmark = pytest.mark.slow  # compiles a host, downloads another one

HOSTS = Path(__file__).parents[2] / "examples" / "hosts"
BUILD = Path(__file__).parents[2] / "build"
TOKENS = 40
TEXTS = ("In the beginning", "It was a dark and stormy night; the rain", "A", "and the sea, and the sea " * 8)
MODELS = [("trained", "Q8_0"), ("tiny-dense", "Q4_K_M"), ("tiny-next", "Q8_0"), ("tiny-streams", "Q8_0")]

Prompts = list[list[int]]


class Package:
    """A package that was exported with a copy of its weights and then moved; prompts, and our own ids after them."""

    def __init__(self, source: Path, folder: Path, *, portable: bool, tower: bool = False) -> None:
        model = folder / "source" / source.name
        model.parent.mkdir()
        shutil.copy(source, model)
        if tower:
            write_synthetic_mmproj("mmproj-tiny-dense", model.with_name("mmproj-a.gguf"))
        export(model, folder / "exported", ExportOptions(weights="copy", portable=portable, activations="float32"))
        shutil.rmtree(model.parent)
        self.path = folder / "elsewhere" / "package"
        self.path.parent.mkdir()
        (folder / "exported").rename(self.path)
        engine = load(self.path, threads=1, context=512)
        self.prompts = [engine.tokenizer.encode(text) for text in TEXTS]
        options = Options(Sampling(temperature=0), max_tokens=TOKENS, ignore_eos=True, speculate=False)
        self.ids: Prompts = []
        for prompt in self.prompts:
            generation = engine.generate(prompt, options)
            generation.run()
            self.ids.append(generation.ids)

    def arguments(self, drafts: int) -> list[str]:
        prompts = [",".join(map(str, prompt)) for prompt in self.prompts]
        return [str(self.path), "--tokens", str(TOKENS), "--drafts", str(drafts), *prompts]

    @property
    def text_start(self) -> list[str]:
        """What the C++ host, which reads no manifest, is told of a model with n-grams."""
        streams = read_manifest(self.path).config.streams
        return [] if streams is None or streams.ngrams is None else ["--text-start", str(streams.ngrams.eos)]


Make = Callable[..., Package]


@pytest.fixture(scope="module")
def make(
    tmp_path_factory: pytest.TempPathFactory,
    tiny_gguf: Path,
    synthetic: Callable[[str, str], Path],
    operator_library: Path,
) -> Make:
    made: dict[tuple[str, str, bool, bool], Package] = {}

    def package(
        geometry: str = "trained", quant: str = "Q8_0", *, portable: bool = False, tower: bool = False
    ) -> Package:
        key = (geometry, quant, portable, tower)
        if key not in made:
            source = tiny_gguf if geometry == "trained" else synthetic(geometry, quant)
            made[key] = Package(source, tmp_path_factory.mktemp("package"), portable=portable, tower=tower)
        return made[key]

    return package


def ids(command: Sequence[str], folder: Path) -> tuple[Prompts, int]:
    """What a host prints: ids after each prompt, and how many drafts were accepted."""
    run = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stderr
    accepted = re.search(r"(\d+) of \d+ drafts accepted", run.stderr)
    assert accepted
    return [list(map(int, line.split())) for line in run.stdout.splitlines()], int(accepted[1])


@pytest.fixture(scope="module")
def cpp_host(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if sys.platform == "win32":
        pytest.skip("the Python package has no import library of ONNX Runtime for Windows")
    path = os.pathsep.join((sysconfig.get_path("scripts"), os.environ.get("PATH", "")))
    for tool in (os.environ.get("CXX", "c++"), "cmake"):
        if shutil.which(tool, path=path) is None:
            pytest.skip(f"{tool} is missing")
    build = tmp_path_factory.mktemp("cpp_host")
    python = f"-DPython3_EXECUTABLE={sys.executable}"
    environment = os.environ | {"PATH": path}
    for command in (["cmake", "-S", str(HOSTS / "cpp"), "-B", str(build), python], ["cmake", "--build", str(build)]):
        run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
        assert run.returncode == 0, run.stdout + run.stderr
        assert "warning" not in run.stdout + run.stderr
    return build / "trigraph_host"


@pytest.mark.parametrize("model", MODELS, ids="-".join)
@pytest.mark.parametrize("drafts", [0, 1, 3, 7])
def test_cpp_host(
    drafts: int, model: tuple[str, str], make: Make, cpp_host: Path, operator_library: Path, tmp_path: Path
) -> None:
    package = make(*model)
    command = [str(cpp_host), "--library", str(operator_library), *package.text_start, *package.arguments(drafts)]
    found, accepted = ids(command, tmp_path)
    assert found == package.ids
    assert accepted > 0 or not drafts or model[0] != "trained"


@pytest.mark.parametrize("geometry", ["trained", "tiny-streams"])
def test_cpp_host_in_chunks_and_threads(
    geometry: str, make: Make, cpp_host: Path, operator_library: Path, tmp_path: Path
) -> None:
    package = make(geometry)
    settings = ["--library", str(operator_library), "--chunk", "5", "--threads", "2", *package.text_start]
    assert ids([str(cpp_host), *settings, *package.arguments(3)], tmp_path)[0] == package.ids


def test_cpp_host_on_a_package_with_a_tower(make: Make, cpp_host: Path, operator_library: Path, tmp_path: Path) -> None:
    """Text alone, whose positions the graphs ask for."""
    package = make("tiny-dense", "F32", tower=True)
    command = [str(cpp_host), "--library", str(operator_library), *package.arguments(3)]
    assert ids(command, tmp_path)[0] == package.ids


@pytest.mark.parametrize("chunk", [512, 5])
def test_cpp_host_with_images(chunk: int, make: Make, cpp_host: Path, operator_library: Path, tmp_path: Path) -> None:
    """A chunk of 5 cuts images."""
    package = make("tiny-dense", "F32", tower=True)
    for drafts in (0, 3):
        arguments, expected = image_arguments(package.path, tmp_path, drafts, TOKENS)
        command = [str(cpp_host), "--library", str(operator_library), "--chunk", str(chunk), *arguments]
        found, _ = ids(command, tmp_path)
        assert found == expected


def test_cpp_host_refuses_images(make: Make, cpp_host: Path, operator_library: Path, tmp_path: Path) -> None:
    package = make("tiny-dense", "F32", tower=True)
    Image.new("RGB", (33, 32)).save(tmp_path / "odd.ppm")
    Image.new("RGB", (32, 32)).save(tmp_path / "good.ppm")
    (tmp_path / "short.ppm").write_bytes((tmp_path / "good.ppm").read_bytes()[:-1])
    (tmp_path / "other.ppm").write_bytes(b"P5 32 32 255 ")
    for given, sentence in {
        ("1,IMAGE",): "a prompt has no image",
        ("--image", "good.ppm", "1"): "an image has no place",
        ("--image", "odd.ppm", "IMAGE"): "its sides must be multiples of 32 pixels",
        ("--image", "short.ppm", "IMAGE"): "is cut off",
        ("--image", "other.ppm", "IMAGE"): "is not a PPM file",
    }.items():
        command = [str(cpp_host), "--library", str(operator_library), str(package.path), *given]
        run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert run.returncode == 1 and run.stderr.startswith("error: ") and sentence in run.stderr


def test_cpp_host_prints_the_recorded_bits(
    cpp_host: Path, tiny_gguf: Path, operator_library: Path, tmp_path: Path
) -> None:
    package = export_for_host(tiny_gguf, tmp_path / "package")
    command = [str(cpp_host), *host_arguments(package, operator_library)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert BITS in done.stderr


@pytest.mark.parametrize("drafts", [0, 3])
def test_cpp_host_on_a_portable_package(
    drafts: int, make: Make, cpp_host: Path, operator_library: Path, tmp_path: Path
) -> None:
    """Function bodies without the library, kernels with it."""
    package = make(portable=True)
    assert ids([str(cpp_host), *package.arguments(drafts)], tmp_path)[0] == package.ids
    assert (
        ids([str(cpp_host), "--library", str(operator_library), *package.arguments(drafts)], tmp_path)[0] == package.ids
    )


def test_cpp_host_errors(make: Make, cpp_host: Path, operator_library: Path, tmp_path: Path) -> None:
    def error(*arguments: str | Path) -> str:
        run = subprocess.run([cpp_host, *arguments], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert run.returncode == 1 and run.stderr.startswith("error: ")
        return run.stderr

    package = make()
    assert "needs the operator library: give its file with --library, or export with" in error(*package.arguments(0))
    # The kernels refuse what a host gets wrong; nothing crashes.
    with_library = ("--library", operator_library, package.path)
    assert re.search(
        r"trigraph\.BlockGather: input ids\[1\] is 99999, outside the \d+ rows", error(*with_library, "1,99999")
    )
    assert "input ids[0] is -1" in error(*with_library, "-1")
    assert "the model has n-grams" in error("--library", operator_library, make("tiny-streams").path, "1")
    other = shutil.copytree(package.path, tmp_path / "other")
    model = onnx.load(other / "prefill.onnx", load_external_data=False)
    (stated,) = model.metadata_props
    stated.value = "images,sound"
    onnx.save(model, other / "prefill.onnx")
    unknown = "error: this host does not know the package's feature sound\n"
    assert error("--library", operator_library, other, "1") == unknown
    model.model_version = 5
    onnx.save(model, other / "prefill.onnx")
    assert error("--library", operator_library, other, "1") == "error: the package follows another contract\n"


# The CPU library is in the package; its install script would only download what a GPU needs.
NPM = (
    *("install", "--ignore-scripts", "--no-audit", "--no-fund", "--no-package-lock", "--prefer-offline"),
    "--fetch-retries=1",
)
UNREACHABLE = {
    *("ENOTFOUND", "EAI_AGAIN", "ECONNREFUSED", "ECONNRESET", "ETIMEDOUT", "ERR_SOCKET_TIMEOUT", "E403", "E503"),
}


@pytest.fixture(scope="module")
def node_host() -> list[str]:
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.skip("node or npm is missing")
    version = subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    if int(version.removeprefix("v").split(".")[0]) < 18:
        pytest.skip(f"node {version} is older than 18")
    # Kept between runs: the package is large.
    folder = BUILD / "node_host"
    shutil.copytree(HOSTS / "node", folder, dirs_exist_ok=True)
    run = subprocess.run([npm, *NPM], cwd=folder, capture_output=True, text=True, timeout=600, check=False)
    if run.returncode:
        code = re.search(r"npm (?:error|ERR!) code (\w+)", run.stderr)
        if code and code[1] in UNREACHABLE:
            pytest.skip(f"the npm registry cannot be reached ({code[1]})")
        pytest.fail(run.stderr)
    return [node, str(folder / "host.js")]


@pytest.mark.parametrize("drafts", [0, 3, 7])
def test_node_host(drafts: int, make: Make, node_host: list[str], tmp_path: Path) -> None:
    """A stock ONNX Runtime without our library."""
    package = make(portable=True)
    assert ids([*node_host, *package.arguments(drafts)], tmp_path)[0] == package.ids


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"contract_version": 6}, "contract_version is 6, this host knows 9"),
        ({"features": ["images"]}, "this host does not know the package's feature images"),
    ],
)
def test_node_host_refuses_other_packages(
    change: dict[str, object], sentence: str, make: Make, node_host: list[str], tmp_path: Path
) -> None:
    manifest = json.loads((make(portable=True).path / "manifest.json").read_text())
    (tmp_path / "manifest.json").write_text(json.dumps(manifest | change))
    run = subprocess.run([*node_host, tmp_path, "1"], capture_output=True, text=True, check=False)
    assert run.returncode == 1 and f"Error: {sentence}\n" in run.stderr


PLAIN_SESSION = """
import sys, onnxruntime
for graph in ("prefill", "draft", "verify"):
    options = onnxruntime.SessionOptions()
    if len(sys.argv) > 2:
        options.register_custom_ops_library(sys.argv[2])
    onnxruntime.InferenceSession(f"{sys.argv[1]}/{graph}.onnx", options, providers=["CPUExecutionProvider"])
assert not any(name.startswith("trigraph") for name in sys.modules)
"""


@pytest.mark.parametrize("portable", [False, True])
def test_moved_package_opens_in_a_plain_session(
    portable: bool, make: Make, operator_library: Path, tmp_path: Path
) -> None:
    package = make(portable=portable)
    library = [] if portable else [str(operator_library)]
    relative = os.path.relpath(package.path, tmp_path)
    for path in (str(package.path), relative):
        command = [sys.executable, "-c", PLAIN_SESSION, path, *library]
        run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert run.returncode == 0, run.stderr
