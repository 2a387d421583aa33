"""A text model and a vision tower from their GGUF files as transformers' own class: the oracle for images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from support.oracles.transformers import Weights, as_tensors, head_weights, transformers_config, trunk_weights
from trigraph.models import Model
from trigraph.models.vision import shapes
from trigraph.models.vision.config import POSITION_TABLE, VisionConfig
from trigraph.models.vision.tower import Tower
from trigraph.runtime.device.heap import trim_heap

_CLASSES = {
    "qwen35": ("Qwen3_5Config", "Qwen3_5ForConditionalGeneration"),
    "qwen35moe": ("Qwen3_5MoeConfig", "Qwen3_5MoeForConditionalGeneration"),
}
_BLOCK = {
    "norm1": shapes.LN1,
    "norm2": shapes.LN2,
    "attn.qkv": shapes.ATTN_QKV,
    "attn.proj": shapes.ATTN_OUT,
    "mlp.linear_fc1": shapes.FFN_UP,
    "mlp.linear_fc2": shapes.FFN_DOWN,
}
_MERGER = {"norm": shapes.MERGER_NORM, "linear_fc1": shapes.MERGER_IN, "linear_fc2": shapes.MERGER_OUT}
IMAGE_TOKENS = ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")


@dataclass(frozen=True)
class Answer:
    """What transformers computes of a prompt with images."""

    logits: npt.NDArray[np.float64]
    positions: npt.NDArray[np.int64]
    """[3, T]"""
    embeddings: list[npt.NDArray[np.float64]]
    """Of each image."""
    head_logits: npt.NDArray[np.float64]
    """Of the MTP head: entry p from the row of token p, its position, and the hidden row p - 1."""


@dataclass(frozen=True)
class Oracle:
    """The torch model and its MTP head; the image token is the vocabulary's last one."""

    model: Any
    head: Any

    @property
    def image_token(self) -> int:
        return int(self.model.config.image_token_id)

    def __call__(
        self, tokens: list[int], patches: list[npt.NDArray[np.float32]], grids: list[tuple[int, int]]
    ) -> Answer:
        """`tokens` have the image token in every place of an image; `patches` of an image are [N, 768]."""
        import torch

        ids = torch.tensor([tokens])
        kinds = (ids == self.image_token).int()
        extra: dict[str, Any] = {"mm_token_type_ids": kinds}
        embeddings: Any = []
        with torch.no_grad():
            rows = self.model.get_input_embeddings()(ids)
            if patches:
                grid, pixels = torch.tensor([[1, *grid] for grid in grids]), torch.cat(list(map(frames, patches)))
                extra |= {"pixel_values": pixels.double(), "image_grid_thw": grid}
                embeddings = self.model.get_image_features(extra["pixel_values"], grid).pooler_output
                rows[ids == self.image_token] = torch.cat(list(embeddings))
            positions, _ = self.model.model.get_rope_index(ids, kinds, extra.get("image_grid_thw"))
            hidden = self.model.model(input_ids=ids, **extra).last_hidden_state
            logits = self.model.lm_head(hidden)[0]
            head_logits = self._head_logits(rows, hidden, positions)
        return Answer(logits.numpy(), positions[:, 0].numpy(), [rows.numpy() for rows in embeddings], head_logits)

    def _head_logits(self, rows: Any, hidden: Any, positions: Any) -> npt.NDArray[np.float64]:
        """By the head's layer itself: its model takes ids alone, and so knows no rows of images."""
        import torch

        before = torch.cat([torch.zeros_like(hidden[:, :1]), hidden[:, :-1]], dim=1)
        mask = torch.full((1, 1, *[rows.shape[1]] * 2), -torch.inf, dtype=hidden.dtype).triu(1)
        angles = self.head.rotary_emb(rows, positions)
        found = self.head.layers[0](rows, before, angles, mask, position_ids=None, past_key_values=None)
        logits: npt.NDArray[np.float64] = self.head.shared_head(found)[0].numpy()
        return logits


