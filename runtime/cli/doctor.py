"""The command `trigraph doctor`: whether this machine computes the recorded bits."""

from __future__ import annotations

import dataclasses
import json

import typer

from trigraph.custom_ops import ALL_SETS
from trigraph.runtime.cli import arguments
from trigraph.runtime.doctor.examine import Examination, Finding, examine


def doctor(as_json: arguments.AsJson = False, device: arguments.Device = "cpu") -> None:
    """Check that this machine computes the same bits as every other one, on each instruction set of its processor."""
    found = examine(device)
    if as_json:
        findings = [dataclasses.asdict(one) | {"agrees": one.agrees} for one in found.findings]
        print(json.dumps(dataclasses.asdict(found) | {"findings": findings, "agrees": found.agrees}))
    else:
        print("\n".join(_lines(found)))
    if not found.agrees:
        raise typer.Exit(1)


def _lines(found: Examination) -> list[str]:
    width = max(len(finding.kernels) for finding in found.findings)
    return [
        f"{found.processor}, operator library {found.library}, ONNX Runtime {found.onnxruntime}",
        f"recorded bits: {found.recorded}, contract version {found.contract}",
        *(f"{finding.kernels:{width}}  {_verdict(finding)}" for finding in found.findings),
        *([f"not in this build: {', '.join(found.absent)}; {ALL_SETS}"] if found.absent else []),
    ]


def _verdict(finding: Finding) -> str:
    if finding.problem is not None:
        return f"does not run: {finding.problem}"
    if finding.differs:
        return f"differs in {', '.join(finding.differs)}"
    if finding.distance is not None:
        return f"near: logits within {finding.distance:.1e} of the CPU's; no draft, cut or companion changes a bit"
    return f"agrees, weights {' and '.join(finding.weights)}"
