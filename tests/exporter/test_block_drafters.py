"""Packages with a block drafter: their graphs against the reference, and what they change in the trunk: nothing."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.host import Host
from support.models.drafters import KINDS, TARGETS, Drafters
from support.models.drafting_host import DraftingHost, features, text
from support.models.gguf_bytes import Entry, contents, gguf_bytes
from support.models.packages import Packages
from support.models.seeing import SeeingPackages
from trigraph.exporter import ExportOptions, export, read_manifest
from trigraph.models import TrigraphError, open_model
from trigraph.models.drafter.drafter import open_drafter
from trigraph.models.drafter.reference import DrafterReference

# Relative to the largest. Features come from a trunk in float32.
TOLERANCE = 2e-5
EXACT: dict[str, Any] = {"kv_type": "f32", "activations": "float32"}
WINDOW = {"window": 70, "sliding": (True, False)}

pytestmark = pytest.mark.usefixtures("operator_library")

SLOW = pytest.mark.slow
VARIANTS: dict[str, dict[str, Any]] = {
    **{f"{kind}, {target}": {"kind": kind, "target": target} for kind in KINDS for target in TARGETS},
    "window": {"kind": "dflash2", **WINDOW},
    "all layers slide": {"kind": "dspark", "window": 70, "sliding": (True, True)},
    "window, causal": {"kind": "dflash", **WINDOW, "causal": (True, True)},
    "causal": {"kind": "dspark", "causal": (True, True)},
    "own embedding and head": {"kind": "dflash", "own": ("token_embd.weight", "output.weight")},
    "own head": {"kind": "dspark", "own": ("output.weight", "conf_proj.weight", "conf_proj.bias")},
    "not from the anchor": {"kind": "dspark", "from_anchor": False},
    "scaled and capped": {"kind": "dflash2", "logit_scale": 0.5, "logit_cap": 3.0},
    "other convolutions": {"kind": "dflash2", "conv_kernel": 2, "conv_group": 16, "block": 5},
    "kernel of the block's length": {"kind": "dflash2", "conv_kernel": 4, "block": 4},
    "last sum, and embeddings": {"kind": "dflash", "taps": (0, 4)},
    "one tap": {"kind": "dflash", "taps": (2,)},
    "partial rotation": {"kind": "dflash", "rope_dims": 32},
    "of four bits": {"kind": "dflash2", "quant": "Q4_K_M"},
    "of eight bits": {"kind": "dspark", "quant": "Q8_0", "own": ("token_embd.weight", "output.weight")},
    "of halves": {"kind": "dflash2", "quant": "BF16"},
    "other heads": {"kind": "dspark", "heads": 6, "kv_heads": 1, "head_dim": 32, "rope_dims": 32},
}


DAILY = ("dflash, tiny-dense", "dflash2, tiny-dense", "dspark, tiny-dense")


@pytest.mark.parametrize("variant", [pytest.param(name, marks=() if name in DAILY else SLOW) for name in VARIANTS])
def test_reference(tmp_path: Path, synthetic: Any, drafters: Drafters, operator_library: Path, variant: str) -> None:
    """Behind prefills of several lengths, and verifies of which some is rejected."""
    target = VARIANTS[variant].get("target", "tiny-dense")
    source, file = synthetic(target, "F32"), drafters(**VARIANTS[variant])
    export(source, tmp_path / "package", ExportOptions(draft_model=file, **EXACT))
    host, model = DraftingHost(tmp_path / "package", operator_library), open_model(source)
    drafter = open_drafter(file, model.config)
    reference, tokens = DrafterReference(drafter, model), text(model, 160)
    rows_read = features(source, len(tokens), drafter.config.taps)
    first = 0 if drafter.config.from_anchor else 1
    for step, count, keep in (("prefill", 37, 37), ("verify", 8, 3), ("prefill", 90, 90), ("verify", 5, 5)):
        piece = tokens[host.length : host.length + count]
        if step == "prefill":
            host.prefill(piece)
        else:
            host.verify(np.concatenate([piece[:keep], piece[keep:] + 1]) % model.config.vocab, keep)
        reference.extend(rows_read[reference.length : host.length])
        for rows in (drafter.config.block, first + 1):
            out, expected = host.draft(int(tokens[host.length]), rows), reference.draft(int(tokens[host.length]), rows)
            np.testing.assert_array_equal(out["candidates"][first:], expected.candidates[first:])
            worst = np.abs(out["edges"] - expected.edges)[first:].max()
            assert worst < TOLERANCE * np.abs(expected.edges[first:]).max(), worst


def package(folder: Path, source: Path, file: Path | None, **options: Any) -> Path:
    export(source, folder, ExportOptions(draft_model=file, **(EXACT | options)))
    return folder


@pytest.mark.parametrize("target", [TARGETS[0], *(pytest.param(name, marks=SLOW) for name in TARGETS[1:])])
def test_trunk_keeps_its_bits(
    tmp_path: Path, synthetic: Any, drafters: Drafters, operator_library: Path, target: str
) -> None:
    """Of int8 activations, too; taps of every layer, and of what leaves the last."""
    source, tokens = synthetic(target, "Q8_0"), np.arange(70)
    file = drafters("dflash", target, taps=(0, 1, 2, 3, 4))
    packages = [
        package(tmp_path / str(number), source, one, activations="int8") for number, one in enumerate((None, file))
    ]
    without = Host(packages[0], operator_library, pages=8)
    beside = DraftingHost(packages[1], operator_library)
    prefill: dict[str, Any] = {
        "cu_seqlens": [0, 61],
        "past_lens": [0],
        "accepted": [0],
        "prev_hidden": np.zeros((1, 256)),
    }
    verify: dict[str, Any] = {"cu_seqlens": [0, 8], "past_lens": [61], "accepted": [0]}
    where: dict[str, Any] = {"page_table": [beside.table], "slots_in": [0], "slots_out": [0]}
    expected = without.run("prefill", input_ids=tokens[:61], **prefill, **where)
    found = beside.prefill(tokens[:61])
    assert set(expected) == set(found) == {"logits", "tokens", "hidden"}
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values)
    expected, found = without.run("verify", input_ids=tokens[61:69], **verify, **where), beside.verify(tokens[61:69], 8)
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values)
    for name in without.state:
        np.testing.assert_array_equal(beside.state[name].numpy(), without.state[name].numpy())


@pytest.mark.parametrize("kind", ["dflash2", pytest.param("dflash", marks=SLOW), pytest.param("dspark", marks=SLOW)])
def test_history_leaves_no_trace(
    tmp_path: Path, synthetic: Any, drafters: Drafters, operator_library: Path, kind: str
) -> None:
    """Drafts behind cuts, rejected rows and other drafts have the bits of those behind the text alone."""
    source = synthetic("tiny-dense", "F32")
    folder, tokens = package(tmp_path / "package", source, drafters(kind)), text(open_model(source), 90)
    plain, busy = (DraftingHost(folder, operator_library) for _ in range(2))
    plain.prefill(tokens[:75])
    busy.prefill(tokens[:20])
    busy.draft(int(tokens[20]), 8)
    busy.prefill(tokens[20:61])
    busy.verify(np.concatenate([tokens[61:64], tokens[:5]]), 3)
    busy.draft(int(tokens[64]), 3)
    busy.verify(tokens[64:72], 8)
    busy.verify(tokens[72:80], 3)
    for rows in (8, 2):
        expected, found = plain.draft(int(tokens[75]), rows), busy.draft(int(tokens[75]), rows)
        for name in expected:
            np.testing.assert_array_equal(found[name], expected[name])


@pytest.mark.parametrize("variant", [{"kind": "dspark"}, {"kind": "dflash2", **WINDOW}])
def test_requests_together(
    tmp_path: Path, synthetic: Any, drafters: Drafters, operator_library: Path, variant: dict[str, Any]
) -> None:
    """Blocks of several sequences in one run, with numbers of rows of their own, have the bits of each alone."""
    source = synthetic("tiny-dense", "F32")
    folder, tokens = package(tmp_path / "package", source, drafters(**variant)), text(open_model(source), 200)
    host = DraftingHost(folder, operator_library)
    blocks, alone = [], []
    for start, length, rows, pages in ((0, 90, 8, [6, 1]), (100, 7, 3, [4]), (40, 63, 5, [2, 7])):
        host.slot, host.table, host.length = start // 40, pages, 0
        host.prefill(tokens[start : start + length])
        token = int(tokens[start + length])
        blocks.append((length, [token] + [host.drafter.mask] * (rows - 1), [*pages, 0][:2], [host.slot] * 2))
        alone.append(host.draft(token, rows))
    lengths, ids, tables, rings = zip(*blocks, strict=True)
    starts = np.cumsum([0, *map(len, ids)])
    places = {"past_lens": lengths, "page_table": tables, "ring_table": rings}
    together = host.run("block", input_ids=np.concatenate(ids), cu_seqlens=starts, **places)
    for name, values in together.items():
        np.testing.assert_array_equal(values, np.concatenate([one[name] for one in alone]))


def test_reduced_vocabulary(tmp_path: Path, synthetic: Any, drafters: Drafters, operator_library: Path) -> None:
    """Rows of the output matrix that stand for other tokens."""
    source, rows = synthetic("tiny-dense", "F32"), np.sort(np.random.default_rng(3).choice(512, 300, replace=False))
    pairs, tensors = contents(drafters("dspark", own=("output.weight",)))
    for name in ("output.weight", "markov_w2.weight"):
        width = tensors[name].ne[0]
        tensors[name] = Entry((width, 300), tensors[name].data[: 4 * 300 * width])
    tensors["d2t"] = Entry((300,), rows.astype("<i8").tobytes(), 27)
    (tmp_path / "drafter.gguf").write_bytes(gguf_bytes(pairs, tensors))
    host = DraftingHost(package(tmp_path / "package", source, tmp_path / "drafter.gguf"), operator_library)
    model = open_model(source)
    drafter, tokens = open_drafter(tmp_path / "drafter.gguf", model.config), text(model, 160)
    reference = DrafterReference(drafter, model)
    reference.extend(features(source, 160, drafter.config.taps)[:30])
    host.prefill(tokens[:30])
    out, expected = host.draft(5, 8), reference.draft(5, 8)
    np.testing.assert_array_equal(out["candidates"], expected.candidates)
    assert np.abs(out["edges"] - expected.edges).max() < TOLERANCE * np.abs(expected.edges).max()
    assert set(out["candidates"].flat) <= set(rows.tolist()) and host.manifest.draft_vocab == 512
    with pytest.raises(TrigraphError, match="draft_vocab is 100, but the drafter has a vocabulary of its own"):
        package(tmp_path / "other", source, tmp_path / "drafter.gguf", draft_vocab=100)


@pytest.mark.parametrize(("kind", "drafting"), [("dflash2", 1), ("dspark", 0)])
def test_a_reduced_vocabulary_only_leaves_tokens_out(
    tmp_path: Path, synthetic: Any, drafters: Drafters, operator_library: Path, kind: str, drafting: int
) -> None:
    """Behind the same token, those that are left score as in the whole vocabulary."""
    source, rows = synthetic("tiny-dense", "F32"), np.sort(np.random.default_rng(3).choice(512, 300, replace=False))
    whole = drafters(kind, own=("output.weight",), candidates=256)
    pairs, tensors = contents(whole)
    for name in {"output.weight", "markov_w2.weight"} & tensors.keys():
        width = tensors[name].ne[0]
        values = np.frombuffer(tensors[name].data, "<f4")[: 512 * width].reshape(512, width)
        tensors[name] = Entry((width, 300), values[rows].tobytes())
    tensors["d2t"] = Entry((300,), rows.astype("<i8").tobytes(), 27)
    (tmp_path / "reduced.gguf").write_bytes(gguf_bytes(pairs, tensors))
    found: list[dict[int, float]] = []
    for file in (whole, tmp_path / "reduced.gguf"):
        host = DraftingHost(package(tmp_path / file.stem, source, file), operator_library)
        host.prefill(np.arange(30))
        out = host.draft(5, 8)
        found.append(dict(zip(out["candidates"][drafting].tolist(), out["edges"][drafting, 0].tolist(), strict=True)))
    both = found[0].keys() & found[1].keys()
    assert len(both) > 10
    assert {token: found[1][token] for token in both} == pytest.approx({token: found[0][token] for token in both})


@SLOW
@pytest.mark.parametrize("kind", KINDS)
def test_fewer_token_ids(tmp_path: Path, synthetic: Any, drafters: Drafters, operator_library: Path, kind: str) -> None:
    """`draft_vocab` limits candidates, and changes nothing else."""
    source, tokens = synthetic("tiny-dense", "F32"), np.arange(30)
    hosts = [
        DraftingHost(package(tmp_path / str(vocab), source, drafters(kind), draft_vocab=vocab), operator_library)
        for vocab in (512, 100)
    ]
    for host in hosts:
        host.prefill(tokens)
    whole, limited = (host.draft(5, 8) for host in hosts)
    assert whole["candidates"].max() >= 100 > limited["candidates"].max()
    kept = [[token for token in row if token < 100] for row in whole["candidates"].tolist()]
    assert kept == [row[: len(best)] for row, best in zip(limited["candidates"].tolist(), kept, strict=True)]


@SLOW
@pytest.mark.parametrize(("kv_type", "most"), [("f16", 2e-3), ("q8_0", 5e-2)])
def test_kv_types(
    tmp_path: Path, synthetic: Any, drafters: Drafters, operator_library: Path, kv_type: str, most: float
) -> None:
    source, tokens = synthetic("tiny-dense", "F32"), np.arange(100)
    hosts = [
        DraftingHost(package(tmp_path / kind, source, drafters("dflash"), kv_type=kind), operator_library)
        for kind in ("f32", kv_type)
    ]
    for host in hosts:
        host.prefill(tokens)
    exact, rounded = (host.draft(5, 8)["edges"][1:] for host in hosts)
    assert 0 < np.abs(rounded - exact).max() < most * np.abs(exact).max()


@SLOW
def test_images(
    tmp_path: Path, seeing: SeeingPackages, synthetic: Any, drafters: Drafters, operator_library: Path
) -> None:
    """Positions come from the host, as their axis of time; text has the bits that it has without a tower."""
    source, tokens = synthetic("tiny-dense", "F32"), np.arange(40)
    folders = [
        package(tmp_path / str(number), source, drafters("dflash2"), mmproj=tower)
        for number, tower in enumerate((None, seeing.tower("tiny-dense")))
    ]
    text_host, host = (DraftingHost(folder, operator_library) for folder in folders)
    text_host.prefill(tokens)
    expected = text_host.draft(5, 8)
    shown = {"image_rows": np.zeros((0, 256)), "image_places": np.zeros((0, 1))}

    host.prefill(tokens, positions=np.tile(np.arange(40), (3, 1)), **shown)
    places = np.arange(40, 48)
    for shift in (0, 3):
        out = host.draft(5, 8, positions=np.stack([places + shift, places + 9, places - 7]))
        equal = [np.array_equal(out[name], values) for name, values in expected.items()]
        assert all(equal) == (shift == 0)
    assert host.manifest.features == ("drafter", "images")


CHANGES: list[tuple[str, Any]] = [
    ("kind", "eagle"), ("block", 1), ("block", 1000), ("mask", 512), ("candidates", 0), ("layers", 0), ("layers", 3),
    ("hidden", 512), ("kv_heads", 4), ("head_dim", 128), ("kind", None), ("taps", 3),
    ("sliding", [True, True]), ("sliding", [False]), ("window", -1), ("window", 1 << 40),
]  # fmt: skip


@pytest.mark.parametrize(("key", "value"), CHANGES)
def test_changed_manifest(packages: Packages, drafters: Drafters, tmp_path: Path, key: str, value: Any) -> None:
    folder = packages("tiny-dense", "F32", draft_model=drafters("dflash2"))
    shutil.copytree(folder, tmp_path / "package")
    path = tmp_path / "package" / "manifest.json"
    content = json.loads(path.read_text())
    assert content["features"] == ["drafter"] and content["drafter"]["kind"] == "dflash2"
    content["drafter"][key] = value
    path.write_text(json.dumps(content))
    with pytest.raises(TrigraphError, match=r"manifest\.json: key '(drafter|state)"):
        read_manifest(tmp_path / "package")


def test_features_must_say_it(packages: Packages, drafters: Drafters, tmp_path: Path) -> None:
    shutil.copytree(packages("tiny-dense", "F32", draft_model=drafters("dflash2")), tmp_path / "package")
    path = tmp_path / "package" / "manifest.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | {"features": []}))
    with pytest.raises(TrigraphError, match="key 'features'"):
        read_manifest(tmp_path / "package")
