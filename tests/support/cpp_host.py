"""The C++ host on the trained tiny model, and the hash that it prints on every machine."""

from __future__ import annotations

from pathlib import Path

from trigraph.exporter import ExportOptions, export

BITS = "bits 4aea28f86c707497"


def export_for_host(model: Path, folder: Path) -> Path:
    """A package that holds its weights."""
    export(model, folder, ExportOptions(weights="copy"))
    return folder


def host_arguments(package: Path, library: Path) -> list[str]:
    """Arguments of the host that print the hash."""
    return [str(package), "--library", str(library), "--bits", "1,2,3", "5,6,7,8,9"]
