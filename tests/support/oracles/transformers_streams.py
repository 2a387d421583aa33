"""A model with residual streams from a GGUF file as transformers' own class; it has no class for the MTP head."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
import numpy.typing as npt
import pytest

from support.oracles.transformers import Weights, _block_weights, as_tensors, transformers_config
from trigraph.models import Model
from trigraph.models.streams import Ngrams, Streams

_MIXER = {"norm": "hc_norm", "down": "input_mix_weight_down", "up": "input_mix_weight_up"}
_INJECT = {"inject": "block_inject_weight"}
_PIECE = 256


def load_streams(model: Model) -> Any:
    """The torch model of the trunk. Skips the test without transformers, or where it is too old."""
    torch = pytest.importorskip("torch", reason="torch is not installed: no comparison with transformers")
    pytest.importorskip("transformers.models.qwen4_exp", reason="transformers does not know qwen4_exp")
    from transformers.models.qwen4_exp.configuration_qwen4_exp import Qwen4ExpTextConfig
    from transformers.models.qwen4_exp.modeling_qwen4_exp import Qwen4ExpForCausalLM

    assert model.config.streams is not None and model.config.streams.ngrams is not None
    config = Qwen4ExpTextConfig(**_config(model, model.config.streams, model.config.streams.ngrams))
    config._attn_implementation = "eager"
    trunk: Any = Qwen4ExpForCausalLM(config)
    weights = _weights(model, model.config.streams.ngrams)
    trunk.eval().load_state_dict(as_tensors(torch, weights), strict=True)
    return trunk


def streams_logits(trunk: Any, tokens: Any) -> npt.NDArray[np.float32]:
    """Logits [T, vocab] of one sequence from its start, in pieces: attention holds a piece's scores of all places."""
    import torch
    from transformers.cache_utils import DynamicCache

    ids, cache = torch.tensor(np.asarray(tokens, np.int64))[None], DynamicCache(config=trunk.config)
    pieces = [ids[:, at : at + _PIECE] for at in range(0, len(tokens), _PIECE)]
    with torch.no_grad():  # the cache's name is another one in 5.24 than in 5.23
        return np.concatenate([trunk(piece, None, None, cache).logits[0].numpy() for piece in pieces])


@contextmanager
def first_of_equal_groups() -> Iterator[list[npt.NDArray[np.float32]]]:
    """Within it the first of equal groups are chosen, of which torch.topk takes any. Yields a list of scores.

    To the list comes, for each row that leaves groups out, the least score that it takes and the best that it leaves.
    """
    import torch

    edges: list[npt.NDArray[np.float32]] = []
    topk = torch.Tensor.topk

    def first_ones(scores: Any, k: int, dim: int) -> Any:
        ordered = scores.sort(dim=dim, descending=True, stable=True)
        assert torch.equal(ordered.values[:k], topk(scores, k, dim=dim).values)
        if k < len(scores):
            edges.append(ordered.values[k - 1 : k + 1].numpy())
        return torch.return_types.topk((ordered.values[:k], ordered.indices[:k]))

    with patch.object(torch.Tensor, "topk", first_ones):
        yield edges


def _config(model: Model, streams: Streams, ngrams: Ngrams) -> dict[str, Any]:
    config, indexer = transformers_config(model), streams.indexer
    for name in ("num_mtp_layers", "mtp_layer_types"):
        del config[name]
    return config | {
        "layer_types": [
            "linear_attention" if recurrent else "indexed_attention" for recurrent in model.config.recurrent
        ],
        "hc_lowrank": streams.low_rank,
        "ple_layer_ids": [ngrams.layer + 1],
        "ngram_vocab_size_base": ngrams.moduli[0],
        "heads_per_ngram": ngrams.heads,
        "split_ngram_parts": 1,
        "make_ngram_vocab_size_divisible_by": 128,
        "indexer_n_heads": indexer.heads,
        "indexer_kv_heads": 1,
        "indexer_head_dim": indexer.head_dim,
        "indexer_budget": indexer.top * indexer.group,
        "indexer_compress_ratio": indexer.group,
        "output_gate_type": "sigmoid",
        "eos_token_id": ngrams.eos,
    }


def _weights(model: Model, ngrams: Ngrams) -> Weights:
    weights = {
        "model.embed_tokens.weight": model.array("token_embd.weight"),
        "lm_head.weight": model.array("output.weight"),
    }
    weights |= _mixer(model, "output_hc", "model.hyper_connection_mixer", _MIXER)
    for layer, recurrent in enumerate(model.config.recurrent):
        theirs, ours = f"model.layers.{layer}", f"blk.{layer}"
        block = _block_weights(model, layer, recurrent, norms=False)
        weights |= {f"{theirs}.{name}": value for name, value in block.items()}
        for part, name in (("attn", "attn_hyper_connection"), ("ffn", "mlp_hyper_connection")):
            weights |= _mixer(model, f"{ours}.hc_{part}", f"{theirs}.{name}", _MIXER | _INJECT)
        if not recurrent:
            projections = [model.array(f"{ours}.indexer.{name}_proj.weight") for name in "qk"]
            prefix = f"{theirs}.self_attn.indexer"
            weights[f"{prefix}.index_qk_proj.weight"] = np.concatenate(projections)
            weights |= {
                f"{prefix}.{x}_layernorm.weight": model.array(f"{ours}.indexer.{x}_norm.weight") - 1 for x in "qk"
            }
    return weights | _ngrams(model, ngrams)


def _mixer(model: Model, ours: str, theirs: str, names: dict[str, str]) -> Weights:
    values = {name: model.array(f"{ours}_{mine}.weight") for mine, name in names.items()}
    return {f"{theirs}.{name}.weight": value - (name == "hc_norm") for name, value in values.items()}


def _ngrams(model: Model, ngrams: Ngrams) -> Weights:
    ours, theirs = f"blk.{ngrams.layer}.ple_", f"model.layers.{ngrams.layer}.ple"
    weights = {f"{theirs}.{name}_proj.weight": model.array(f"{ours}{name}.weight") for name in ("key", "value")}
    for name in ("norm_key", "norm_query", "norm_conv"):
        weights[f"{theirs}.{name}.weight"] = model.array(f"{ours}{name}.weight") - 1
    weights[f"{theirs}.conv1d.weight"] = model.array(f"{ours}conv1d.weight")[:, None]
    table = f"{theirs}.ple_embedding"
    constants = {
        "layer_multipliers": ngrams.multipliers,
        "ngram_heads_offsets": ngrams.offsets,
        "ngram_heads_vocab_sizes": ngrams.moduli,
    }
    weights |= {f"{table}.{name}": np.array(value, np.int64) for name, value in constants.items()}
    weights[f"{table}.ngram_embedding.weight"] = model.array("per_layer_token_embd.weight")
    return weights
