"""Files that Ollama has written of these models, under the names that llama.cpp's converter gives.

Its older files hold everything in one: the vision tower as `v.*`, and the MTP head as `mtp.*`, one tensor an expert and
three of its norms as they were trained, which is 1 less than what a product takes. Some names and keys differ, too.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from trigraph.models import names
from trigraph.models.architecture import ARCHITECTURES
from trigraph.models.errors import quote
from trigraph.models.gguf_file import GGUFFile, Pieces, Tensor
from trigraph.models.keys import Keys

# What the names of tensors begin with.
_HEAD = "mtp."
_TOWER = ("v.", "mm.")
_UNUSED = ("s.", "a.")  # towers that none of these models has

# By Ollama's key, the one that means the same.
_KEYS = {
    "norm_top_k_prob": "expert_weights_norm",
    "mrope_sections": "rope.dimension_sections",
    "rope.mrope_section": "rope.dimension_sections",
}
_HEAD_NAMES = {
    "mtp.fc.weight": names.NEXTN_EH_PROJ,
    "mtp.pre_fc_norm_embedding.weight": names.NEXTN_ENORM,
    "mtp.pre_fc_norm_hidden.weight": names.NEXTN_HNORM,
    "mtp.norm.weight": names.NEXTN_SHARED_HEAD_NORM,
    "mtp.shared_head.norm.weight": names.NEXTN_SHARED_HEAD_NORM,
    "mtp.shared_head.head.weight": names.NEXTN_SHARED_HEAD_HEAD,
    "mtp.embed_tokens.weight": names.NEXTN_EMBED_TOKENS,
}
_HEAD_NORMS = (names.NEXTN_ENORM, names.NEXTN_HNORM, names.NEXTN_SHARED_HEAD_NORM)
_HEAD_LAYER = re.compile(r"mtp\.layers\.0\.(?P<name>.+)")
_EXPERT = re.compile(r"mlp\.experts\.(?P<expert>\d{1,5})\.(?P<part>gate|up|down)_proj\.weight")
_EXPERTS = {"gate": names.FFN_GATE_EXPS, "up": names.FFN_UP_EXPS, "down": names.FFN_DOWN_EXPS}
_LONGEST_NORM = 1 << 20


def translated(file: GGUFFile) -> GGUFFile:
    """The file with the names of llama.cpp's converter, without its vision tower; any other file as it is."""
    architecture = file.metadata.get("general.architecture")
    if not isinstance(architecture, str) or architecture not in ARCHITECTURES:
        return file
    tensors, head, tower, unused = dict[str, Tensor](), dict[str, Tensor](), dict[str, Tensor](), Counter[str]()
    for name, tensor in file.tensors.items():
        if name.startswith(_HEAD):
            head[name] = tensor
        elif name.startswith(_TOWER):
            tower[name] = tensor
        elif name.startswith(_UNUSED):
            unused[name[:2]] += 1
        elif names.role(name) + ".bias" == names.SSM_DT:
            tensors[f"{name}.bias"] = replace(tensor, name=f"{name}.bias")
        else:
            tensors[name] = tensor
    metadata = _with_keys(file.metadata, f"{architecture}.")
    notices = [
        f"{count} tensors {prefix}* are not used: models of {architecture} have none"
        for prefix, count in unused.items()
    ]
    found = _Head()
    if head:
        keys = Keys(file, f"{architecture}.")
        mtp_layers = keys.integer("nextn_predict_layers", 0, least=0)
        trunk = keys.integer("block_count", least=1 + mtp_layers) - mtp_layers
        if not any(name.startswith(names.in_block(trunk, "nextn.")) for name in tensors):
            found = _read_head(file, head, trunk)
            if found.tensors:
                metadata |= {f"{architecture}.block_count": trunk + 1, f"{architecture}.nextn_predict_layers": 1}
    return replace(
        file,
        metadata=MappingProxyType(metadata),
        tensors=MappingProxyType(tensors | found.tensors),
        made=found.made,
        others=MappingProxyType(tower),
        notices=(*notices, *found.notices),
    )


def _with_keys(metadata: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """The metadata with the keys that Ollama's take the place of, unless they are there."""
    keys = dict(metadata)
    for theirs, ours in _KEYS.items():
        if prefix + theirs in metadata:
            keys.setdefault(prefix + ours, metadata[prefix + theirs])
    return keys


@dataclass
class _Head:
    """An MTP head under the names of the block after the trunk's."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    made: dict[str, Pieces] = field(default_factory=dict)
    notices: tuple[str, ...] = ()


def _read_head(file: GGUFFile, tensors: Mapping[str, Tensor], block: int) -> _Head:
    """The head of these tensors; none, and why, where they are not those of one."""
    head, experts = _Head(), dict[str, dict[int, Tensor]]()
    for name, tensor in tensors.items():
        match = _HEAD_LAYER.fullmatch(name)
        role = match["name"] if match else _HEAD_NAMES.get(name)
        if role is None:
            return _Head(notices=(f"the MTP head is left out: tensor {quote(name)} is not known in it",))
        if expert := _EXPERT.fullmatch(role):
            experts.setdefault(_EXPERTS[expert["part"]], {})[int(expert["expert"])] = tensor
            continue
        renamed = replace(tensor, name=names.in_block(block, role))
        if _is_less_by_one(file, tensor, role):
            renamed = replace(renamed, type="F32", offset=None, nbytes=4 * math.prod(tensor.shape))
            head.made[renamed.name] = partial(_one_more, file, name)
        head.tensors[renamed.name] = renamed
    for role, parts in experts.items():
        first, name = parts.get(0), names.in_block(block, role)
        ordered = [parts[expert] for expert in sorted(parts)]
        if (
            first is None
            or len(parts) != max(parts) + 1
            or {(t.type, t.shape) for t in ordered} != {(first.type, first.shape)}
        ):
            return _Head(notices=(f"the MTP head is left out: its experts' tensors of {role} do not make one",))
        head.tensors[name] = Tensor(
            name, first.type, (len(ordered), *first.shape), first.file, None, sum(tensor.nbytes for tensor in ordered)
        )
        head.made[name] = partial(_joined, file, ordered)
    return head


def _one_more(file: GGUFFile, name: str) -> Iterator[npt.NDArray[np.uint8]]:
    yield (file.array(name) + np.float32(1)).view(np.uint8)


def _joined(file: GGUFFile, tensors: Sequence[Tensor]) -> Iterator[npt.NDArray[np.uint8]]:
    yield from (file.raw(tensor.name) for tensor in tensors)


def _is_less_by_one(file: GGUFFile, tensor: Tensor, role: str) -> bool:
    """Whether a norm is stored as it was trained, around 0. The converter has left three of them so; of others some
    values are then below 0. A wrong guess costs drafts, and changes no text."""
    if len(tensor.shape) != 1 or not role.endswith("norm.weight") or tensor.shape[0] > _LONGEST_NORM:
        return False
    return role in _HEAD_NORMS or bool((file.array(tensor.name) < 0).mean() > 0.01)
