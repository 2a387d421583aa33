"""From a model description to a package: prefill.onnx, draft.onnx, verify.onnx, and what a host needs beside them."""

from trigraph.exporter.describe.description import Description, describe
from trigraph.exporter.export import export
from trigraph.exporter.options import ExportOptions
from trigraph.exporter.package.manifest import Manifest
from trigraph.exporter.package.reader import is_package, read_manifest

__all__ = ["Description", "ExportOptions", "Manifest", "describe", "export", "is_package", "read_manifest"]
