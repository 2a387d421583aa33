"""manifest.json: what a host needs to know of a package before it opens a graph."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path

from trigraph.exporter.package.fingerprint import sha256_of_sample, sha256_of_start
from trigraph.exporter.package.state_tensors import StateTensor
from trigraph.models.config import ModelConfig
from trigraph.models.drafter.config import BlockDrafterConfig
from trigraph.models.errors import TrigraphError, quote
from trigraph.models.sampling import SuggestedSampling
from trigraph.models.tokenizer import SpecialTokens
from trigraph.models.vision.config import VisionConfig

CONTRACT_VERSION = 9
"""Version of the graphs' inputs, outputs, state and bits, which the graphs state as well as the manifest."""
FEATURES = ("drafter", "images", "streams")
"""What packages may have beside text by one residual stream, drafted by an MTP head."""
FORMAT = "trigraph package"
FILE_NAME = "manifest.json"
GRAPHS = ("prefill", "draft", "block", "verify", "vision")
SIDE_FILE = "side.bin"
EXPERT_COUNTS = "expert_counts.json"
"""A file that programs which run the package leave in its folder."""


def features_of(config: ModelConfig, *, images: bool, drafter: bool) -> tuple[str, ...]:
    """The FEATURES of a model's package, which may read images and have a block drafter."""
    present = {"images": images, "streams": config.streams is not None, "drafter": drafter}
    return tuple(name for name in FEATURES if present[name])


@dataclass(frozen=True)
class WeightFile:
    """A file that graphs point into, and how to tell that it is still the same one."""

    location: str
    """Path relative to the folder of the weights, with forward slashes; graphs state the same."""
    bytes: int
    header_bytes: int
    """How many bytes from the start `header_sha256` covers: in a GGUF, all before the tensor data."""
    header_sha256: str
    sample_sha256: str
    """The SHA-256 of blocks spread over the file; see `sha256_of_sample`."""

    @classmethod
    def of(cls, path: Path, location: str, header_bytes: int) -> WeightFile:
        """Describe an existing file."""
        size, header = path.stat().st_size, sha256_of_start(path, header_bytes)
        return cls(location, size, header_bytes, header, sha256_of_sample(path))


@dataclass(frozen=True)
class OperatorLibrary:
    """The library of custom operators that graphs were made for."""

    name: str
    """Domain of the operators; the file for a provider is lib{name}_{provider}.so, .dylib, or {name}_{provider}.dll."""
    version: str
    """A library that differs in the first two numbers is refused."""


@dataclass(frozen=True)
class ImageInput:
    """How a package reads images."""

    tower: VisionConfig
    weights: str
    """Location of the weight file that holds the tower."""
    activations: str = field(default_factory=lambda: "float32")
    """The type of activations in the tower's products."""


@dataclass(frozen=True)
class Manifest:
    """A package's description, everything that its graphs do not say themselves."""

    config: ModelConfig
    special_tokens: SpecialTokens
    graphs: tuple[str, ...]
    """The GRAPHS that exist, each in `{name}.onnx`: draft if there is an MTP head, block a drafter, vision a tower."""
    operator_library: OperatorLibrary
    state: tuple[StateTensor, ...]
    weight_files: tuple[WeightFile, ...]
    weights_folder: str | None
    """Absolute folder of the weight files when they are referenced in place, None when the package holds them."""
    max_context: int
    """Most positions of a sequence."""
    max_pending: int
    """K: most tokens of a sequence in one verify."""
    page_size: int
    draft_vocab: int | None
    """How many token ids the draft can choose from; None in a package without a draft."""
    kv_type: str
    activations: str
    portable: bool
    """Whether graphs carry function bodies. A host without the operator library then runs them, on two buffers for each
    state tensor that it swaps after each step: native operators may write an output before another reads the input."""
    notices: tuple[str, ...]
    """What the export changed, one sentence each."""
    sampling: SuggestedSampling = dataclasses.field(default_factory=SuggestedSampling)
    """How the file suggests to sample; packages of earlier versions do not say."""
    images: ImageInput | None = dataclasses.field(default_factory=lambda: None)
    """None in a package of text alone, which need not have the key."""
    drafter: BlockDrafterConfig | None = dataclasses.field(default_factory=lambda: None)
    """The block drafter of the block graph; None in a package without one, which need not have the key."""

    @property
    def features(self) -> tuple[str, ...]:
        """The FEATURES that hosts must know."""
        return features_of(self.config, images=self.images is not None, drafter=self.drafter is not None)

    @property
    def reach(self) -> int:
        """The most places behind a sequence that a round writes, be it with drafts or with what it verifies."""
        return max(self.max_pending, 0 if self.drafter is None else self.drafter.block)

    def write(self, folder: Path) -> None:
        """Write manifest.json."""
        head = {"format": FORMAT, "contract_version": CONTRACT_VERSION, "features": self.features}
        content = {**head, **dataclasses.asdict(self)}
        for name in ("images", "drafter"):
            if content[name] is None:
                del content[name]
        if self.config.streams is None:
            del content["config"]["streams"]
        (folder / FILE_NAME).write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")

    def check_library(self, version: str) -> None:
        """Raise TrigraphError unless an operator library of `version` runs the graphs."""
        wanted = self.operator_library
        if version.split(".")[:2] != wanted.version.split(".")[:2]:
            raise TrigraphError(
                f"the package was exported for version {wanted.version[:40]} of the operator library "
                f"{quote(wanted.name)}, and the one here is {version}; export the package again, or install the other "
                "version of trigraph"
            )

    def weights_base(self, folder: Path) -> Path:
        """The folder that locations of weight files are relative to, for the package in `folder`."""
        return folder if self.weights_folder is None else Path(self.weights_folder)

    def weight_paths(self, folder: Path) -> dict[str, Path]:
        """The weight files of the package in `folder`, by location."""
        base = self.weights_base(folder)
        return {file.location: base / file.location for file in self.weight_files}
