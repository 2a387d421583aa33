"""Small GGUF files with random weights and the exact structure of the three architectures."""

from support.models.random_gguf.geometry import PRESETS, Architecture
from support.models.random_gguf.tensors import HALF_NORMS, Item, with_half_norms
from support.models.random_gguf.write import changed, write_random

__all__ = ["HALF_NORMS", "PRESETS", "Architecture", "Item", "changed", "with_half_norms", "write_random"]
