"""The MTP head as a torch module, with the parameter names of published checkpoints, and the joint loss."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig
from transformers.models.qwen3_5_moe.modeling_qwen3_5_moe import (
    Qwen3_5MoeDecoderLayer,
    Qwen3_5MoeRMSNorm,
    apply_rotary_pos_emb,
)

Entry = tuple[Tensor, Tensor]
"""Keys and values of one pass of the head over a sequence, [batch, kv heads, tokens, head dim] each."""


class MtpHead(nn.Module):
    """(token x_p, hidden h_{p-1}) -> hidden that predicts x_{p+1}; embedding and output matrix are the trunk's."""

    def __init__(self, config: Qwen3_5MoeTextConfig) -> None:
        super().__init__()
        block = copy.deepcopy(config)
        block.layer_types = ["full_attention"]
        block.num_hidden_layers = 1
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.fc = nn.Linear(2 * hidden, hidden, bias=False)
        self.layers = nn.ModuleList([Qwen3_5MoeDecoderLayer(block, 0)])
        self.norm = Qwen3_5MoeRMSNorm(hidden, eps=eps)
        self.pre_fc_norm_hidden = Qwen3_5MoeRMSNorm(hidden, eps=eps)
        self.pre_fc_norm_embedding = Qwen3_5MoeRMSNorm(hidden, eps=eps)

    def forward(
        self, embedded: Tensor, hidden: Tensor, rotary: tuple[Tensor, Tensor], chain: list[Entry]
    ) -> tuple[Tensor, Entry]:
        """All positions of a sequence at once, as one link of a chain of drafts.

        embedded, hidden: [batch, tokens, hidden]. chain: the entries of the earlier links, none for the first one. A
        position sees the first link's entries up to itself, and of each later link only its own.
        Returns the hidden after `norm` and this link's entry.
        """
        layer: Any = self.layers[0]
        attention = layer.self_attn
        x = self.fc(torch.cat([self.pre_fc_norm_embedding(embedded), self.pre_fc_norm_hidden(hidden)], -1))
        y = layer.input_layernorm(x)
        batch, tokens, _ = y.shape
        dim = attention.head_dim
        query, gate = attention.q_proj(y).view(batch, tokens, -1, 2 * dim).chunk(2, -1)
        query = attention.q_norm(query).transpose(1, 2)
        key = attention.k_norm(attention.k_proj(y).view(batch, tokens, -1, dim)).transpose(1, 2)
        value = attention.v_proj(y).view(batch, tokens, -1, dim).transpose(1, 2)
        query, key = apply_rotary_pos_emb(query, key, *rotary)  # type: ignore[no-untyped-call]
        out = _chained_attention(query * attention.scaling, [*chain, (key, value)])
        out = out.transpose(1, 2).reshape(batch, tokens, -1) * gate.reshape(batch, tokens, -1).sigmoid()
        x = x + attention.o_proj(out)
        x = x + layer.mlp(layer.post_attention_layernorm(x))
        return self.norm(x), (key, value)


def _chained_attention(query: Tensor, chain: list[Entry]) -> Tensor:
    group = query.shape[1] // chain[0][0].shape[1]
    keys = [key.repeat_interleave(group, 1) for key, _ in chain]
    values = [value.repeat_interleave(group, 1) for _, value in chain]
    tokens = query.shape[2]
    future = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
    causal = (query @ keys[0].transpose(-1, -2)).masked_fill(future, float("-inf"))
    own = [(query * key).sum(-1, keepdim=True) for key in keys[1:]]
    weights = torch.cat([causal, *own], -1).softmax(-1)
    out = weights[..., :tokens] @ values[0]
    for i, value in enumerate(values[1:]):
        out = out + weights[..., tokens + i, None] * value
    return out


def losses(trunk: Qwen3_5MoeForCausalLM, head: MtpHead, ids: Tensor, depth: int) -> list[Tensor]:
    """Cross-entropies of the trunk and of drafts 1..depth; ids is [batch, tokens + 1 + depth]."""
    tokens = ids.shape[1] - 1 - depth
    output = trunk.lm_head.weight

    def loss(hidden: Tensor, ahead: int) -> Tensor:
        logits = functional.linear(hidden, output).flatten(0, 1)
        return functional.cross_entropy(logits, ids[:, ahead : ahead + tokens].flatten())

    hidden = trunk.model(input_ids=ids[:, :tokens], use_cache=False).last_hidden_state
    chain = enumerate(drafts(trunk, head, ids, hidden, depth), 1)
    return [loss(hidden, 1), *(loss(drafted, link + 1) for link, drafted in chain)]


def drafts(trunk: Qwen3_5MoeForCausalLM, head: MtpHead, ids: Tensor, hidden: Tensor, depth: int) -> Iterator[Tensor]:
    """The head's hidden rows of drafts 1..depth after each row of `hidden` [batch, tokens, hidden], the trunk's.

    ids is [batch, tokens + depth] at least. Draft d of row i has seen tokens up to i + d, and predicts the next one.
    """
    tokens = hidden.shape[1]
    chain: list[Entry] = []
    for link in range(1, depth + 1):
        positions = torch.arange(link, tokens + link).expand(3, 1, tokens)
        rotary = trunk.model.rotary_emb(hidden, positions)
        embedded = trunk.model.embed_tokens(ids[:, link : tokens + link])
        hidden, entry = head(embedded, hidden, rotary, chain)
        chain.append(entry)
        yield hidden


class RouterBalance:
    """Load-balancing loss of the MoE routers (Switch Transformer, averaged over layers), gathered by hooks."""

    def __init__(self, routers: list[nn.Module]) -> None:
        self._seen: list[tuple[Tensor, Tensor]] = []
        for router in routers:
            router.register_forward_hook(self._record)

    def _record(self, _module: nn.Module, _inputs: Any, outputs: Any) -> None:
        logits, _weights, chosen = outputs
        self._seen.append((logits, chosen))

    def clear(self) -> None:
        self._seen.clear()

    def loss(self) -> Tensor:
        terms = []
        for logits, chosen in self._seen:
            experts = logits.shape[-1]
            probability = logits.float().softmax(-1).mean(0)
            share = functional.one_hot(chosen, experts).float().sum(1).mean(0)
            terms.append(experts * (probability * share).sum() / chosen.shape[-1])
        self.clear()
        return torch.stack(terms).mean()
