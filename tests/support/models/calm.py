"""Random models that amplify little.

In those of `write_synthetic`, every layer adds to a row what is as large as the row, so the last bit of an input
becomes a hundred last bits of a logit, whoever computes it. Trained layers add less. Here they do, too, and what is
left of a difference is that of the computation.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import gguf

_BRANCHES = (
    *("attn_output.weight", "ssm_out.weight", "ffn_down.weight", "ffn_down_exps.weight", "ffn_down_shexp.weight"),
    *("attn_out.weight", "attn_out.bias", "ffn_down.bias"),  # of towers
)
SCALE = 1 / 4


def calmed(source: Path, path: Path, scale: float = SCALE) -> Path:
    """A copy of an F32 file in which what layers add to their rows is multiplied by `scale`."""
    shutil.copy(source, path)
    path.chmod(0o644)
    reader = gguf.GGUFReader(path, "r+")
    found = [tensor for tensor in reader.tensors if tensor.name.endswith(_BRANCHES)]
    assert found and {tensor.tensor_type for tensor in found} == {gguf.GGMLQuantizationType.F32}
    for tensor in found:
        tensor.data[...] *= scale
    del reader, found  # which writes it
    return path
