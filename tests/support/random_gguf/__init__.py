"""Small GGUF files with random weights and the exact structure of the three architectures."""

from support.random_gguf.geometry import PRESETS, Architecture
from support.random_gguf.tensors import HALF_NORMS, Item, with_half_norms
from support.random_gguf.write import changed, write_random

__all__ = ["HALF_NORMS", "PRESETS", "Architecture", "Item", "changed", "with_half_norms", "write_random"]
