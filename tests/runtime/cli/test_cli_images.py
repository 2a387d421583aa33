"""`trigraph run --image`, and `/image` in a chat."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from support.command import Run, assert_one_line_error
from support.models.seeing import SeeingPackages
from support.pictures.pictures import encode, pixels
from trigraph.runtime.cli.console import stream

GREEDY = ("--temp", 0, "-n", 6, "-t", 1, "-c", 2048)


@pytest.fixture(scope="module")
def package(seeing: SeeingPackages) -> Path:
    return seeing("tiny-moe", "Q8_0")


@pytest.fixture
def image(tmp_path: Path) -> Path:
    (tmp_path / "a.png").write_bytes(encode(pixels(120, 200), "PNG"))
    return tmp_path / "a.png"


def test_images_of_a_prompt(trigraph: Run, package: Path, image: Path) -> None:
    def ask(*options: object) -> dict[str, object]:
        found: dict[str, object] = json.loads(trigraph("run", package, *options, *GREEDY, "--json").out)
        return found

    seen = ask("-p", "What?", "--image", image)
    text = ask("-p", "What?")
    both = ask("-p", "What?", "--image", image, "--image", image)
    tokens = [found["stats"]["prompt_tokens"] for found in (text, seen, both)]  # type: ignore[index]
    assert tokens[1] - tokens[0] == tokens[2] - tokens[1] == 77 + 2 and seen["ids"] != text["ids"]
    raw = "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>What?<|im_end|>\n<|im_start|>assistant\n"
    assert ask("-p", raw, "--raw", "--image", image)["ids"] == seen["ids"]
    image.write_bytes(encode(pixels(300, 500), "PNG"))
    sizes = [ask("-p", "What?", "--image", image, "--image-tokens", most)["stats"] for most in (64, 1024)]
    assert [size["prompt_tokens"] - tokens[0] - 2 for size in sizes] == [60, 144]  # type: ignore[index]


def test_drafts_are_shown(trigraph: Run, package: Path, image: Path) -> None:
    found = trigraph("run", package, "-p", "What?", "--image", image, *GREEDY, "--show-drafts")
    assert found.status == 0 and "the same text" in found.err and found.out.count("<|image_pad|>") == 1


def test_a_chat(trigraph: Run, package: Path, image: Path, tmp_path: Path) -> None:
    lines = f"/image {image}\n/image nothing.png\nWhat?\n/save {tmp_path / 'x'}\n/reset\n/load {tmp_path / 'x'}\nMore\n"
    found = trigraph("run", package, "--image", image, *GREEDY, stdin=lines.encode(), terminal=True)
    assert found.status == 0
    assert f"{image}: 200 x 120 pixels, 77 tokens; the next message shows it" in found.err
    assert "error: 'nothing.png' cannot be read: No such file" in found.err
    assert "2 messages, " in found.err and "reused" in found.err
    assert "[1 image] > [2 images] > [2 images] > " in found.out


def test_how_much_of_an_image_is_read(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A line on a terminal, from a second on, written anew where it changes."""
    clock = [100.0]
    monkeypatch.setattr("trigraph.runtime.cli.console.time.monotonic", lambda: clock[0])
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    shown: list[Callable[[], None]] = []
    request = SimpleNamespace(text="", progress=(3, 90), reading=(1, 0.0), listen=shown.append)

    def pieces() -> Iterator[str]:
        for second, reading, progress in (
            (0.5, (1, 0.2), (3, 90)), (1.5, (1, 0.4), (3, 90)), (1.6, (1, 0.4), (3, 90)), (2, None, (60, 90)),
            (3, (2, 0.996), (60, 90)),
        ):  # fmt: skip
            clock[0], request.reading, request.progress = 100 + second, reading, progress
            shown[0]()
        yield "Yes."

    stream(pieces(), request)  # type: ignore[arg-type]
    found = capsys.readouterr()
    lines = ["image 1: 40 %", "prompt: 60 of 90 tokens", "image 2: 100 %", ""]
    assert found.err == "".join(f"\r\x1b[K{line}" for line in lines) and found.out == "Yes.\n"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["-p", "What?", "--image", "nothing.png"], "'nothing.png' cannot be read: No such file"),
        (["-p", "What?", "--image", "http://a.org/b.png"], "download it first: nothing is fetched"),
        (["-p", "What?", "--image", __file__], "it is not a JPEG, PNG, WebP or GIF image"),
        (["-p", "What?", "--image-tokens", 10], "tokens of an image is 10; it must be from 64 to 16384"),
        (["-p", "What?", "--mmproj", "x.gguf"], "--mmproj: "),
    ],
)
def test_refused(trigraph: Run, package: Path, options: list[object], text: str) -> None:
    assert_one_line_error(trigraph("run", package, *options, *GREEDY), text)


def test_raw_prompts_without_a_place(trigraph: Run, package: Path, image: Path) -> None:
    result = trigraph("run", package, "-p", "What?", "--raw", "--image", image, *GREEDY)
    assert_one_line_error(result, "the prompt has 0 places for images (<|image_pad|>), and 1 images are given")


def test_a_model_that_reads_text_only(trigraph: Run, tiny_package: Path, image: Path) -> None:
    assert_one_line_error(trigraph("run", tiny_package, "-p", "What?", "--image", image), "reads text only", "mmproj")