def load_oracle(model: Model, tower: Tower) -> Oracle:
    """The whole model, in float64 as far as it goes: angles, the delta net and softmax stay in float32.

    Skips the test without transformers.
    """
    torch, transformers = _libraries()
    from transformers.modeling_layers import MtpModel

    config_class, model_class = (getattr(transformers, name) for name in _CLASSES[model.config.architecture])
    text, vocab = transformers_config(model), model.config.vocab
    special = {name: vocab - 1 - index for index, name in enumerate(IMAGE_TOKENS)}
    config = config_class(text_config=text, vision_config=_vision_config(tower.config), **special)
    weights = {
        name.replace("model.", "model.language_model.", 1) if name.startswith("model.") else name: value
        for name, value in trunk_weights(model).items()
    }
    weights |= {f"model.visual.{name}": value for name, value in _tower_weights(tower).items()}
    loaded: Any = model_class(config)
    loaded.eval().load_state_dict(as_tensors(torch, weights), strict=True)
    loaded.set_experts_implementation("eager")  # others have no float64
    head: Any = MtpModel(loaded, 1)
    head.eval().load_state_dict(as_tensors(torch, head_weights(model)), strict=False)
    head.set_experts_implementation("eager")
    return Oracle(loaded.double(), head.double())


def load_tower(tower: Tower) -> Any:
    """transformers' tower alone. Skips the test without transformers."""
    torch, _ = _libraries()
    from transformers.models.qwen3_5.configuration_qwen3_5 import Qwen3_5VisionConfig
    from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5VisionModel

    trim_heap()  # it takes most of what the process may
    loaded: Any = Qwen3_5VisionModel(Qwen3_5VisionConfig(**_vision_config(tower.config)))
    loaded.eval().load_state_dict(as_tensors(torch, _tower_weights(tower)), strict=True, assign=True)
    return loaded


def tower_embeddings(loaded: Any, patches: npt.NDArray[np.float32], grid: tuple[int, int]) -> npt.NDArray[np.float32]:
    """Embeddings of one image by transformers' tower."""
    import torch

    with torch.no_grad():
        found = loaded(frames(patches), torch.tensor([[1, *grid]])).pooler_output
    rows: npt.NDArray[np.float32] = found.numpy()
    return rows


def frames(patches: npt.NDArray[np.float32]) -> Any:
    """A still image as transformers takes it: two equal frames. [N, 3 x 2 x 256]"""
    import torch

    count = len(patches)
    return torch.tensor(np.repeat(patches.reshape(count, 3, 1, -1), 2, axis=2).reshape(count, -1))


def _libraries() -> tuple[Any, Any]:
    torch = pytest.importorskip("torch", reason="torch is not installed: no comparison with transformers")
    transformers = pytest.importorskip("transformers", reason="transformers is not installed: nothing to compare with")
    return torch, transformers


def _vision_config(c: VisionConfig) -> dict[str, Any]:
    return {
        "depth": c.layers,
        "hidden_size": c.width,
        "intermediate_size": c.ffn,
        "num_heads": c.heads,
        "out_hidden_size": c.hidden,
        "num_position_embeddings": c.table_side**2,
    }


def _tower_weights(tower: Tower) -> Weights:
    pairs = {"pos_embed.weight": tower.array(POSITION_TABLE)}
    pairs["patch_embed.proj.weight"] = np.stack([tower.array(name) for name in shapes.PATCH_WEIGHTS], axis=2)
    pairs["patch_embed.proj.bias"] = tower.array(shapes.PATCH_BIAS)
    stems = {f"merger.{theirs}": ours for theirs, ours in _MERGER.items()}
    for layer in range(tower.config.layers):
        stems |= {f"blocks.{layer}.{theirs}": shapes.in_block(layer, ours) for theirs, ours in _BLOCK.items()}
    for theirs, ours in stems.items():
        pairs |= {f"{theirs}.{kind}": tower.array(f"{ours}.{kind}") for kind in ("weight", "bias")}
    return pairs
