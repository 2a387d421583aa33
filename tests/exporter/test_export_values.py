"""What the exported graphs compute, in a minimal host, against the NumPy forward pass."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from support.host import Host
from support.models.gguf_bytes import Entry
from support.models.random_gguf import Architecture, Item, changed, write_random
from trigraph.exporter import ExportOptions, export
from trigraph.models.errors import TrigraphError
from trigraph.models.model import Model, open_model
from trigraph.models.reference import Reference

ARCHITECTURES: tuple[Architecture, ...] = ("qwen35", "qwen35moe", "qwen3next")


def close(actual: npt.NDArray[Any], expected: npt.NDArray[Any]) -> None:
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-4)


def own_head(item: Item) -> list[Item]:
    """Give the MTP head an embedding and an output matrix of its own, and leave it to the trunk's norm."""
    if item.name == "blk.4.nextn.enorm.weight":
        names = ("embed_tokens", "shared_head_head")
        return [item, *(Item(f"blk.4.nextn.{name}.weight", (320, 64), "matrix", 1 / 8) for name in names)]
    return [] if "shared_head_norm" in item.name else [item]


def write_case(case: str, folder: Path) -> Model:
    """Write the files of a case and export them to folder / "package"."""
    path, mtp = folder / "model.gguf", None
    if case == "own head":
        write_random(path, "qwen35", preset="nano", edit=own_head)
    elif case == "fused, tied, Q8_0":
        write_random(path, "qwen35moe", preset="nano", fused=True, tied=True, dtype="Q8_0")
    elif case == "k-quants":
        types = {
            "*ffn_down*": "Q6_K",
            "*ffn_up*": "Q5_K",
            "token_embd*": "Q5_K",
            "output*": "Q6_K",
            "*ssm_out*": "Q8_0",
        }
        write_random(path, "qwen3next", preset="blocks", dtype="Q4_K", types=types)
    elif case == "separate head":
        write_random(path, "qwen35", preset="nano", mtp=False)
        mtp = write_random(folder / "mtp-model.gguf", "qwen35", preset="nano", mtp="only")
    elif case == "listed layers, split":
        path = write_random(
            path, "qwen35", preset="nano", recurrent=[False, True, True, False], split_tensors=20, dtype="F16"
        )
    else:
        write_random(path, case, preset="nano")  # type: ignore[arg-type]
    export(path, folder / "package", ExportOptions(kv_type="f32", activations="float32", mtp=mtp))
    return open_model(path, mtp)


@pytest.mark.parametrize(
    "case", [*ARCHITECTURES, "own head", "fused, tied, Q8_0", "k-quants", "separate head", "listed layers, split"]
)
def test_against_the_specification(case: str, tmp_path: Path, operator_library: Path) -> None:
    """Two ragged sequences: prefill in two chunks, a verify, a verify that commits part of it, a chain of drafts."""
    model = write_case(case, tmp_path)
    reference, host = Reference(model), Host(tmp_path / "package", operator_library)
    rng = np.random.default_rng(0)
    texts = [rng.integers(0, model.config.vocab, size) for size in (30, 21)]
    hidden, logits = zip(*(reference.trunk(text) for text in texts), strict=True)
    tables = np.array([[3, 5], [1, 7]])
    slots = {"slots_in": [2, 0], "slots_out": [2, 0]}

    def step(graph: str, starts: Sequence[int], counts: Sequence[int], accepted: Sequence[int]) -> dict[str, Any]:
        ids = np.concatenate([text[a : a + n] for text, a, n in zip(texts, starts, counts, strict=True)])
        before = [h[a - 1] if a else np.zeros_like(h[0]) for h, a in zip(hidden, starts, strict=True)]
        cu = np.cumsum([0, *counts])
        extra = {"prev_hidden": np.array(before)} if graph == "prefill" else {}
        return host.run(
            graph,
            input_ids=ids,
            cu_seqlens=cu,
            past_lens=starts,
            accepted=accepted,
            page_table=tables,
            **slots,
            **extra,
        )

    step("prefill", (0, 0), (5, 9), (0, 0))
    out = step("prefill", (5, 9), (12, 1), (0, 0))
    for s, end in enumerate((17, 10)):
        close(out["logits"][s], logits[s][end - 1])
        close(out["hidden"][s], hidden[s][end - 1])

    for starts, counts, accepted in (
        ((17, 10), (8, 3), (0, 0)),
        ((20, 13), (2, 8), (3, 3)),
        ((20, 14), (1, 1), (0, 1)),
    ):
        out = step("verify", starts, counts, accepted)
        rows = np.concatenate([logits[s][a : a + n] for s, (a, n) in enumerate(zip(starts, counts, strict=True))])
        close(out["logits"], rows)
        np.testing.assert_array_equal(out["tokens"], out["logits"].argmax(-1))

    # The head's entries of 17 and 10 tokens stand from the prefill; catch up to position 20 and 14, then chain.
    ends, kept = (20, 14), (17, 10)
    ids = np.concatenate([text[a:b] for text, a, b in zip(texts, kept, ends, strict=True)])
    before = np.concatenate([h[a - 1 : b - 1] for h, a, b in zip(hidden, kept, ends, strict=True)])
    cu = np.cumsum([0, *(b - a for a, b in zip(kept, ends, strict=True))])
    expected = []
    for text, h, end in zip(texts, hidden, ends, strict=True):
        previous = np.concatenate([np.zeros_like(h[:1]), h[: end - 1]])
        expected.append(reference.draft(text[:end], previous, 4))
    past = np.array(kept)
    for index in range(4):
        out = host.run("draft", input_ids=ids, prev_hidden=before, cu_seqlens=cu, past_lens=past, page_table=tables)
        for s, (tokens, rows) in enumerate(expected):
            assert out["tokens"][s] == tokens[index]
            top = np.exp(rows[index] - rows[index].max())
            close(out["probability"][s], 1 / top.sum())
        past = np.array(ends) + index
        ids, before, cu = out["tokens"], out["hidden"], np.arange(3)


