"""Weight files in memory: each tensor inside its file, one mapping for all sessions, for as long as it is read."""

from __future__ import annotations

import gc
import os
import platform
import sys
import threading
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from onnx import TensorProto, helper

from support.models.packages import Packages
from trigraph.exporter import read_manifest
from trigraph.models.errors import TrigraphError
from trigraph.runtime import load
from trigraph.runtime.device.mapped_weights import MappedWeights
from trigraph.runtime.execution.steps import Steps

linux = pytest.mark.skipif(sys.platform != "linux", reason="mappings are looked up in /proc")

SIZE = 1 << 16


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weights") / "weights.bin"
    path.write_bytes(np.random.default_rng(0).bytes(SIZE))
    return path


def tensor(dims: tuple[int, ...], data_type: int = TensorProto.FLOAT, **place: str) -> TensorProto:
    out = TensorProto(name="blk.0.x", data_type=data_type, dims=dims, data_location=TensorProto.EXTERNAL)
    for key, value in ({"location": "w"} | place).items():
        out.external_data.add(key=key, value=value)
    return out


def initializers(weights: MappedWeights, *tensors: TensorProto) -> Any:
    return weights.initializers(Path("verify.onnx"), helper.make_graph([], "graph", [], [], tensors))


@pytest.mark.parametrize(
    ("dims", "data_type", "name", "offset"),
    [
        ((SIZE,), TensorProto.UINT8, "uint8", 0),
        ((3, 5), TensorProto.UINT8, "uint8", 7),  # blocks begin at any byte
        ((2, 3, 4), TensorProto.FLOAT, "float", 4),
        ((SIZE // 2 - 1,), TensorProto.FLOAT16, "float16", 2),
        ((4, 4), TensorProto.BFLOAT16, "bfloat16", SIZE - 32),
        ((), TensorProto.FLOAT, "float", 8),
    ],
)
def test_a_tensor_is_a_place_of_the_mapped_file(
    dims: tuple[int, ...], data_type: int, name: str, offset: int, file: Path
) -> None:
    weights = MappedWeights({"w": file})
    whole = initializers(weights, tensor((SIZE,), TensorProto.UINT8))["blk.0.x"]
    place = {"offset": str(offset)} if offset else {}
    value = initializers(weights, tensor(dims, data_type, **place))["blk.0.x"]
    assert (value.shape(), value.data_type()) == (list(dims), f"tensor({name})")
    assert value.data_ptr() - whole.data_ptr() == offset
    assert whole.numpy().tobytes() == file.read_bytes()


OUTSIDE = {
    "one element past the end": tensor((SIZE // 4 + 1,)),
    "from the last byte": tensor((2,), TensorProto.UINT8, offset=str(SIZE - 1)),
    "from past the end": tensor((1,), TensorProto.UINT8, offset=str(2**63)),
    "before the beginning": tensor((4,), offset="-4"),
    "no number": tensor((4,), offset="1e3"),
    "no offset": tensor((4,), offset=""),
    "digits without end": tensor((4,), offset="0" * 100_000),
    "between two elements": tensor((4,), offset="2"),
    "negative": tensor((-1,)),
    "negative twice": tensor((-2, -2)),
    "nothing": tensor((0,)),
    "nothing, at great length": tensor((0, 2**62, 2**62)),
    "a size that wraps": tensor((2**32, 2**32, 4)),
}
NO_WEIGHT = {
    "another type": tensor((4,), TensorProto.INT64),
    "an unknown type": tensor((4,), 99),
    "text": tensor((4,), TensorProto.STRING),
    "more dimensions than NumPy has": tensor((1,) * 65),
    "dimensions without end": tensor((2**62,) * 10_000),
    "another file": tensor((4,), location="v"),
    "the name of a file of the system": tensor((4,), location="/etc/passwd"),
    "no file": TensorProto(name="blk.0.x", data_type=1, dims=[4], data_location=TensorProto.EXTERNAL),
}


@pytest.mark.parametrize("case", [*OUTSIDE, *NO_WEIGHT])
def test_another_place_is_refused_by_the_name_of_its_tensor(case: str, file: Path) -> None:
    text = "is not inside its file of 65536 bytes" if case in OUTSIDE else "is no weight"
    with pytest.raises(TrigraphError, match=rf"^verify.onnx: tensor 'blk\.0\.x', .*{text}; export the package again$"):
        initializers(MappedWeights({"w": file}), (OUTSIDE | NO_WEIGHT)[case])


def test_files(file: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    weights = MappedWeights({"w": tmp_path / "empty"})
    with pytest.raises(TrigraphError, match="of 0 bytes"):
        initializers(weights, tensor((1,), TensorProto.UINT8))
    weights.check()
    with pytest.raises(TrigraphError, match="missing: cannot be read: No such file"):
        MappedWeights({"w": file, "v": tmp_path / "missing"})


# Reading ahead


def resident(path: Path) -> int:
    """Bytes of a mapped file that this process reads without a fault."""
    lines = iter(Path("/proc/self/smaps").read_text().splitlines())
    for line in lines:
        if line.endswith(str(path)):
            return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("Rss:"))
    return 0


@linux
def test_read_ahead_maps_all_pages(tmp_path: Path) -> None:
    if tuple(int(number) for number in platform.release().split(".")[:2]) < (5, 14):
        pytest.skip("needs Linux 5.14")
    size, path = (9 << 20) + 123, tmp_path / "weights.bin"
    path.write_bytes(bytes(size))
    with patch("trigraph.runtime.device.mapped_weights._STRETCH", 4 << 20):
        weights = MappedWeights({"w": path})
        assert resident(path) < size
        thread = weights.read_ahead()
        assert thread is not None and thread.daemon
        thread.join()
    assert resident(path) >= size


@pytest.mark.parametrize("free", [SIZE - 1, None])
def test_nothing_is_read_ahead_into_too_little_memory(free: int | None, file: Path) -> None:
    weights = MappedWeights({"w": file})
    with patch("trigraph.runtime.device.mapped_weights.free_memory", return_value=free):
        assert weights.read_ahead() is None


# Models


def mappings(package: Path) -> list[str]:
    """Lines of this process' memory for the weights of a package."""
    (path,) = read_manifest(package).weight_paths(package).values()
    return [line for line in Path("/proc/self/maps").read_text().splitlines() if line.endswith(str(path.resolve()))]


@linux
def test_three_sessions_share_one_mapping_that_goes_with_the_last(packages: Packages) -> None:
    def settle() -> None:
        """Waits for threads that read ahead in a mapping, this test's and earlier ones'."""
        for thread in threading.enumerate():
            if thread.name == "trigraph-reading":
                thread.join()
        gc.collect()

    package = packages("trained", "Q8_0")
    settle()
    before, descriptors = mappings(package), len(os.listdir("/proc/self/fd"))
    engine = load(package, threads=1, context=256)
    assert engine.model.no_draft is None
    assert len(mappings(package)) == len(before) + 1
    del engine
    settle()
    assert mappings(package) == before
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_weights_live_for_as_long_as_the_steps(packages: Packages) -> None:
    def logits(steps: Steps) -> Any:
        sequence = steps.new_sequence()
        steps.prefill([sequence], [[1, 2, 3]])
        return steps.verify([sequence], [[4]]).logits.copy()

    package = packages("trained", "Q8_0")
    engine, steps = load(package, threads=1, context=256), load(package, threads=1, context=256).steps
    gc.collect()
    np.testing.assert_array_equal(logits(steps), logits(engine.steps))
