"""The shipped tiny model; README.md beside it has its quality, and the recipe."""

from pathlib import Path

TINY_GGUF = Path(__file__).with_name("tiny-q8_0.gguf")
"""A trained qwen35moe model with an MTP head, 7 MB."""
