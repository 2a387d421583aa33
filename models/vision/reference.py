"""The forward pass of a vision tower in NumPy and float64: what graphs and kernels are compared with."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from trigraph.models.reference_layers import Array, rotate, softmax
from trigraph.models.vision import shapes
from trigraph.models.vision.config import MERGE, POSITION_TABLE
from trigraph.models.vision.grid import patch_places, table_rows
from trigraph.models.vision.tower import Tower

ROPE_THETA = 10000.0


def layer_norm(x: Array, weight: Array, bias: Array, eps: float) -> Array:
    difference = x - x.mean(axis=-1, keepdims=True)
    variance: Array = (difference * difference).mean(axis=-1, keepdims=True)
    normed: Array = difference / np.sqrt(variance + eps)
    return normed * weight + bias


def gelu_tanh(x: Array) -> Array:
    """The approximation of GELU that the blocks were trained with."""
    tanh: Array = np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))
    return 0.5 * x * (1 + tanh)


def gelu_erf(x: Array) -> Array:
    """GELU itself, which the merger was trained with."""
    erf: Array = np.vectorize(math.erf, otypes=[np.float64])(x / math.sqrt(2))
    return 0.5 * x * (1 + erf)


def angles(places: npt.NDArray[np.int32], head_dim: int) -> Array:
    """The angles of patches at `places` [2, N], [N, pairs]: half of a head's pairs turn by row, half by column."""
    pairs = head_dim // 2
    frequency = ROPE_THETA ** (-np.arange(0, pairs, 2) / pairs)
    return np.concatenate([place[:, None] * frequency for place in places], axis=-1)


class TowerReference:
    """The forward pass of a tower, weights in float64."""

    def __init__(self, tower: Tower) -> None:
        self.tower, self.config = tower, tower.config
        self._weights: dict[str, Array] = {}

    def __call__(self, patches: npt.NDArray[np.floating], rows: int, columns: int) -> Array:
        """Rows [rows x columns / 4, hidden] for the text model, of one image's grid of patches [rows x columns, 768].

        Patches are in the order of `patch_places`, normalised, their numbers in the order channel, row, column.
        """
        index, weights = table_rows(rows, columns, self.config.table_side)
        table = self._tensor(POSITION_TABLE)
        first, second = (self._tensor(name).reshape(self.config.width, -1) for name in shapes.PATCH_WEIGHTS)
        x = patches.astype(np.float64) @ (first + second).T + self._tensor(shapes.PATCH_BIAS)
        x = x + np.einsum("cn,cnd->nd", weights, table[index])
        angle = angles(patch_places(rows, columns), self.config.head_dim)[:, None]
        turn = np.cos(angle), np.sin(angle)
        for layer in range(self.config.layers):
            x = x + self._attention(layer, self._norm(shapes.in_block(layer, shapes.LN1), x), turn)
            y = self._linear(shapes.in_block(layer, shapes.FFN_UP), self._norm(shapes.in_block(layer, shapes.LN2), x))
            x = x + self._linear(shapes.in_block(layer, shapes.FFN_DOWN), gelu_tanh(y))
        x = self._norm(shapes.MERGER_NORM, x).reshape(-1, MERGE * MERGE * self.config.width)
        return self._linear(shapes.MERGER_OUT, gelu_erf(self._linear(shapes.MERGER_IN, x)))

    def _attention(self, layer: int, x: Array, turn: tuple[Array, Array]) -> Array:
        """Every patch sees every patch of the image."""
        c = self.config
        apart = f"{shapes.in_block(layer, shapes.ATTN_EACH[0])}.weight" in self.tower.tensors
        parts = shapes.ATTN_EACH if apart else (shapes.ATTN_QKV,)
        rows = np.concatenate([self._linear(shapes.in_block(layer, part), x) for part in parts], axis=-1)
        qkv = rows.reshape(len(x), 3, c.heads, c.head_dim)
        q, k, v = qkv.transpose(1, 2, 0, 3)  # [heads, N, head dim]
        q, k = (rotate(y.transpose(1, 0, 2), turn).transpose(1, 0, 2) for y in (q, k))
        mixed = np.empty_like(v)
        for head in range(c.heads):  # one at a time: [N, N] scores of 16384 patches take 2 GB
            mixed[head] = softmax(q[head] @ k[head].T / math.sqrt(c.head_dim)) @ v[head]
        return self._linear(shapes.in_block(layer, shapes.ATTN_OUT), mixed.transpose(1, 0, 2).reshape(len(x), -1))

    def _linear(self, name: str, x: Array) -> Array:
        return x @ self._tensor(f"{name}.weight").T + self._tensor(f"{name}.bias")

    def _norm(self, name: str, x: Array) -> Array:
        return layer_norm(x, self._tensor(f"{name}.weight"), self._tensor(f"{name}.bias"), self.config.eps)

    def _tensor(self, name: str) -> Array:
        if name not in self._weights:
            self._weights[name] = self.tower.array(name).astype(np.float64)
        return self._weights[name]
