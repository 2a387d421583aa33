"""Packages with damaged files: each loads and runs, or is refused with a TrigraphError; ONNX Runtime's errors too.

Damage knows the files: values of manifest.json and tokenizer.json, tensors, nodes, types and external data of the
graphs, syntax of the chat template; then single bytes of any file.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto

from fuzz.damage import INTEGERS, TEXTS, damage_bytes, damage_json, number
from support.models.random_gguf import Architecture, write_random
from support.models.seeing import SeeingPackages, Synthetic, prompt_of
from trigraph.exporter import ExportOptions, describe, export
from trigraph.models.synth import write_synthetic, write_synthetic_drafter
from trigraph.runtime import Options, Sampling, load

_MODELS: tuple[tuple[Architecture, dict[str, Any]], ...] = (
    ("qwen35", {"types": {"*ffn_up*": "Q8_0"}}),
    ("qwen35moe", {"dtype": "Q8_0", "mtp": False}),
    ("qwen3next", {}),
)
_TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<a>{% endif %}"
)
_SYNTAX = (
    "{%",
    "%}",
    "{{",
    "}}",
    "{#",
    "for",
    "endfor",
    "if",
    "(",
    "[",
    "|",
    "**",
    "'",
    "99999999",
    "~",
    "loop",
    "1/0",
)


_LOCATIONS = (
    "../0.gguf", "0.gguf", "manifest.json", "verify.onnx", "/dev/zero", "a/../../0.gguf", "*/_ORT_MEM_ADDR_/*",
)  # fmt: skip


class Fuzzer:
    """See fuzz.target.Target."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._packages = []
        for index, (architecture, how) in enumerate(_MODELS):
            source = write_random(folder / f"{index}.gguf", architecture, preset="nano", **how)
            package = folder / f"package{index}"
            export(source, package, ExportOptions(weights="reference" if index == 1 else "link", portable=index == 2))
            (package / "chat_template.jinja").write_text(_TEMPLATE)
            self._packages.append(package)
        self._packages.append(SeeingPackages(folder, _synthetic(folder))("tiny-dense", "F32"))
        write_synthetic_drafter("dspark-tiny-dense", drafter := folder / "drafter.gguf")
        export(folder / "text.gguf", folder / "drafting", ExportOptions(draft_model=drafter))
        self._packages.insert(-1, folder / "drafting")
        with load(self._packages[-1], context=64) as engine:  # loads what is loaded once only
            engine.generate(prompt_of(3, (2, 3), 2), Options(max_tokens=2)).run()

    def run(self, seed: int, case: int) -> str:
        """Damage a package, describe it, load it, and run it."""
        rng = random.Random(f"{seed}:{case}")
        package = self._folder / "case"
        shutil.rmtree(package, ignore_errors=True)
        shutil.copytree(rng.choice(self._packages), package, copy_function=_link)
        _damage(rng, package)
        engine = load(package, threads=1, context=rng.choice((None, None, 100, 4096)))
        describe(package)
        options = Options(Sampling(temperature=0.0), max_tokens=6, draft_tokens=rng.choice((0, 2, 3)) or None)
        engine.generate([1, 2, 3], options).run()
        engine.generate("a b", options).run()
        if engine.supports_images:
            engine.generate(prompt_of(3, (2, 3), 2), options).run()
        if engine.model.template is not None:
            engine.chat("Be brief.").say("Hello", options).request.run()
        return "ran"


def _synthetic(folder: Path) -> Synthetic:
    def make(geometry: str, quant: str) -> Path:
        write_synthetic(geometry, path := folder / "text.gguf", quant=quant)
        return path

    return make


def _link(source: str, target: str) -> None:
    # Weights are large, and never changed in place; a damaged file is written anew.
    os.link(source, target)


