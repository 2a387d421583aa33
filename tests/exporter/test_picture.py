"""The picture of a model's graphs: what it says, and that nothing in it covers anything else."""

import dataclasses
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from support.models.hollow import write_hollow
from trigraph.exporter.describe.picture import draw, fold, picture
from trigraph.exporter.package.state_tensors import state_tensors
from trigraph.models.config import ModelConfig
from trigraph.models.model import Model, open_model

SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("GGGA", "1 x (3 GDN + 1 attention)"),
        ("GGGA" * 16, "16 x (3 GDN + 1 attention)"),
        ("GGGAGG", "1 x (3 GDN + 1 attention), then 2 GDN"),
        ("GAGAGAA", "2 x (1 GDN + 1 attention), then 1 GDN, then 2 attention"),
        ("AGGAGG", "2 x (1 attention + 2 GDN)"),
        ("GG", "2 GDN"),
        ("AAA", "3 attention"),
        ("GAGGAGGGAGGGGA", "10 GDN, 4 attention in an order of its own"),
    ],
)
def test_layers_that_repeat_are_folded(pattern: str, words: str) -> None:
    assert fold([letter == "G" for letter in pattern]) == words


def texts(svg: str) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def drawn(model: Model, config: ModelConfig) -> str:
    return draw(dataclasses.replace(model, config=config), state_tensors(config, "f16"), config.context_length, 65536)


def test_a_large_model(tmp_path: Path) -> None:
    """The figures of a 35B-A3B, as they are published or follow from its geometry."""
    lines = texts(picture(write_hollow("qwen3.6-35b-a3b", tmp_path / "model.gguf")))
    for expected in (
        "10 x (3 GDN + 1 attention)",
        "30 Gated DeltaNet",
        "8 of 256 experts",
        "state 60.0 MiB",
        "KV pages, float16",
        "20.0 KiB a token",
        "5.0 GiB for",
        "248320 tokens",
        "2.0 KiB a token, 512.0 MiB for 262144 tokens",
    ):
        assert expected in lines
    assert {"verify.onnx", "prefill.onnx", "draft.onnx"} <= set(lines)


def test_bytes_are_those_of_the_file(tiny_gguf: Path) -> None:
    """Every tensor is in a box of the trunk, which is drawn twice, or of the head; the embedding is the output too."""
    tensors = open_model(tiny_gguf).tensors
    units = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
    lines = texts(picture(tiny_gguf))
    matches = (
        re.fullmatch(r"(?:\S+, )?([\d.]+) (bytes|[KMG]iB)", line) for line in lines[lines.index("prefill.onnx") :]
    )
    drawn_bytes = sum(float(match[1]) * units[match[2]] for match in matches if match)
    in_file = sum(tensor.nbytes for tensor in tensors.values()) + tensors["token_embd.weight"].nbytes
    assert drawn_bytes == pytest.approx(in_file, rel=0.01)


@pytest.mark.parametrize("layers", [1, 3, 4, 6, 40, 64])
@pytest.mark.parametrize("mtp", [0, 1])
def test_nothing_covers_anything_else(synthetic_model: Model, layers: int, mtp: int) -> None:
    recurrent = tuple((i + 1) % 4 != 0 for i in range(layers))
    config = dataclasses.replace(synthetic_model.config, trunk_layers=layers, recurrent=recurrent, mtp_layers=mtp)
    first = synthetic_model.config
    renamed = {
        name.replace("blk.", f"blk.{i}.", 1).replace(f".{i}.{source}.", f".{i}.", 1): tensor
        for i in range(layers + mtp)
        for source in ([first.trunk_layers] if i == layers else [3 if (i + 1) % 4 == 0 else 0])
        for name, tensor in synthetic_model.tensors.items()
        if name.startswith(f"blk.{source}.")
    }
    others = {name: tensor for name, tensor in synthetic_model.tensors.items() if not name.startswith("blk.")}
    model = dataclasses.replace(synthetic_model, tensors=renamed | others)
    root = ElementTree.fromstring(drawn(model, config))
    boxes = [
        tuple(float(rect.get(key, "")) for key in ("x", "y", "width", "height"))
        for rect in root.iter(f"{SVG}rect")
        if rect.get("class") not in ("page", "group")
    ]
    width, height = float(root.get("width", "")), float(root.get("height", ""))
    for i, (x, y, w, h) in enumerate(boxes):
        assert x >= 0
        assert x + w <= width
        assert y + h <= height
        assert not any(x < u + p and u < x + w and y < v + q and v < y + h for u, v, p, q in boxes[:i])
    spans = []
    for text in root.iter(f"{SVG}text"):
        size = {"title": 17, "name": 12}.get(text.get("class", ""), 11)
        length = float(text.get("textLength", 0)) or 0.6 * size * len(text.text or "")
        left = float(text.get("x", "")) - {"start": 0, "middle": length / 2, "end": length}[text.get("text-anchor", "")]
        spans.append((left, float(text.get("y", "")), length))
        assert 0 <= left <= left + length <= width
    for i, (x, y, length) in enumerate(spans):
        assert not any(abs(y - v) < 12 and x < u + other and u < x + length for u, v, other in spans[:i])


@pytest.fixture(scope="module")
def synthetic_model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return open_model(
        write_hollow("qwen3.6-35b-a3b", tmp_path_factory.mktemp("hollow") / "m.gguf", layers=4, vocab=300)
    )


def test_a_model_without_a_head(synthetic_model: Model) -> None:
    lines = texts(drawn(synthetic_model, dataclasses.replace(synthetic_model.config, mtp_layers=0)))
    assert "draft.onnx" not in lines
    assert any("drafts are n-grams alone" in line for line in lines)


def test_a_name_that_is_markup(synthetic_model: Model) -> None:
    name = "<script>alert(1)</script>&\0\x1b[31m\ud800 \u202e" + "W" * 500
    svg = drawn(synthetic_model, dataclasses.replace(synthetic_model.config, name=name))
    assert "<script>alert(1)</script>&" in texts(svg)[0]
    assert "<script" not in svg
    svg.encode()
