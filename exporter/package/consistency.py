"""Whether the values of a manifest can be true: a host sizes its memory by them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

from trigraph.exporter.package.manifest import ImageInput, Manifest
from trigraph.exporter.package.state_tensors import KV_TYPES, MAX_PENDING, PAGE_SIZE, state_tensors
from trigraph.models.architecture import ARCHITECTURES
from trigraph.models.config import MAX_LAYERS, ModelConfig
from trigraph.models.drafter.config import check_drafter
from trigraph.models.errors import MAX_LENGTH, TrigraphError, quote
from trigraph.models.gguf_header import MAX_HEADER_BYTES
from trigraph.models.keys import MAX_SIZE
from trigraph.models.streams import check_streams

_MAX_FILE_BYTES = 2**63 - 1
_MOST_NOTICES = 64
_MAY_BE_ZERO = {"mtp_layers", "experts", "experts_used", "expert_ffn", "shared_ffn", "ffn"}


def check_values(manifest: Manifest, path: Path) -> None:
    """Raise TrigraphError, naming the key, when a value is out of range or contradicts another one."""

    def require(condition: bool, key: str, value: object, expected: str) -> None:
        if not condition:
            raise TrigraphError(f"{path}: key '{key}' is {quote(value)}, expected {expected}; export the package again")

    def require_range(key: str, value: int, least: int, most: int) -> None:
        require(least <= value <= most, key, value, f"{least} to {most}")

    config, notices = manifest.config, manifest.notices
    short = all(len(notice) <= 2 * MAX_LENGTH for notice in notices) and len(notices) <= _MOST_NOTICES
    require(short, "notices", notices, f"at most {_MOST_NOTICES} sentences")
    require(config.architecture in ARCHITECTURES, "config.architecture", config.architecture, "a known architecture")
    for name in _sizes(config):
        require_range(f"config.{name}", getattr(config, name), 0 if name in _MAY_BE_ZERO else 1, MAX_SIZE)
    require_range("config.trunk_layers", config.trunk_layers, 1, MAX_LAYERS)
    require_range("config.mtp_layers", config.mtp_layers, 0, 1)
    layers = len(config.recurrent)
    require(layers == config.trunk_layers, "config.recurrent", layers, f"{config.trunk_layers} entries")

    if config.streams is not None:
        check_streams(config.streams, config.recurrent, require)
    streamed = ARCHITECTURES[config.architecture].streams
    require(streamed == (config.streams is not None), "config.streams", config.streams, "those of the architecture")

    optional = {"draft": config.mtp_layers, "block": manifest.drafter, "vision": manifest.images}
    graphs = {"prefill", "verify", *(name for name, part in optional.items() if part)}
    require(sorted(graphs) == sorted(manifest.graphs), "graphs", manifest.graphs, f"{', '.join(sorted(graphs))}")
    require_range("max_context", manifest.max_context, 1, config.context_length)
    require_range("max_pending", manifest.max_pending, MAX_PENDING, MAX_PENDING)
    require_range("page_size", manifest.page_size, PAGE_SIZE, PAGE_SIZE)
    if manifest.draft_vocab is not None:
        require_range("draft_vocab", manifest.draft_vocab, 1, config.vocab)
    require(len(manifest.weight_files) > 0, "weight_files", manifest.weight_files, "at least one")
    for file in manifest.weight_files:
        require_range("weight_files.bytes", file.bytes, 0, _MAX_FILE_BYTES)
        require_range("weight_files.header_bytes", file.header_bytes, 0, MAX_HEADER_BYTES)
    if manifest.images is not None:
        _check_images(manifest.images, manifest, require)
    if manifest.drafter is not None:
        check_drafter(manifest.drafter, config, require)
    special = manifest.special_tokens
    for token in (special.bos, special.eos, special.pad, *special.stop):
        if token is not None:
            require_range("special_tokens", token, 0, config.vocab - 1)
    require(not special.add_bos or special.bos is not None, "special_tokens.bos", special.bos, "a token, to be added")

    require(manifest.kv_type in KV_TYPES, "kv_type", manifest.kv_type, f"one of {', '.join(KV_TYPES)}")
    expected = {tensor.name: tensor for tensor in state_tensors(config, manifest.kv_type, drafter=manifest.drafter)}
    for tensor in manifest.state:
        wanted = expected.pop(tensor.name, None)
        require(wanted is not None, "state", tensor.name, "a state tensor of the model, once")
        for name, value in vars(wanted).items():
            found = getattr(tensor, name)
            require(found == value, f"state.{tensor.name}.{name}", found, f"{value!r}")
    require(not expected, "state", None, f"{next(iter(expected), None)} too")


def _check_images(images: ImageInput, manifest: Manifest, require: Callable[[bool, str, object, str], None]) -> None:
    tower, key = images.tower, "images.tower"
    for name in ("layers", "width", "heads", "ffn", "table_side"):
        size, most = getattr(tower, name), MAX_LAYERS if name == "layers" else MAX_SIZE
        require(1 <= size <= most, f"{key}.{name}", size, f"1 to {most}")
    require(tower.hidden == manifest.config.hidden, f"{key}.hidden", tower.hidden, f"{manifest.config.hidden}")
    for name, least in (("mean", 0.0), ("std", 2.0**-10)):
        numbers = getattr(tower, name)
        fits = len(numbers) == 3 and all(least <= number <= 1 for number in numbers)
        require(fits, f"{key}.{name}", numbers, f"three numbers from {least:.3g} to 1")
    for name in ("min_pixels", "max_pixels"):
        limit = getattr(tower, name)
        require(limit is None or 1 <= limit <= MAX_SIZE, f"{key}.{name}", limit, f"1 to {MAX_SIZE}, or null")
    kinds = ("float32", "int8")
    require(images.activations in kinds, "images.activations", images.activations, f"one of {', '.join(kinds)}")
    files = [file.location for file in manifest.weight_files]
    require(images.weights in files, "images.weights", images.weights, f"one of {', '.join(files)}")


def _sizes(config: ModelConfig) -> list[str]:
    """Names of the fields that count something."""
    return [field.name for field in fields(config) if type(getattr(config, field.name)) is int]
