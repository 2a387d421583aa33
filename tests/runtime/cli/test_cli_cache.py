"""Prompt caches and the cache of packages, by the command line."""

import json
import os
from pathlib import Path

import pytest

from support.command import Run, assert_one_line_error
from support.models.random_gguf import write_random
from trigraph.models.errors import TrigraphError


def test_a_prompt_cache(trigraph: Run, tiny_package: Path, operator_library: Path, tmp_path: Path) -> None:
    def run(prompt: str, *others: object, cache: bool = True) -> tuple[list[int], int, int]:
        """Ids, reused and computed tokens of the prompt."""
        options = ["-n", 20, "--seed", 3, "--ignore-eos", "--json", *others]
        result = trigraph(
            "run", tiny_package, "-p", prompt, *options, *(["--prompt-cache", tmp_path / "text"] if cache else [])
        )
        assert (result.status, result.err) == (0, ""), result
        content = json.loads(result.out)
        return content["ids"], content["stats"]["reused_tokens"], content["stats"]["prompt_tokens"]

    beginning = "And it came to pass in those days, that"
    ids, reused, computed = run(beginning)
    assert (reused, computed) == (0, computed)
    assert ids == run(beginning, cache=False)[0]
    # The same prompt again: its state is there, and so is the row that the first token is chosen from.
    for others in ([], ["--no-spec"], ["-t", 2]):
        assert run(beginning, *others) == (ids, computed, 0)
    longer = run(beginning + " the king said unto the people")
    assert (longer[1], longer[2] > 0) == (computed, True)
    assert run(beginning + " the king said unto the people", "--no-spec")[0] == longer[0]
    line = trigraph("run", tiny_package, "-p", beginning, "-n", 4, "--prompt-cache", tmp_path / "text").err
    assert f"prompt 0 tokens (+{computed} reused)" in line
    assert list(tmp_path.iterdir()) == [tmp_path / "text"], "something else is left"


def test_a_prompt_cache_of_another_model(
    trigraph: Run, tiny_package: Path, operator_library: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other.gguf"
    write_random(other, "qwen35", preset="nano")
    cache = tmp_path / "text"
    assert trigraph("run", other, "-p", "hello", "-n", 2, "--prompt-cache", cache).status == 0
    before = cache.read_bytes()
    result = trigraph("run", tiny_package, "-p", "hello", "-n", 2, "--prompt-cache", cache)
    assert_one_line_error(result, "was saved with the model")
    assert "and this is" in result.err
    assert cache.read_bytes() == before


def test_a_prompt_cache_of_other_weights(
    trigraph: Run, tiny_gguf: Path, operator_library: Path, tmp_path: Path
) -> None:
    """Of a model with the same name, header and size: two megabytes of its weights differ."""
    content = bytearray(tiny_gguf.read_bytes())
    (tmp_path / "one.gguf").write_bytes(content)
    middle = len(content) // 2
    content[middle : middle + (2 << 20)] = bytes(2 << 20)
    (tmp_path / "other.gguf").write_bytes(content)
    cache = ["--prompt-cache", tmp_path / "session"]
    assert trigraph("run", tmp_path / "one.gguf", "-p", "a", "-n", 2, *cache).status == 0
    result = trigraph("run", tmp_path / "other.gguf", "-p", "a", "-n", 2, *cache)
    assert_one_line_error(result, "was saved with the model")


def test_a_gguf_file_is_exported_to_the_cache_once(
    trigraph: Run, tiny_gguf: Path, operator_library: Path, tmp_path: Path
) -> None:
    model = tmp_path / "model.gguf"
    model.write_bytes(tiny_gguf.read_bytes())
    cache = tmp_path / "cache" / "trigraph"

    def run() -> int:
        result = trigraph("run", model, "-p", "a", "-n", 2)
        assert result.status == 0, result
        (entry,) = cache.iterdir()
        assert model.stat().st_nlink == 1, "the cache keeps the disk space of a deleted model"
        return (entry / "package" / "manifest.json").stat().st_mtime_ns

    first = run()
    assert run() == first
    os.utime(model, ns=(1, 1))
    second = run()
    assert second != first
    (graph,) = cache.glob("*/package/verify.onnx")
    graph.unlink()
    assert run() != second


def test_a_completion_is_shown_if_its_state_cannot_be_saved(
    trigraph: Run, tiny_package: Path, operator_library: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(*arguments: object) -> None:
        raise TrigraphError("no space left")

    monkeypatch.setattr("trigraph.runtime.cache.prefix_cache.save_session", fail)
    result = trigraph("run", tiny_package, "-p", "a", "-n", 4, "--json", "--prompt-cache", tmp_path / "cache")
    assert (result.status, result.err) == (2, "error: no space left\n")
    assert len(json.loads(result.out)["ids"]) == 4
