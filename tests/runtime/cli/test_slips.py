"""Slips of the keyboard and of the shell: values that are no numbers, unset variables, dashes that are no hyphens."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.command import Run, assert_one_line_error


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["run", "x.gguf", "-p", "a", "--temp", "0,7"], "--temperature is '0,7'; write a number"),
        (["run", "x.gguf", "-p", "a", "-n", "-2"], "max_tokens is -2; it must be 0 or more, or -1: until"),
        (["run", "x.gguf", "-p", "a", "--temp", "inf"], "temperature is inf; it must be 0 or more, and finite"),
        (["run", "x.gguf", "-p", "-n", "5"], "-p needs a value, and the option -n follows it"),
        (["run", "", "-p", "a"], "an argument is ''; is a variable of the shell unset?"),
        (["run", "x.gguf", "-p", "a", "--mmproj", ""], "--mmproj is empty; is a variable of the shell unset?"),
        (
            ["run", "x.gguf", "-p", "a", "–temp", "1"],
            "'–temp' begins with a dash that is no hyphen: did you mean --temp?",
        ),
        (["run", "{tmp}/turning.gguf", "-p", "a"], "turning.gguf: is a link to a file that is not there"),
        (["run", "llama3.2", "-p", "a"], "llama3.2: there is no such file; by name, models are USER/REPO:QUANT"),
        (["run", "file:///x.gguf", "-p", "a"], "is a URL; give the path without 'file://'"),
        (["run", "-hf", "ollama:qwen3.5"], "'trigraph run ollama:qwen3.5' runs it"),
        (["run", "{tiny}", "-p", "a", "--receipt", "{tmp}"], "{tmp}: is a folder; name a file for the receipt"),
        (["serve", "{tiny}", "--port", "99999"], "--port is '99999'; it must be less than or equal to 65535"),
        (["serve", "{tiny}", "--drain-seconds", "nan"], "--drain-seconds is 'nan'; it must be greater than or equal"),
        (["serve", "{tiny}", "--host", ""], "--host is empty; name an address"),
        (
            ["serve", "{tiny}", "--idle-minutes", "5"],
            "--idle-minutes is for models that are loaded when they are asked",
        ),
        (
            ["serve", "--model", "a={tiny}", "--alias", "b"],
            "--alias is for one model; with several, --model NAME=MODEL",
        ),
        (["serve", "{tiny}", "--api-key", ""], "a key of --api-key, --api-key-file or TRIGRAPH_API_KEY is empty"),
        (["export", "x.gguf", "y"], "unexpected argument 'y'; give the folder with -o"),
        (["synth", "tiny-dense", "{tmp}"], "{tmp}: is a folder; name a file"),
    ],
    ids=lambda value: " ".join(value)[:50] if isinstance(value, list) else "",
)
def test_slips(trigraph: Run, tiny_gguf: Path, tmp_path: Path, arguments: list[str], text: str) -> None:
    (tmp_path / "turning.gguf").symlink_to("turning.gguf")
    paths = dict(tmp=tmp_path, tiny=tiny_gguf)
    result = trigraph(*(argument.format(**paths) for argument in arguments), terminal=True)
    assert_one_line_error(result, text.format(**paths))
    assert {path.name for path in tmp_path.iterdir()} <= {"turning.gguf", "cache"}