def _damage(rng: random.Random, package: Path) -> None:
    graphs = [path for path in package.iterdir() if path.suffix == ".onnx"]
    match rng.randrange(14):
        case 0 | 1 | 2:
            _rewrite(package / "manifest.json", lambda text: _damaged_json(rng, text))
        case 3:
            _rewrite(package / "tokenizer.json", lambda text: _damaged_json(rng, text))
        case 4 | 5 | 6 | 7:
            _rewrite(rng.choice(graphs), lambda content: _damaged_graph(rng, content))
        case 8:
            _rewrite(package / "chat_template.jinja", lambda text: _damaged_template(rng, text))
        case 9:
            path = rng.choice(sorted(package.iterdir()))
            path.unlink()
            if rng.random() < 0.3:
                path.symlink_to(rng.choice(("/etc/passwd", "/dev/zero", "/dev/full", "missing", ".", "manifest.json")))
            elif rng.random() < 0.3:
                path.mkdir()
        case 10 | 11:
            _rewrite(rng.choice(graphs), lambda content: _moved_weights(rng, content))
        case _:
            path = rng.choice([path for path in sorted(package.iterdir()) if path.suffix != ".gguf"])
            _rewrite(path, lambda content: damage_bytes(rng, content))


def _rewrite(path: Path, change: Any) -> None:
    content = change(path.read_bytes())
    path.unlink()  # the other link stays as it is
    path.write_bytes(content)


def _damaged_json(rng: random.Random, text: bytes) -> bytes:
    document = json.loads(text)
    for _ in range(rng.choice((1, 1, 2))):
        document = damage_json(rng, document)
    # Surrogates and infinities are legal for Python's parser.
    return json.dumps(document).encode()


def _damaged_template(rng: random.Random, text: bytes) -> bytes:
    template = text.decode()
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(template))
        template = template[:at] + rng.choice(_SYNTAX) + template[at + rng.randrange(4) :]
    return template.encode()


def _damaged_graph(rng: random.Random, content: bytes) -> bytes:
    model = onnx.ModelProto.FromString(content)
    for _ in range(rng.choice((1, 1, 2))):
        rng.choice(
            (_damage_initializer, _damage_initializer, _damage_node, _damage_node, _damage_interface, _damage_model)
        )(rng, model)
    return bytes(model.SerializeToString())


def _moved_weights(rng: random.Random, content: bytes) -> bytes:
    """Only what tells where weights are, so that most cases get to where they are mapped."""
    model = onnx.ModelProto.FromString(content)
    external = [tensor for tensor in model.graph.initializer if tensor.external_data]
    for tensor in rng.sample(external, rng.choice((1, 1, 2))):
        _damage_place(rng, tensor, model)
    return bytes(model.SerializeToString())


