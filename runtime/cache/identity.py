"""Which model a state belongs to."""

from __future__ import annotations

import dataclasses
import hashlib
from dataclasses import dataclass

from trigraph.exporter import Manifest
from trigraph.exporter.package.manifest import CONTRACT_VERSION, WeightFile
from trigraph.models.errors import TrigraphError


@dataclass(frozen=True)
class ModelIdentity:
    """What must agree for a model to continue from a saved state; another one would continue with nonsense."""

    name: str = ""
    weights: str = ""
    """SHA-256 of the sizes and hashes of the weight files, those of an MTP head or a block drafter included; a vision
    tower's is not: images say which one saw them."""
    contract_version: int = CONTRACT_VERSION
    kv_type: str = ""
    activations: str = ""
    """The package's kind, and the arithmetic of a device that computes other bits."""
    mtp_head: bool = False
    rope_scaling: str = "none"

    @classmethod
    def of(cls, manifest: Manifest, arithmetic: str = "") -> ModelIdentity:
        """The identity of a package's model; `arithmetic`: see Device."""
        scaling = manifest.config.rope_scaling
        tower = None if manifest.images is None else manifest.images.weights
        files = "".join(map(_described, [file for file in manifest.weight_files if file.location != tower]))
        return cls(
            manifest.config.name,
            hashlib.sha256(files.encode()).hexdigest(),
            CONTRACT_VERSION,
            manifest.kv_type,
            ", ".join(filter(None, (manifest.activations, arithmetic))),
            "draft" in manifest.graphs,
            "none" if scaling is None else str(scaling),
        )

    def versus(self, found: ModelIdentity) -> str:
        """What is `found` in its place, to be said in an error."""
        parts = self.name == found.name and self.weights != found.weights
        return f"{found}" + (" (files of draft_model and mtp count as weights)" if parts else "")

    def __str__(self) -> str:
        head = "with" if self.mtp_head else "without"
        return (
            f"{self.name[:80]!r} (weights {self.weights[:8]}, contract {self.contract_version}, KV {self.kv_type}, "
            f"activations {self.activations}, RoPE scaling {self.rope_scaling}, {head} MTP head)"
        )


def _described(file: WeightFile) -> str:
    return f"{file.bytes} {file.header_sha256} {file.sample_sha256}\n"


def tower_sha256(manifest: Manifest) -> str:
    """SHA-256 of the vision tower's configuration and weight file, as part of what images' rows depend on."""
    if manifest.images is None:
        raise TrigraphError("the package has no vision tower")
    files = [file for file in manifest.weight_files if file.location == manifest.images.weights]
    config = dataclasses.replace(manifest.images.tower, name="")
    kind = "" if manifest.images.activations == "float32" else f"{manifest.images.activations} "
    return hashlib.sha256(f"{kind}{config} {''.join(map(_described, files))}".encode()).hexdigest()
