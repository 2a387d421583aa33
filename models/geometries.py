"""Dimensions of the published hybrid models, and of four small ones for tests."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from itertools import accumulate

from trigraph.models.architecture import ARCHITECTURES
from trigraph.models.errors import TrigraphError
from trigraph.models.streams import Indexer, Ngrams, Streams


@dataclass(frozen=True)
class Geometry:
    """What a synthetic file needs to know of a model. `layers` counts the trunk; `mtp_layers` is 0 or 1."""

    architecture: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    gdn_k_heads: int
    gdn_v_heads: int
    ffn: int
    """Width of the dense feed-forward layer; some mixtures of experts state one as well."""
    tied: bool = False
    experts: int = 0
    experts_used: int = 0
    expert_ffn: int = 0
    shared_ffn: int = 0
    head_dim: int = 256
    rope_dims: int = 64
    rope_sections: tuple[int, ...] = (11, 11, 10, 0)
    rope_theta: float = 1e7
    gdn_head_dim: int = 128
    conv_kernel: int = 4
    attention_interval: int = 4
    rms_eps: float = 1e-6
    context_length: int = 262144
    vocab: int = 248320
    mtp_layers: int = 1
    streams: Streams | None = None

    @property
    def value_dim(self) -> int:
        """Width of the values of a Gated DeltaNet layer."""
        return self.gdn_v_heads * self.gdn_head_dim

    @property
    def gdn_channels(self) -> int:
        """Rows of the fused q|k|v projection of a Gated DeltaNet layer."""
        return 2 * self.gdn_k_heads * self.gdn_head_dim + self.value_dim

    @property
    def recurrent(self) -> tuple[bool, ...]:
        """For each trunk layer: Gated DeltaNet (True) or full attention."""
        return tuple((layer + 1) % self.attention_interval != 0 for layer in range(self.layers))

    @property
    def fused_beta_alpha(self) -> bool:
        """Whether one matrix projects to beta and alpha of Gated DeltaNet."""
        return ARCHITECTURES[self.architecture].fused_beta_alpha


_SMALL = Geometry(
    architecture="qwen35",
    layers=4,
    hidden=256,
    heads=4,
    kv_heads=2,
    gdn_k_heads=2,
    gdn_v_heads=4,
    ffn=512,
    head_dim=64,
    rope_dims=16,
    rope_sections=(3, 3, 2, 0),
    gdn_head_dim=64,
    context_length=4096,
    vocab=512,
)
_SMALL_MOE = dataclasses.replace(
    _SMALL, architecture="qwen35moe", ffn=0, experts=8, experts_used=2, expert_ffn=256, shared_ffn=256
)


def _ngrams(heads: int, width: int, eos: int, multipliers: tuple[int, ...], moduli: tuple[int, ...]) -> Ngrams:
    """The n-grams of layer 1, by 2 and 3 tokens; the table's parts lie behind each other, in a multiple of 128 rows."""
    rows = -(-sum(moduli) // 128) * 128
    offsets = tuple(accumulate(moduli[:-1], initial=0))
    return Ngrams(1, 3, heads, 4, width, rows, eos, multipliers, moduli, offsets)


# The next 16 primes from 20,000,000 on.
_FLASH_NEXT_MODULI = tuple(
    20_000_000 + more for more in (3, 23, 33, 47, 59, 63, 69, 77, 81, 93, 107, 147, 153, 159, 161, 171)
)
_FLASH_NEXT = Streams(
    4, 320, Indexer(heads=4, head_dim=128, group=4, top=512),
    _ngrams(8, 160, 248044, (23703573157769, 20109073645365, 8052911324071), _FLASH_NEXT_MODULI),
)  # fmt: skip
_SMALL_STREAMS = Streams(
    4, 64, Indexer(heads=2, head_dim=32, group=4, top=512),
    _ngrams(2, 64, 0, (1234577, 7654321, 9182735), (101, 103, 107, 109)),
)  # fmt: skip

_DENSE_27B = Geometry("qwen35", 64, 5120, 24, 4, 16, 48, ffn=17408)

GEOMETRIES = {
    "qwen3.5-0.8b": Geometry("qwen35", 24, 1024, 8, 2, 16, 16, ffn=3584, tied=True),
    "qwen3.5-4b": Geometry("qwen35", 32, 2560, 16, 4, 16, 32, ffn=9216, tied=True),
    "qwen3.5-9b": Geometry("qwen35", 32, 4096, 16, 4, 16, 32, ffn=12288),
    "qwen3.6-27b": _DENSE_27B,
    "qwen3.8-27b": _DENSE_27B,
    "qwen3.6-35b-a3b": Geometry(
        "qwen35moe", 40, 2048, 16, 2, 16, 32, ffn=0, experts=256, experts_used=8, expert_ffn=512, shared_ffn=512
    ),
    "qwen3.8-2.4t-a95b": Geometry(
        "qwen35moe", 92, 8192, 64, 4, 16, 128, ffn=0, experts=512, experts_used=10, expert_ffn=2048, shared_ffn=2048
    ),
    "qwen3-next-80b-a3b": Geometry(
        "qwen3next", 48, 2048, 16, 2, 16, 32, ffn=5120, experts=512, experts_used=10, expert_ffn=512, shared_ffn=512,
        vocab=151936,
    ),
    "qwen3.8-flash-next": Geometry(
        "qwen4exp", 48, 2560, 24, 2, 16, 48, ffn=0, experts=512, experts_used=10, expert_ffn=640, shared_ffn=640,
        streams=_FLASH_NEXT,
    ),
    "tiny-dense": _SMALL,
    "tiny-moe": _SMALL_MOE,
    "tiny-next": dataclasses.replace(_SMALL_MOE, architecture="qwen3next", ffn=512),
    "tiny-streams": dataclasses.replace(_SMALL_MOE, architecture="qwen4exp", streams=_SMALL_STREAMS),
    "tiny-sparse": dataclasses.replace(
        _SMALL_MOE, architecture="qwen4exp",
        streams=dataclasses.replace(_SMALL_STREAMS, indexer=dataclasses.replace(_SMALL_STREAMS.indexer, top=5)),
    ),
}  # fmt: skip


def geometry(
    name: str,
    *,
    layers: int | None = None,
    vocab: int | None = None,
    experts: int | None = None,
    mtp: bool = True,
) -> Geometry:
    """A geometry by name, with fewer trunk layers, tokens or experts, or without the MTP head, where asked."""
    if name not in GEOMETRIES:
        raise TrigraphError(f"unknown geometry {name!r}; the known ones are {', '.join(GEOMETRIES)}")
    known = GEOMETRIES[name]
    if experts is not None and not known.experts:
        raise TrigraphError(f"geometry {name} has no experts; leave --experts out")
    for what, value in (("layers", layers), ("vocab", vocab), ("experts", experts)):
        if value is not None and value < 1:
            raise TrigraphError(f"--{what} is {value}; it must be at least 1")
    experts = known.experts if experts is None else experts
    streams = known.streams
    if streams is not None and streams.ngrams is not None and layers is not None and layers <= streams.ngrams.layer:
        streams = dataclasses.replace(streams, ngrams=None)
    return dataclasses.replace(
        known,
        layers=known.layers if layers is None else layers,
        vocab=known.vocab if vocab is None else vocab,
        experts=experts,
        experts_used=min(known.experts_used, experts),
        mtp_layers=known.mtp_layers if mtp else 0,
        streams=streams,
    )
