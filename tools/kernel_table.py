"""Prints, as Markdown, what each CUDA kernel of a step takes on paper: `python tools/kernel_table.py`, no GPU needed.

Launches are those of whole models on the fake device, bytes those of the roofline of `trigraph bench`, registers and
loads those of nvcc's machine code. A launch takes its gap and two waits for memory, and then as long as its bytes need:
at 0.9 of the memory's bandwidth if enough bytes are in flight (Little's law), else at what they allow.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import onnxruntime as ort

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support.emulator import ROOT, build, build_emulator
from support.fake_cuda import FakeDevice, Launch
from support.hollow import write_hollow
from support.sass import FILES, Kernel, kernels, plain_name
from trigraph.custom_ops import library_path
from trigraph.custom_ops.cost import Cost, Node, Workload
from trigraph.exporter import ExportOptions, export
from trigraph.runtime import load
from trigraph.runtime.bench.cost import GraphCost

MODELS = ("qwen3.6-35b-a3b", "qwen3.6-27b")
ROWS = (1, 4, 8)
CONTEXT = 4096
GAP_US = 1.2
"""Between two kernels of a captured graph. An assumption, as are latencies."""
REACHED = 0.9
"""Of the bandwidth, by a kernel that keeps enough bytes in flight."""


@dataclass(frozen=True)
class Gpu:
    """A GPU's data sheet, and how long a load waits for its memory."""

    name: str
    architecture: str
    multiprocessors: int
    gb_s: float
    latency_us: float
    warps: int
    """Of a multiprocessor."""
    blocks: int
    shared: int

    def resident(self, kernel: Kernel, launch: Launch) -> int:
        """Blocks that a multiprocessor holds at once."""
        warps = -(-launch.threads // 32)
        registers = -(-kernel.registers * 32 // 256) * 256 * warps
        shared = kernel.shared + launch.shared + 1024  # the system's own
        return min(self.blocks, self.warps // warps, 65536 // registers, self.shared // shared)

    @property
    def needed(self) -> float:
        """Bytes in flight that keep the memory busy."""
        return self.gb_s * 1e3 * self.latency_us


GPUS = (
    Gpu("H100", "sm_90", 132, 3350, 0.65, 64, 32, 227 << 10),
    Gpu("H200", "sm_90", 132, 4800, 0.65, 64, 32, 227 << 10),
    Gpu("RTX 4090", "sm_89", 128, 1008, 0.6, 48, 24, 99 << 10),
)


@dataclass(frozen=True)
class Row:
    """A launch and the bytes of memory that it must move."""

    launch: Launch
    bytes: float


def rows_of(launches: Sequence[Launch], costs: Sequence[tuple[str, Node, Cost]]) -> list[Row]:
    """Each launch with the bytes of the node that it is of; both are in the order of the graph."""
    fed = {tensor.name for kind, node, _ in costs if kind == "GroupedExpertFFN" for tensor in node.inputs if tensor}
    bytes_of: dict[str, list[float]] = defaultdict(list)
    shared = 0.0
    for kind, node, cost in costs:
        if kind == "GatedBlockMatMul" and node.outputs[0].name in fed:
            shared = cost.bytes  # the shared expert's, in the launch of the others
        elif kind == "GroupedExpertFFN":
            bytes_of["few_experts"].append(cost.bytes + shared)
        else:
            bytes_of[_KERNELS.get(kind, kind)].append(cost.bytes)
    waiting = {name: iter(found) for name, found in bytes_of.items()}
    names = [plain_name(launch.kernel).split("<")[0] for launch in launches]
    kinds = [next((kind for kind in _KINDS if re.search(kind, name)), name) for name in names]
    rows = [Row(launch, next(waiting.get(kind, iter(())), 0.0)) for kind, launch in zip(kinds, launches, strict=True)]
    if left := [kind for kind in (*_KINDS, "few_experts") if any(waiting.get(kind, ()))]:
        raise RuntimeError(f"no launch reads what these nodes do: {', '.join(left)}")
    return rows


_KERNELS = {
    "BlockMatMul": "products$|^tiles$",
    "GatedBlockMatMul": "products$|^tiles$",
    "GatedDeltaNet": "^scan",
    "PagedAttention": "^attend",
}
_KINDS = sorted(set(_KERNELS.values()))


def record(out: Path) -> None:
    """On the fake device: the rows of verifies and of a draft of each model, as JSON."""
    device, found = FakeDevice(library_path("cuda")), {}
    for geometry in MODELS:
        with tempfile.TemporaryDirectory() as folder:
            package = Path(folder) / "package"
            export(write_hollow(geometry, Path(folder) / "model.gguf"), package, ExportOptions(weights="reference"))
            engine = load(package, device="cuda", context=CONTEXT, sequences=1)
            sequence = engine.steps.new_sequence()
            engine.steps.prefill([sequence], [[0] * 16])
            steps: dict[str, tuple[str, int, Callable[[], object]]] = {
                f"verify of {rows}": ("verify", rows, partial(engine.steps.verify, [sequence], [[0] * rows]))
                for rows in ROWS
            } | {"draft": ("draft", 1, partial(engine.steps.draft, [sequence], [0]))}
            for step, (name, rows, run) in steps.items():
                graph = GraphCost(package / f"{name}.onnx")
                device.launches()
                run()
                launches = device.launches()
                # Of X experts each row chooses k: so many different ones, if by chance.
                work = Workload(
                    rows, 1, CONTEXT, dict.fromkeys(graph.expert_nodes(), 256 * (1 - (1 - 8 / 256) ** rows))
                )
                found[f"{geometry}, {step}"] = [asdict(row) for row in rows_of(launches, graph.by_node(work))]
    out.write_text(json.dumps(found))


def recorded() -> dict[str, list[Row]]:
    """What `record` writes, from a process that finds the fake device first."""
    provider = Path(ort.__file__).parent / "capi" / "libonnxruntime_providers_cuda.so"
    fake = ROOT / "build" / "fake_cuda"
    build("cuda/fake_cuda", fake, f"-DPROVIDER={provider}")
    libraries = build_emulator(library_path("cpu"))
    environment = {"LD_LIBRARY_PATH": str(fake), "TRIGRAPH_LIBRARY_DIR": str(libraries), "TRIGRAPH_FAKE_CUDA": "dry"}
    environment["TRIGRAPH_CUDA_GRAPHS"] = "0"  # each launch is recorded
    with tempfile.TemporaryDirectory() as name:
        out = Path(name) / "rows.json"
        subprocess.run([sys.executable, __file__, "--record", str(out)], env=os.environ | environment, check=True)
        found = json.loads(out.read_text())
    return {name: [Row(Launch(**row["launch"]), row["bytes"]) for row in rows] for name, rows in found.items()}


@dataclass(frozen=True)
class Estimate:
    """Of a launch on a GPU."""

    warps: int
    loads: float
    """KB in flight on a multiprocessor: what registers wait for, or what is copied to shared memory meanwhile."""
    enough: bool
    us: float


def estimate(row: Row, compiled: Mapping[str, Kernel], gpu: Gpu) -> Estimate:
    """A launch on paper."""
    kernel, launch = compiled[plain_name(row.launch.kernel)], row.launch
    together = min(launch.blocks, gpu.resident(kernel, launch) * gpu.multiprocessors)
    copies = kernel.count("LDGSTS") > 0  # to rings in shared memory, which rows of activations take a small part of
    loads = together * (launch.shared if copies else launch.threads * kernel.bytes_in_flight())
    share = min(1.0, loads / gpu.needed)
    us = GAP_US + 2 * gpu.latency_us + row.bytes / (gpu.gb_s * 1e3 * REACHED * share)
    per_multiprocessor = 1024 * min(gpu.multiprocessors, launch.blocks)
    warps = -(-together // gpu.multiprocessors) * -(-launch.threads // 32)
    return Estimate(warps, loads / per_multiprocessor, share == 1.0, us)


def table(rows: Iterable[Row], compiled: Mapping[str, Mapping[str, Kernel]]) -> str:
    """A line for each kernel with its grid, and their sum."""
    groups: dict[tuple[Launch, float], int] = defaultdict(int)
    for row in rows:
        groups[row.launch, row.bytes] += 1
    lines = [
        "| kernel | launches | blocks | registers | warps an SM | KB in flight | MB | "
        + " | ".join(f"{gpu.name}, µs" for gpu in GPUS) + " |",
        "|" + "---|" * (7 + len(GPUS)),
    ]  # fmt: skip
    sums = [0.0] * len(GPUS)
    for (launch, moved), count in groups.items():
        found = [estimate(Row(launch, moved), compiled[gpu.architecture], gpu) for gpu in GPUS]
        sums = [total + count * one.us for total, one in zip(sums, found, strict=True)]
        name, first = plain_name(launch.kernel), found[0]
        times = " | ".join(f"{one.us:.1f}{'' if one.enough or one.us < 5 else ' (short)'}" for one in found)
        short = name.split(", F32")[0] + (">" if ", F32" in name else "")
        lines.append(
            f"| `{short}` | {count} | {launch.blocks} | {compiled['sm_90'][name].registers} | {first.warps} | "
            f"{first.loads:.0f} | {moved / 1e6:.2f} | {times} |"
        )
    total = " | ".join(f"{us / 1e3:.2f} ms" for us in sums)
    return "\n".join([*lines, f"| a step | {sum(groups.values())} | | | | | | {total} |"])


def main() -> None:
    """All tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--record", type=Path, metavar="FILE", help="write the launches to FILE; needs the fake device")
    if file := parser.parse_args().record:
        record(file)
        return
    found = recorded()
    with tempfile.TemporaryDirectory() as folder:
        compiled = {
            name: {kernel.name: kernel for kernel in kernels(FILES, name, Path(folder))} for name in ("sm_89", "sm_90")
        }
    for name, rows in found.items():
        print(f"### {name}\n\n{table(rows, compiled)}\n")


if __name__ == "__main__":
    main()
