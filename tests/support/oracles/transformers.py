"""A model from a GGUF file as transformers' own classes: the oracle for logits that nobody here wrote.

The mapping is the inverse of llama.cpp's conversion: norms lose their 1, value heads go back from tiled to grouped
order, and qwen3next gets its interleaved projections back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from trigraph.models import Model, ModelConfig

Weights = dict[str, npt.NDArray[np.float32]]

_CLASSES = {
    "qwen35": ("Qwen3_5TextConfig", "Qwen3_5ForCausalLM"),
    "qwen35moe": ("Qwen3_5MoeTextConfig", "Qwen3_5MoeForCausalLM"),
    "qwen3next": ("Qwen3NextConfig", "Qwen3NextForCausalLM"),
}
_ATTENTION = {"q_proj": "attn_q", "k_proj": "attn_k", "v_proj": "attn_v", "o_proj": "attn_output"}


@dataclass
class Head:
    """transformers' MtpModel with the cache of one sequence."""

    model: Any
    cache: Any

    def __call__(
        self, tokens: npt.NDArray[Any], previous: npt.NDArray[Any], start: int = 0
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """Hidden states and logits for tokens at positions `start` on; `previous` as in Reference.mtp."""
        import torch

        with torch.no_grad():
            hidden = self.model.forward_layer(
                0,
                torch.tensor(np.asarray(previous, np.float32))[None],
                torch.arange(start, start + len(tokens))[None],
                self.cache,
                input_ids=torch.tensor(np.asarray(tokens, np.int64))[None],
            )
            return hidden[0].numpy(), self.model.shared_head(hidden)[0].numpy()


def load_transformers(model: Model) -> tuple[Any, Any | None]:
    """The torch model of the trunk, and the MtpModel of the head if there is one. Skips the test without transformers.

    Weights are float32, dequantised by `gguf.quants` where the file is quantised.
    """
    torch = pytest.importorskip("torch", reason="torch is not installed: no comparison with transformers")
    transformers = pytest.importorskip("transformers", reason="transformers is not installed: nothing to compare with")
    from transformers.modeling_layers import MtpModel

    config_class, model_class = (getattr(transformers, name) for name in _CLASSES[model.config.architecture])
    config = config_class(**transformers_config(model))
    config._attn_implementation = "eager"
    trunk: Any = model_class(config)
    trunk.eval().load_state_dict(as_tensors(torch, trunk_weights(model)), strict=True)
    if not model.config.mtp_layers:
        return trunk, None
    head: Any = MtpModel(trunk, 1)
    missing, unexpected = head.eval().load_state_dict(as_tensors(torch, head_weights(model)), strict=False)
    shared = ("embed_tokens.", "shared_head.", "rotary_emb.")
    assert not unexpected and all(name.startswith(shared) for name in missing), (missing, unexpected)
    return trunk, head


def run_trunk(trunk: Any, tokens: npt.NDArray[Any]) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Hidden states after the output norm [T, hidden] and logits [T, vocab] of one sequence from its start."""
    import torch

    with torch.no_grad():
        hidden = trunk.model(torch.tensor(np.asarray(tokens, np.int64))[None], use_cache=False).last_hidden_state
        return hidden[0].numpy(), trunk.lm_head(hidden)[0].numpy()


def new_head(head: Any) -> Head:
    """The head at the start of a text."""
    from transformers.cache_utils import MtpCache

    return Head(head, MtpCache(config=head.config))


def as_tensors(torch: Any, weights: Weights) -> dict[str, Any]:
    return {name: torch.from_numpy(np.require(value, requirements=["C", "W"])) for name, value in weights.items()}


def transformers_config(model: Model) -> dict[str, Any]:
    """Arguments of the configuration of the text model."""
    c = model.config
    rope: dict[str, Any] = {
        "rope_type": "default",
        "rope_theta": c.rope_theta,
        "partial_rotary_factor": c.rope_dims / c.head_dim,
    }
    if (scaling := c.rope_scaling) is not None:
        rope |= {"rope_type": "yarn", "factor": scaling.factor, "beta_fast": scaling.beta_fast}
        rope |= {"beta_slow": scaling.beta_slow, "original_max_position_embeddings": scaling.original_context}
    if (sections := model.file.metadata.get(f"{c.architecture}.rope.dimension_sections")) is not None:
        rope |= {"mrope_section": [int(section) for section in sections[:3]], "mrope_interleaved": True}
    ffn = {"intermediate_size": c.ffn}
    if c.experts:
        ffn = {
            "num_experts": c.experts,
            "num_experts_per_tok": c.experts_used,
            "norm_topk_prob": c.normalize_experts,  # of Qwen3-Next alone
            "moe_intermediate_size": c.expert_ffn,
            "shared_expert_intermediate_size": c.shared_ffn,
        }
    return ffn | {
        "vocab_size": c.vocab,
        "hidden_size": c.hidden,
        "num_hidden_layers": c.trunk_layers,
        "layer_types": ["linear_attention" if recurrent else "full_attention" for recurrent in c.recurrent],
        "num_attention_heads": c.heads,
        "num_key_value_heads": c.kv_heads,
        "head_dim": c.head_dim,
        "rms_norm_eps": c.rms_eps,
        "max_position_embeddings": c.context_length,
        "tie_word_embeddings": c.tied,
        "linear_num_key_heads": c.gdn_k_heads,
        "linear_num_value_heads": c.gdn_v_heads,
        "linear_key_head_dim": c.gdn_head_dim,
        "linear_value_head_dim": c.gdn_head_dim,
        "linear_conv_kernel_dim": c.conv_kernel,
        "rope_parameters": rope,
        "num_mtp_layers": 1,
        "mtp_layer_types": ["full_attention"],
    }


def trunk_weights(model: Model) -> Weights:
    """Everything but the head, by transformers' names."""
    embedding = model.array("token_embd.weight")
    weights = {
        "model.embed_tokens.weight": embedding,
        "model.norm.weight": model.array("output_norm.weight") - 1,
        "lm_head.weight": embedding if model.config.tied else model.array("output.weight"),
    }
    for layer, recurrent in enumerate(model.config.recurrent):
        block = _block_weights(model, layer, recurrent)
        weights |= {f"model.layers.{layer}.{name}": value for name, value in block.items()}
    return weights


def head_weights(model: Model) -> Weights:
    """Without embedding and output matrix, which MtpModel shares with the trunk."""
    layer = model.config.trunk_layers
    prefix = f"blk.{layer}.nextn"
    norm = f"{prefix}.shared_head_norm.weight"
    block = _block_weights(model, layer, recurrent=False)
    return {f"layers.0.mtp_block.{name}": value for name, value in block.items()} | {
        "layers.0.enorm.weight": model.array(f"{prefix}.enorm.weight") - 1,
        "layers.0.hnorm.weight": model.array(f"{prefix}.hnorm.weight") - 1,
        "layers.0.eh_proj.weight": model.array(f"{prefix}.eh_proj.weight"),
        "layers.0.post_norm.weight": model.array(norm if model.find(norm) else "output_norm.weight") - 1,
    }


def _block_weights(model: Model, layer: int, recurrent: bool, *, norms: bool = True) -> Weights:
    """`norms`: a block has one before each of its parts."""

    def w(name: str) -> npt.NDArray[np.float32]:
        return model.array(f"blk.{layer}.{name}")

    weights: Weights = {}
    if norms:
        weights["input_layernorm.weight"] = w("attn_norm.weight") - 1
        weights["post_attention_layernorm.weight"] = w("post_attention_norm.weight") - 1
    if recurrent:
        weights |= {f"linear_attn.{name}": value for name, value in _gdn_weights(model.config, w).items()}
    else:
        weights |= {f"self_attn.{name}.weight": w(f"{ours}.weight") for name, ours in _ATTENTION.items()}
        weights |= {f"self_attn.{x}_norm.weight": w(f"attn_{x}_norm.weight") - 1 for x in "qk"}
    if not model.config.experts:
        return weights | {f"mlp.{x}_proj.weight": w(f"ffn_{x}.weight") for x in ("gate", "up", "down")}
    if model.find(f"blk.{layer}.ffn_gate_up_exps.weight"):
        gate_up = w("ffn_gate_up_exps.weight")
    else:
        gate_up = np.concatenate([w("ffn_gate_exps.weight"), w("ffn_up_exps.weight")], axis=1)
    weights |= {f"mlp.shared_expert.{x}_proj.weight": w(f"ffn_{x}_shexp.weight") for x in ("gate", "up", "down")}
    return weights | {
        "mlp.gate.weight": w("ffn_gate_inp.weight"),
        "mlp.experts.gate_up_proj": gate_up,
        "mlp.experts.down_proj": w("ffn_down_exps.weight"),
        "mlp.shared_expert_gate.weight": w("ffn_gate_inp_shexp.weight")[None],
    }


def _gdn_weights(c: ModelConfig, w: Callable[[str], npt.NDArray[np.float32]]) -> Weights:
    k_heads, v_heads, ratio, dim = c.gdn_k_heads, c.gdn_v_heads, c.gdn_v_heads // c.gdn_k_heads, c.gdn_head_dim
    heads = np.arange(v_heads)
    # Grouped head h is number h % ratio of key head h // ratio; the tiled order interleaves the key heads.
    order = heads % ratio * k_heads + heads // ratio if c.gdn_tiled else heads

    def grouped(x: npt.NDArray[np.float32], size: int) -> npt.NDArray[np.float32]:
        return x.reshape(v_heads, size, *x.shape[1:])[order].reshape(x.shape)

    def grouped_v(x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """The same for the value rows of q | k | v."""
        return np.concatenate([x[: 2 * c.key_dim], grouped(x[2 * c.key_dim :], dim)])

    qkv, z = grouped_v(w("attn_qkv.weight")), grouped(w("attn_gate.weight"), dim)
    weights = {
        "conv1d.weight": grouped_v(w("ssm_conv1d.weight"))[:, None],
        "dt_bias": grouped(w("ssm_dt.bias"), 1),
        "A_log": np.log(-grouped(w("ssm_a"), 1)),
        "norm.weight": w("ssm_norm.weight"),
        "out_proj.weight": grouped(w("ssm_out.weight").T, dim).T,
    }
    if c.architecture != "qwen3next":
        return weights | {
            "in_proj_qkv.weight": qkv,
            "in_proj_z.weight": z,
            "in_proj_b.weight": grouped(w("ssm_beta.weight"), 1),
            "in_proj_a.weight": grouped(w("ssm_alpha.weight"), 1),
        }
    q, k, v = np.split(qkv, [c.key_dim, 2 * c.key_dim])
    rows = [x.reshape(k_heads, -1, c.hidden) for x in (q, k, v, z)]  # for each key head: q, k, its v and z
    return weights | {
        "in_proj_qkvz.weight": np.concatenate(rows, axis=1).reshape(-1, c.hidden),
        "in_proj_ba.weight": w("ssm_ba.weight"),
    }
