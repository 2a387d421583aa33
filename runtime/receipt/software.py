"""The packages whose versions decide a text, beside the model: what is sampled, and what a constraint allows."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version


@dataclass(frozen=True)
class Software:
    """The version of each package; "none" where it is not installed."""

    trigraph: str
    numpy: str
    llguidance: str
    tokenizers: str

    @classmethod
    def here(cls) -> Software:
        """The versions that this program has."""
        return cls(*map(_version, ("trigraph", "numpy", "llguidance", "tokenizers")))


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"
