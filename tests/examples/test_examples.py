"""The programs of `examples/` run, and say what their first lines promise."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

import chat_tools
from support.fakes.thinking_engine import thinking_engine
from support.models.seeing import SeeingPackages, prompt_of
from support.servers.scripted import PLAIN_TEMPLATE, replying, serving
from trigraph.custom_ops import library_path
from trigraph.exporter import ExportOptions, export
from trigraph.runtime import Options, Sampling, load

ROOT = Path(__file__).parents[2]


def output(name: str, *arguments: object) -> str:
    """What an example prints."""
    command = [sys.executable, str(ROOT / "examples" / name), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_generate(tiny_package: Path) -> None:
    expected = load(tiny_package).generate("And the", Options(Sampling(temperature=0.7, seed=1), max_tokens=64)).run()
    assert output("generate.py", tiny_package, "And the") == expected + "\n"


def test_batch(tiny_package: Path) -> None:
    engine, options = load(tiny_package), Options(Sampling(temperature=0), max_tokens=32)
    prompts = ["In the beginning", "It was a dark night", "And the sea"]
    expected = [f"{prompt}|{engine.generate(prompt, options).run()}\n" for prompt in prompts]
    assert output("batch.py", tiny_package, *prompts) == "".join(expected)


def test_chat_with_tools() -> None:
    call = "<tool_call>\n" + json.dumps({"name": "get_weather", "arguments": {"city": "Oslo"}}) + "\n</tool_call>"
    engine = thinking_engine(f"</think>{call}", "</think>It is cold.")
    text = "".join(chat_tools.answer(engine, "What is the weather in Oslo?"))
    assert call in text and text.endswith("It is cold.")


def test_structured_output(tiny_package: Path) -> None:
    pytest.importorskip("llguidance", reason="llguidance is not installed")
    found = ast.literal_eval(output("structured.py", tiny_package, "The captain of the ship:"))
    assert set(found) == {"name", "age"} and isinstance(found["age"], int) and found["age"] <= 120


def test_score(tiny_package: Path) -> None:
    engine, text = load(tiny_package), "In the beginning God created the heaven"
    lines = output("score.py", tiny_package, text).splitlines()
    scores = engine.score(text)
    assert len(lines) == len(scores) == len(engine.tokenizer.encode(text)) - 1
    assert [float(line.split()[0]) for line in lines] == [round(score.logprob, 3) for score in scores]


@pytest.mark.slow
@pytest.mark.parametrize("client", ["openai", "anthropic"])
def test_clients_of_a_server(client: str) -> None:
    pytest.importorskip(client, reason=f"{client} is not installed")
    with serving(replying("Because of the air.", template=PLAIN_TEMPLATE)) as address:
        assert output(f"{client}_client.py", address, "Why is the sky blue?") == "Because of the air.\n"


def test_host(copied_package: Path, operator_library: Path) -> None:
    engine = load(copied_package, threads=1)
    prompt = engine.tokenizer.encode("In the beginning")
    expected = engine.generate(prompt, Options(Sampling(temperature=0), max_tokens=40, ignore_eos=True))
    expected.run()
    found = output("host.py", copied_package, library_path("cpu"), ",".join(map(str, prompt)))
    assert [int(number) for number in found.split()] == expected.ids


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"contract_version": 6}, "the package follows another contract"),
        ({"features": ["images", "sound"]}, "this host does not know the package's feature sound"),
    ],
)
def test_host_refuses_other_packages(
    change: dict[str, object], sentence: str, tiny_package: Path, tmp_path: Path
) -> None:
    manifest = json.loads((tiny_package / "manifest.json").read_text())
    (tmp_path / "manifest.json").write_text(json.dumps(manifest | change))
    command = [sys.executable, str(ROOT / "examples" / "host.py"), str(tmp_path), "library", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, f"error: {sentence}\n")


def test_host_of_residual_streams(
    synthetic: Callable[[str, str], Path], operator_library: Path, tmp_path: Path
) -> None:
    """Tokens before a step are an input of it."""
    folder = tmp_path / "package"
    export(synthetic("tiny-streams", "Q8_0"), folder, ExportOptions(weights="copy"))
    prompt = [5, 77, 12, 9, 3]
    expected = load(folder, threads=1, device="cpu").generate(
        prompt, Options(Sampling(temperature=0), max_tokens=40, ignore_eos=True)
    )
    expected.run()
    found = output("host.py", folder, library_path("cpu"), ",".join(map(str, prompt)))
    assert [int(number) for number in found.split()] == expected.ids


def test_host_with_an_image(seeing: SeeingPackages, tmp_path: Path) -> None:
    """The ids of our own runtime, with text and with an image, whose sides need no resizing."""
    folder = seeing("tiny-dense", "F32", weights="copy")
    prompt = prompt_of(4, (3, 5), 6)
    engine, options = load(folder, threads=1), Options(Sampling(temperature=0), max_tokens=40, ignore_eos=True)
    for shown in (prompt, prompt_of(9)):
        expected = engine.generate(shown, options)
        expected.run()
        ids = [str(token) for token in shown.ids]
        if shown.pixels:
            Image.fromarray(shown.pixels[0].pixels).save(tmp_path / "image.png")
            around = ",".join([*ids[:4], "IMAGE", *ids[19:]])
            found = output("host_images.py", folder, library_path("cpu"), tmp_path / "image.png", around)
        else:
            found = output("host.py", folder, library_path("cpu"), ",".join(ids))
        assert [int(number) for number in found.split()] == expected.ids
