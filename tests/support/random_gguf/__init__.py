"""Small GGUF files with random weights and the exact structure of the three architectures."""

from support.random_gguf.geometry import PRESETS, Architecture
from support.random_gguf.tensors import Item
from support.random_gguf.write import changed, write_random

__all__ = ["PRESETS", "Architecture", "Item", "changed", "write_random"]
