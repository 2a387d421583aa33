"""Compares the bits of this machine with the recorded ones, which ship with the tiny model."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnxruntime as ort

from trigraph.custom_ops import absent_sets, instruction_sets, library_version
from trigraph.exporter import ExportOptions, export
from trigraph.exporter.package.manifest import CONTRACT_VERSION
from trigraph.models.errors import TrigraphError
from trigraph.models.synth import write_synthetic, write_synthetic_mmproj
from trigraph.models.tiny import TINY_GGUF
from trigraph.runtime.bench.machine import processor
from trigraph.runtime.device.choice import open_devices
from trigraph.runtime.doctor.near import TOLERANCE

RECORD = TINY_GGUF.with_name("recorded_bits.json")
"""Contract version, and hashes by model and part. `python -m trigraph.runtime.doctor.record` writes it."""

Bits = Mapping[str, Mapping[str, str]]
"""Hashes by model, then by part of its output and state."""

_TIMEOUT = 600  # seconds for one set of kernels; a few are usual


@dataclass(frozen=True)
class Finding:
    """What one set of kernels computed."""

    kernels: str
    """An instruction set, or the name of a device."""
    weights: tuple[str, ...] = ()
    """How the weights lay that it read: plain, and repacked where there are kernels for that."""
    differs: tuple[str, ...] = ()
    """What is not as recorded: "logits of the trained model" ..."""
    problem: str | None = None
    """Why nothing was computed."""
    distance: float | None = None
    """Where bits are a device's own, the largest one of a logit from the CPU's, in parts of the largest logit."""

    @property
    def agrees(self) -> bool:
        return not self.differs and self.problem is None


@dataclass(frozen=True)
class Examination:
    """What was found, and where."""

    processor: str
    library: str
    onnxruntime: str
    contract: int
    recorded: str
    """A short hash of all recorded hashes."""
    findings: tuple[Finding, ...]
    absent: tuple[str, ...] = ()
    """Instruction sets of this processor that the library was built without."""

    @property
    def agrees(self) -> bool:
        return all(finding.agrees for finding in self.findings)


def examine(device: str = "cpu") -> Examination:
    """Computes the bits on every instruction set that the processor has, and on `device` where that is another one.

    Takes some seconds. Raises TrigraphError when there is nothing to compare with, no library, or no such device.
    """
    recorded = recorded_bits()
    kernels = list(instruction_sets())
    *_, opened = open_devices(device)
    if opened.name != "cpu" and not opened.arithmetic:
        kernels.append(device if ":" in device else opened.name)
    with tempfile.TemporaryDirectory(prefix="trigraph-") as folder:
        packages = make_packages(Path(folder))
        findings = [_compare(one, packages, recorded) for one in kernels]
        if opened.arithmetic:
            findings.append(_near(device, Path(folder)))
    return Examination(
        processor(),
        library_version(),
        ort.__version__,
        CONTRACT_VERSION,
        short_hash(recorded),
        tuple(findings),
        absent_sets(),
    )


def recorded_bits() -> Bits:
    """The recorded hashes. Raises TrigraphError when they are of another contract version."""
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    if (found := record["contract_version"]) != CONTRACT_VERSION:
        raise TrigraphError(
            f"{RECORD}: the bits of contract version {found} are recorded, and this is version {CONTRACT_VERSION}; "
            "record them with python -m trigraph.runtime.doctor.record"
        )
    bits: Bits = record["bits"]
    return bits


def short_hash(recorded: Bits) -> str:
    """What tells recorded hashes from others at a glance."""
    return hashlib.sha256(json.dumps(recorded, sort_keys=True).encode()).hexdigest()[:16]


def make_packages(folder: Path) -> Mapping[str, Path]:
    """Packages of the trained tiny model, and of a random one in which every block type occurs, in both activations.

    The random one is also there with a vision tower of Q8_0, F16 and F32. A third one has residual streams, n-grams and
    attention that sees few groups of positions, fewer than the prompts have.
    """
    synthetic, tower, sparse = folder / "synthetic.gguf", folder / "tower.gguf", folder / "sparse.gguf"
    write_synthetic("tiny-moe", synthetic, quant="mixed")
    write_synthetic_mmproj("mmproj-tiny-moe", tower, quant="Q8_0")
    write_synthetic("tiny-sparse", sparse, quant="mixed")
    wanted = {
        "the trained model": (TINY_GGUF, "int8", None),
        "the synthetic model": (synthetic, "int8", None),
        "the synthetic model with float32 activations": (synthetic, "float32", None),
        "the synthetic model with images": (synthetic, "int8", tower),
        "the synthetic model with residual streams": (sparse, "int8", None),
    }
    packages = {}
    for number, (name, (source, activations, mmproj)) in enumerate(wanted.items()):
        packages[name] = folder / str(number)
        export(source, packages[name], ExportOptions(weights="reference", activations=activations, mmproj=mmproj))
    return packages


def compute(kernels: str, packages: Mapping[str, Path]) -> Mapping[str, Bits]:
    """Hashes by layout of the weights and by model, computed in a process of their own.

    Raises TrigraphError when that fails.
    """
    environment = dict(os.environ)
    if kernels in instruction_sets():
        environment["TRIGRAPH_ISA"], device = kernels, "cpu"
    else:
        device = kernels
    found = _run("bits", device, packages.values(), environment)
    return {layout: dict(zip(packages, bits, strict=True)) for layout, bits in found.items()}


def _run(module: str, device: str, folders: Iterable[Path], environment: Mapping[str, str]) -> Any:
    """What a module of this package prints for packages, in a process of its own. Raises TrigraphError if it fails."""
    command = [sys.executable, "-m", f"trigraph.runtime.doctor.{module}", device, *map(str, folders)]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_TIMEOUT, check=True)
    except subprocess.TimeoutExpired as error:
        raise TrigraphError(f"no result within {_TIMEOUT} seconds") from error
    except subprocess.CalledProcessError as error:
        reason = error.stderr.strip().splitlines()[-1:] or [f"the process ended with status {error.returncode}"]
        raise TrigraphError(reason[0]) from error
    return json.loads(done.stdout)


def _near(device: str, folder: Path) -> Finding:
    """What a device with an arithmetic of its own computes for the trained model, and for a dense one."""
    write_synthetic("tiny-dense", dense := folder / "dense.gguf", quant="Q4_K_M")
    packages = {"the trained model": (TINY_GGUF, folder / "trained"), "a dense model": (dense, folder / "dense")}
    for source, package in packages.values():
        export(source, package, ExportOptions(weights="reference", activations="float32"))
    try:
        found = _run("near", device, [package for _, package in packages.values()], os.environ)
    except TrigraphError as error:
        return Finding(device, problem=str(error))
    differs = []
    for model, one in zip(packages, found, strict=True):
        differs += [f"logits of {model}, by {one['distance']:.1e}"] if one["distance"] > TOLERANCE else []
        differs += [f"bits of {model} after {what}" for what in one["changed_by"]]
    return Finding(device, differs=tuple(differs), distance=max(one["distance"] for one in found))


def _compare(kernels: str, packages: Mapping[str, Path], recorded: Bits) -> Finding:
    try:
        found = compute(kernels, packages)
    except TrigraphError as error:
        return Finding(kernels, problem=str(error))
    return Finding(kernels, tuple(found), tuple(_differences(found, recorded)))


def _differences(found: Mapping[str, Bits], recorded: Bits) -> Iterator[str]:
    for layout, bits in found.items():
        for model, parts in recorded.items():
            for part, digest in parts.items():
                if bits[model].get(part) != digest:
                    yield f"{part} of {model}, weights {layout}"
