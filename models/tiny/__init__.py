"""The shipped tiny model and the recipe that made it (see README.md beside it)."""

from pathlib import Path

TINY_GGUF = Path(__file__).with_name("tiny-q8_0.gguf")
"""A trained qwen35moe model with an MTP head, 7 MB."""