def test_without_a_head_runs(tmp_path: Path, operator_library: Path) -> None:
    """`prev_hidden` stays an input of a prefill that has no use for it."""
    source = write_random(tmp_path / "model.gguf", "qwen35moe", preset="nano", mtp=False)
    export(source, tmp_path / "package", ExportOptions(kv_type="f16", activations="float32"))
    model, host = open_model(source), Host(tmp_path / "package", operator_library)
    ids = np.arange(9)
    one: dict[str, Any] = {"page_table": [[0]], "past_lens": [0], "accepted": [0], "slots_in": [0], "slots_out": [0]}
    hidden = np.zeros((1, model.config.hidden))
    out = host.run("prefill", input_ids=ids, cu_seqlens=[0, 9], prev_hidden=hidden, **one)
    np.testing.assert_allclose(out["logits"][0], Reference(model).trunk(ids)[1][-1], rtol=0, atol=0.02)


def test_draft_among_the_first_tokens(tmp_path: Path, operator_library: Path) -> None:
    """`draft_vocab` takes the likeliest of the first rows, and its probability among them."""
    source = write_random(tmp_path / "model.gguf", "qwen35", preset="nano")
    model = open_model(source)
    inputs: dict[str, Any] = {
        "input_ids": [5, 6, 7],
        "prev_hidden": np.random.default_rng(0).standard_normal((3, model.config.hidden)),
        "cu_seqlens": [0, 3],
        "past_lens": [0],
        "page_table": [[0]],
    }
    _, logits = Reference(model).mtp([5, 6, 7], np.asarray(inputs["prev_hidden"]))
    for vocab in (1, 50, model.config.vocab):
        export(source, tmp_path / "package", ExportOptions(kv_type="f32", activations="float32", draft_vocab=vocab))
        out = Host(tmp_path / "package", operator_library).run("draft", **inputs)
        among = np.exp(logits[-1, :vocab])
        assert out["tokens"][0] == among.argmax()
        close(out["probability"], among.max(keepdims=True) / among.sum())


def test_a_context_that_no_program_could_load(tmp_path: Path) -> None:
    def lengthen(pairs: dict[str, Any], tensors: dict[str, Entry]) -> None:
        (key,) = [key for key in pairs if key.endswith(".context_length")]
        pairs[key] = (1 << 31) + 1

    with pytest.raises(TrigraphError, match=r"context_length' is 2147483649, expected at most 2147483648"):
        export(changed(tmp_path, lengthen), tmp_path / "package")
