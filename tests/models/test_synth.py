"""Synthetic files: structure, type mixes, sane weights, determinism, and nothing left behind by a failure."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from support.oracles.llama import Llama, log_softmax
from trigraph.models.errors import TrigraphError
from trigraph.models.geometries import GEOMETRIES
from trigraph.models.gguf_file import GGUFFile
from trigraph.models.model import open_model
from trigraph.models.reference import Reference
from trigraph.models.synth import QUANTS, blocks, write_synthetic, write_synthetic_mmproj
from trigraph.models.synth.layout import tensors
from trigraph.models.synth.mmproj import tower_tensors
from trigraph.models.synth.popularity import row_scales
from trigraph.models.tensor_types import TENSOR_TYPES, dequantize
from trigraph.models.vision.geometries import VISION_GEOMETRIES
from trigraph.models.vision.tower import open_tower

SMALL = ("tiny-dense", "tiny-moe", "tiny-next")
Synthetic = Callable[[str, str], Path]


@pytest.mark.parametrize("type_name", TENSOR_TYPES)
def test_weights_are_centred_and_scaled(type_name: str) -> None:
    raw = np.concatenate(list(blocks.random_weights(type_name, 1 << 20, 0.02, blocks.random_bits(1, "x"), 1 << 16)))
    stored = raw.view({"F32": np.float32, "F16": np.float16}.get(type_name, np.uint8))
    weights = dequantize(stored, type_name).astype(np.float64)
    assert weights.size == 1 << 20
    assert np.isfinite(weights).all()
    assert np.sqrt(np.mean(weights**2)) == pytest.approx(0.02, rel=0.02)
    assert abs(weights.mean()) < 0.01 * 0.02
    assert np.abs(weights).max() < 6 * 0.02


@pytest.mark.parametrize("geometry", SMALL)
@pytest.mark.parametrize("quant", ["F32", "Q4_K_M", "mixed"])
def test_small_files_are_models(synthetic: Synthetic, geometry: str, quant: str) -> None:
    model = open_model(synthetic(geometry, quant))
    expected = GEOMETRIES[geometry]
    assert model.config.architecture == expected.architecture
    assert model.config.trunk_layers == expected.layers
    assert model.config.mtp_layers == 1
    assert model.config.recurrent == (True, True, True, False)
    assert model.config.vocab == expected.vocab
    assert model.config.experts == expected.experts
    assert np.abs(model.array("blk.0.attn_norm.weight") - 1).max() < 0.6
    assert (model.array("blk.0.ssm_a") <= -1).all()
    step = np.log1p(np.exp(model.array("blk.0.ssm_dt.bias")))
    assert (step > 0.9e-3).all()
    assert (step < 1.1e-1).all()


@pytest.mark.parametrize("geometry", SMALL)
def test_mixed_file_has_every_native_type(synthetic: Synthetic, geometry: str) -> None:
    types = {tensor.type for tensor in GGUFFile.open(synthetic(geometry, "mixed")).tensors.values()}
    assert types == set(TENSOR_TYPES)


def test_layers_differ(synthetic: Synthetic) -> None:
    file = GGUFFile.open(synthetic("tiny-dense", "Q8_0"))
    first, second = (file.array(f"blk.{i}.attn_gate.weight").ravel() for i in (0, 1))
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.02
    rows = file.array("blk.0.attn_gate.weight")
    assert abs(np.corrcoef(rows[0], rows[1])[0, 1]) < 0.3


def _types(geometry: str, quant: str) -> dict[str, str]:
    return {tensor.name: tensor.type for tensor in tensors(GEOMETRIES[geometry], quant)}


def test_q4_k_m_of_the_moe_model() -> None:
    types = _types("qwen3.6-35b-a3b", "Q4_K_M")
    assert types["token_embd.weight"] == "Q4_K"
    assert types["output.weight"] == "Q6_K"
    assert types["blk.0.ffn_gate_inp.weight"] == types["blk.0.ssm_conv1d.weight"] == "F32"
    assert {types[f"blk.{i}.ffn_gate_exps.weight"] for i in range(41)} == {"Q4_K"}
    assert {types[f"blk.{i}.ffn_up_shexp.weight"] for i in range(41)} == {"Q8_0"}
    # 41 blocks: the first 5, the last 6 and every third between them
    more = [i for i in range(41) if types[f"blk.{i}.ffn_down_exps.weight"] == "Q6_K"]
    assert more == [*range(5), *range(7, 35, 3), *range(35, 41)]
    assert {types[f"blk.{i}.ffn_down_exps.weight"] for i in range(41) if i not in more} == {"Q5_K"}
    assert types["blk.7.attn_v.weight"] == types["blk.4.attn_qkv.weight"] == "Q6_K"
    assert types["blk.5.attn_qkv.weight"] == types["blk.5.attn_gate.weight"] == "Q4_K"


def test_q4_k_m_of_the_dense_models() -> None:
    types = _types("qwen3.6-27b", "Q4_K_M")
    assert types["output.weight"] == "Q6_K"
    assert {types[f"blk.{i}.ffn_down.weight"] for i in range(65)} == {"Q4_K", "Q6_K"}
    assert types["blk.0.ssm_alpha.weight"] == "Q8_0"
    tied = _types("qwen3.5-0.8b", "Q4_K_M")
    assert tied["token_embd.weight"] == "Q6_K"
    assert "output.weight" not in tied


def test_publishers_mixes() -> None:
    types = _types("qwen3.6-35b-a3b", "UD-IQ3_XXS")
    assert {types[f"blk.{i}.ffn_{role}_exps.weight"] for i in range(41) for role in ("gate", "up")} == {"IQ3_XXS"}
    assert types["blk.3.ffn_down_exps.weight"] == "IQ3_S"
    assert types["blk.3.attn_q.weight"] == types["blk.0.attn_qkv.weight"] == types["token_embd.weight"] == "Q6_K"
    assert types["blk.0.ssm_out.weight"] == types["blk.0.ffn_up_shexp.weight"] == "Q8_0"
    experts = _types("qwen3.6-35b-a3b", "MXFP4_MOE")
    assert {kind for name, kind in experts.items() if "_exps" in name} == {"MXFP4"}
    assert {kind for name, kind in experts.items() if "_exps" not in name} == {"Q8_0", "F32"}
    dense = _types("qwen3.6-27b", "UD-Q2_K_XL")
    assert (dense["blk.0.ffn_up.weight"], dense["blk.0.ffn_down.weight"]) == ("Q2_K", "Q3_K")


@pytest.mark.parametrize(
    ("geometry", "quant", "gigabytes"),
    [
        ("qwen3.6-35b-a3b", "UD-Q4_K_XL", 22.85),
        ("qwen3.6-35b-a3b", "Q4_K_M", 22.4),
        ("qwen3.6-27b", "Q4_K_M", 16.8),
        ("qwen3-next-80b-a3b", "Q4_K_M", 51.2),
        ("qwen3.5-0.8b", "F32", 3.1),
    ],
)
def test_real_sizes(geometry: str, quant: str, gigabytes: float) -> None:
    size = sum(tensor.nbytes for tensor in tensors(GEOMETRIES[geometry], quant))
    assert size / 1e9 == pytest.approx(gigabytes, rel=0.02)


@pytest.mark.parametrize(
    ("geometry", "quant", "count", "millions", "megabytes"),
    [
        ("mmproj-qwen3.5-0.8b", "F16", 154, 101, 205),
        ("mmproj-qwen3.5-2b", "F16", 298, 331, 668),
        ("mmproj-qwen3.5-4b", "F16", 298, 334, 675),
        ("mmproj-qwen3.6-27b", "F16", 334, 461, 931),
        ("mmproj-qwen3.6-35b-a3b", "Q8_0", 334, 447, 616),
    ],
)
def test_real_sizes_of_towers(geometry: str, quant: str, count: int, millions: int, megabytes: int) -> None:
    found = tower_tensors(VISION_GEOMETRIES[geometry], quant)
    assert len(found) == count
    assert round(sum(tensor.count for tensor in found) / 1e6) == millions
    assert sum(tensor.nbytes for tensor in found) / 1e6 == pytest.approx(megabytes, rel=0.01)


def test_types_of_towers() -> None:
    types = {tensor.name: tensor.type for tensor in tower_tensors(VISION_GEOMETRIES["mmproj-qwen3.5-9b"], "Q8_0")}
    assert (types["v.blk.3.ffn_up.weight"], types["v.blk.3.ffn_down.weight"]) == ("Q8_0", "F16")
    assert {types[name] for name in ("v.patch_embd.weight", "v.position_embd.weight", "mm.0.bias")} == {"F32"}
    half = {tensor.name: tensor.type for tensor in tower_tensors(VISION_GEOMETRIES["mmproj-qwen3.5-9b"], "F16")}
    assert (half["v.patch_embd.weight"], half["v.blk.0.ln1.weight"]) == ("F16", "F32")


@pytest.mark.parametrize("name", VISION_GEOMETRIES)
def test_towers_belong_to_models(name: str) -> None:
    text = GEOMETRIES.get(name.removeprefix("mmproj-"))
    assert (text is None and name == "mmproj-qwen3.5-2b") or text is not None
    assert text is None or text.hidden == VISION_GEOMETRIES[name].hidden


def test_narrow_rows_take_a_type_that_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(GEOMETRIES, "narrow", replace(GEOMETRIES["tiny-moe"], expert_ffn=96, shared_ffn=40))
    write_synthetic("narrow", tmp_path / "n.gguf")
    found = GGUFFile.open(tmp_path / "n.gguf").tensors
    assert found["blk.2.ffn_down_exps.weight"].type == "Q8_0"  # of Q6_K
    assert found["blk.1.ffn_down_exps.weight"].type == "Q5_1"  # of Q5_K
    assert found["blk.0.ffn_down_shexp.weight"].type == "F16"


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_deterministic_by_seed(tmp_path: Path) -> None:
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        write_synthetic("tiny-dense", tmp_path / name, layers=1, seed=seed)
    assert _digest(tmp_path / "a") == _digest(tmp_path / "b") != _digest(tmp_path / "c")


def test_towers(tmp_path: Path) -> None:
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        write_synthetic_mmproj("mmproj-tiny-dense", tmp_path / name, seed=seed)
    assert _digest(tmp_path / "a") == _digest(tmp_path / "b") != _digest(tmp_path / "c")
    write_synthetic_mmproj("mmproj-qwen3.5-0.8b", tmp_path / "cut.gguf", layers=1)
    tower = open_tower(tmp_path / "cut.gguf")
    assert (tower.config.layers, tower.config.width, tower.config.head_dim) == (1, 768, 64)
    weights = tower.array("v.blk.0.ffn_up.weight")
    assert np.sqrt(np.mean(weights**2)) == pytest.approx(768**-0.5, rel=0.02)
    with pytest.raises(TrigraphError, match=r"unknown quant 'Q4_K_M'; those of mmproj files are F16"):
        write_synthetic_mmproj("mmproj-tiny-dense", tmp_path / "d", quant="Q4_K_M")
    with pytest.raises(TrigraphError, match="unknown geometry 'tiny-dense'; the known ones are mmproj-qwen"):
        write_synthetic_mmproj("tiny-dense", tmp_path / "d")


def test_cut_down(tmp_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    write_synthetic("qwen3.6-35b-a3b", path, layers=5, vocab=320, experts=4, quant="Q4_0")
    config = open_model(path).config
    assert (config.trunk_layers, config.vocab, config.experts, config.experts_used) == (5, 320, 4, 4)
    assert (config.hidden, config.expert_ffn) == (2048, 512)


def test_progress_reaches_the_total(tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    write_synthetic("tiny-dense", tmp_path / "x.gguf", progress=lambda *step: seen.append(step))
    done = [step[1] for step in seen]
    assert done == sorted(done)
    assert seen[-1][1] == seen[-1][2]


def test_interruption_leaves_nothing(tmp_path: Path) -> None:
    def stop(name: str, done: int, total: int) -> None:
        if done > total // 2:
            raise KeyboardInterrupt

    (tmp_path / "x.gguf").write_text("the old file")
    with pytest.raises(KeyboardInterrupt):
        write_synthetic("tiny-dense", tmp_path / "x.gguf", progress=stop)
    assert [path.name for path in tmp_path.iterdir()] == ["x.gguf"]
    assert (tmp_path / "x.gguf").read_text() == "the old file"


def test_unwritable_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TrigraphError, match=r"cannot write .*No such file or directory"):
        write_synthetic("tiny-dense", tmp_path / "missing" / "x.gguf")
    (tmp_path / "folder").mkdir()
    with pytest.raises(TrigraphError, match=r"folder: is a folder; name a file"):
        write_synthetic("tiny-dense", tmp_path / "folder")
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=10**6))
    with pytest.raises(TrigraphError, match=r"x\.gguf: takes 0\.\d GB, and 0\.0 GB of the disk are free"):
        write_synthetic("tiny-dense", tmp_path / "x.gguf")
    write_synthetic("qwen3.6-27b", tmp_path / "x.gguf", layers=1, vocab=512, hollow=True)
    (tmp_path / "x.gguf").unlink()
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


@pytest.mark.parametrize(
    ("geometry", "arguments", "message"),
    [
        ("qwen9", {}, "unknown geometry 'qwen9'; the known ones are qwen3.5-0.8b"),
        ("tiny-dense", {"quant": "Q9"}, "unknown quant 'Q9'; the known ones are F32"),
        ("tiny-dense", {"layers": 0}, "--layers is 0"),
        ("tiny-dense", {"vocab": 100}, "--vocab is 100; it must be at least 266"),
        ("tiny-dense", {"experts": 4}, "has no experts"),
        ("tiny-moe", {"experts": 0}, "--experts is 0"),
        ("tiny-moe", {"seed": -1}, "--seed is -1"),
    ],
)
def test_refused(tmp_path: Path, geometry: str, arguments: dict[str, object], message: str) -> None:
    with pytest.raises(TrigraphError, match=message):
        write_synthetic(geometry, tmp_path / "x.gguf", **arguments)  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("geometry", SMALL)
@pytest.mark.parametrize("quant", QUANTS)
def test_llama_cpp_runs_it(synthetic: Synthetic, geometry: str, quant: str) -> None:
    path, tokens = synthetic(geometry, quant), list(range(40, 56))
    log_p = Llama(path).log_probabilities(tokens, GEOMETRIES[geometry].vocab)
    assert 2 < log_p.std() < 3
    if quant not in ("F32", "mixed"):  # mixed has every type
        return
    expected = log_softmax(Reference(open_model(path)).trunk(tokens)[1][-1])
    if quant == "F32":
        assert np.abs(log_p - expected).max() < 1e-4
    else:  # llama.cpp rounds activations to 8 bits
        assert np.corrcoef(log_p, expected)[0, 1] > 0.99


def test_routers_may_be_skewed(tmp_path: Path) -> None:
    """Popularity follows Zipf's law, but for experts that would be chosen by half of the tokens."""
    experts, chosen, width = 256, 8, 128
    rng = np.random.default_rng(0)
    scales = row_scales(experts, chosen, 1.0)
    assert np.mean(scales**2) == pytest.approx(1)
    logits = rng.standard_normal((4000, width)) @ (rng.standard_normal((experts, width)) * scales[:, None]).T
    counts = np.bincount(np.argsort(-logits, axis=1)[:, :chosen].reshape(-1), minlength=experts)
    assert counts[3] / counts[31] == pytest.approx(8, rel=0.3)
    assert counts[:64].sum() > 0.7 * counts.sum()
    paths = [tmp_path / f"{skew}.gguf" for skew in (0.0, 1.0)]
    for path, skew in zip(paths, (0.0, 1.0), strict=True):
        write_synthetic("tiny-moe", path, skew=skew)
    plain, skewed = (open_model(path).array("blk.0.ffn_gate_inp.weight") for path in paths)
    ratios = np.sort((skewed / plain)[:, 0])
    assert ratios == pytest.approx(np.sort(row_scales(8, 2, 1.0)), rel=1e-5)
    with pytest.raises(TrigraphError, match=r"--skew is 3; it must be from 0 to 2"):
        write_synthetic("tiny-moe", tmp_path / "bad.gguf", skew=3)