def _damage_initializer(rng: random.Random, model: onnx.ModelProto) -> None:
    tensor = rng.choice(model.graph.initializer)
    match rng.randrange(5):
        case 0 | 1 if tensor.external_data:
            _damage_place(rng, tensor, model)
        case 2 if tensor.dims:
            at = rng.randrange(len(tensor.dims))
            tensor.dims[at] = rng.choice((0, -1, tensor.dims[at] + 1, tensor.dims[at] // 2, number(rng, 63)))
        case 3:
            tensor.data_type = rng.randrange(30)
        case _:
            _damage_list(rng, rng.choice((model.graph.initializer, tensor.dims, tensor.external_data)))


def _damage_place(rng: random.Random, tensor: TensorProto, model: onnx.ModelProto) -> None:
    """Another place in a file, or another file; entries that repeat, contradict each other or are missing."""
    entry = rng.choice(tensor.external_data)
    old = int(entry.value) if entry.value.isdigit() else 0
    match rng.randrange(8):
        case 0:
            del tensor.external_data[:]
        case 1:
            key = rng.choice(("location", "offset", "length", "checksum", "x"))
            tensor.external_data.add(key=key, value=entry.value)
        case 2:
            other = rng.choice(model.graph.initializer)
            tensor.dims[:], tensor.data_type = other.dims, other.data_type
        case 3:
            tensor.dims.extend(rng.choice(([1], [0], [-1], [2], [1] * 100, [2**62] * 3, [0, 2**62, 2**62])))
        case _ if entry.key == "location":
            entry.value = rng.choice((*TEXTS, *_LOCATIONS))
        case 4:
            entry.value = rng.choice(("x", "-1", "1e9", "", "\u0664", "0x10", "+8", " 8", "9" * 5000))
        case _:
            near = (old + 1, old - 1, old + 2, old + 32, old * 2, old // 2, rng.randrange(1 << 22))
            entry.value = str(rng.choice((*near, *INTEGERS)))


def _damage_node(rng: random.Random, model: onnx.ModelProto) -> None:
    node = rng.choice(model.graph.node)
    match rng.randrange(6):
        case 0:
            _damage_list(rng, model.graph.node)
        case 1:
            _damage_list(rng, rng.choice((node.input, node.output)))
        case 2 if node.input:
            other = rng.choice(model.graph.node)
            names = (*other.output, *other.input, *(value.name for value in model.graph.input), "", "unknown")
            node.input[rng.randrange(len(node.input))] = rng.choice(names)
        case 3:
            node.op_type = rng.choice(
                ("Add", "Concat", "Identity", "Softmax", "NoSuchOp", "BlockMatMul", "GatedDeltaNet")
            )
            node.domain = rng.choice(("", "trigraph", "com.microsoft", "other"))
        case _ if node.attribute:
            attribute = rng.choice(node.attribute)
            match attribute.type:
                case AttributeProto.INT:
                    attribute.i = rng.choice((0, 1, -1, attribute.i + 1, number(rng, 63)))
                case AttributeProto.FLOAT:
                    attribute.f = rng.choice((0.0, -1.0, float("nan"), float("inf")))
                case AttributeProto.STRING:
                    attribute.s = rng.choice((b"", b"Q4_K", b"Q8_0", b"F32", b"int8", b"x" * 100, b"\xff"))
        case _:
            node.name = rng.choice(TEXTS[:-5])


def _damage_interface(rng: random.Random, model: onnx.ModelProto) -> None:
    values = rng.choice((model.graph.input, model.graph.output))
    if rng.random() < 0.3 or not values:
        _damage_list(rng, values)
        return
    value = rng.choice(values)
    dims = value.type.tensor_type.shape.dim
    match rng.randrange(4):
        case 0:
            value.name = rng.choice(("past.x", "input_ids", "present.x", "x", "logits", ""))
        case 1:
            value.type.tensor_type.elem_type = rng.randrange(20)
        case _ if dims:
            dim = rng.choice(dims)
            if rng.random() < 0.5:
                dim.dim_param = rng.choice(("T", "S", "P", "slots", "pages", "N", ""))
            else:
                dim.dim_value = rng.choice((0, 1, -1, dim.dim_value + 1, number(rng, 63)))
        case _:
            _damage_list(rng, dims)


def _damage_model(rng: random.Random, model: onnx.ModelProto) -> None:
    match rng.randrange(5):
        case 0:
            model.ir_version = rng.choice((0, 3, 99, 2**31))
        case 1:
            rng.choice(model.opset_import).version = rng.choice((0, 1, 7, 24, 99))
        case 2:
            _damage_list(rng, model.opset_import)
        case 3:
            _damage_list(rng, model.graph.value_info)
        case _:
            extra = TensorProto(name=model.graph.initializer[0].name, data_type=TensorProto.FLOAT, dims=[4])
            extra.raw_data = np.zeros(4, np.float32).tobytes()
            model.graph.initializer.append(extra)


def _damage_list(rng: random.Random, items: Any) -> None:
    """Drop, repeat or reorder entries of a repeated field."""
    copies: Sequence[Any] = list(items)
    if not copies:
        return
    at = rng.randrange(len(copies))
    match rng.randrange(3):
        case 0:
            changed = [*copies[:at], *copies[at + 1 :]]
        case 1:
            changed = [*copies[:at], copies[at], *copies[at:]]
        case _:
            changed = rng.sample(copies, len(copies))
    del items[:]
    items.extend(changed)
