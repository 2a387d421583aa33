"""Which model a state belongs to."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from trigraph.exporter import Manifest
from trigraph.exporter.package.manifest import CONTRACT_VERSION


@dataclass(frozen=True)
class ModelIdentity:
    """What must agree for a model to continue from a saved state; another one would continue with nonsense."""

    name: str = ""
    weights: str = ""
    """SHA-256 of the sizes and hashes of the weight files, an MTP head's own file included."""
    contract_version: int = CONTRACT_VERSION
    kv_type: str = ""
    activations: str = ""
    mtp_head: bool = False
    rope_scaling: str = "none"

    @classmethod
    def of(cls, manifest: Manifest) -> ModelIdentity:
        """The identity of a package's model."""
        scaling = manifest.config.rope_scaling
        files = "".join(f"{file.bytes} {file.header_sha256} {file.sample_sha256}\n" for file in manifest.weight_files)
        return cls(
            manifest.config.name,
            hashlib.sha256(files.encode()).hexdigest(),
            CONTRACT_VERSION,
            manifest.kv_type,
            manifest.activations,
            "draft" in manifest.graphs,
            "none" if scaling is None else str(scaling),
        )

    def __str__(self) -> str:
        head = "with" if self.mtp_head else "without"
        return (
            f"{self.name[:80]!r} (weights {self.weights[:8]}, contract {self.contract_version}, KV {self.kv_type}, "
            f"activations {self.activations}, RoPE scaling {self.rope_scaling}, {head} MTP head)"
        )
