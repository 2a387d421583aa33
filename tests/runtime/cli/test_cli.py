"""The command line: outputs, and for each mistake one line and the right exit status."""

import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from support.command import Run, assert_one_line_error
from support.fakes.engine import TEMPLATE
from support.models.random_gguf import write_random


def test_help_and_version(trigraph: Run) -> None:
    assert trigraph("--version").out.startswith("trigraph ")
    overview = trigraph("--help")
    assert overview.status == 0
    assert all(command in overview.out for command in ("run", "export", "inspect", "synth"))
    assert "--draft-tokens" in trigraph("run", "--help").out
    assert trigraph().err == ""


def test_help_is_grouped(trigraph: Run) -> None:
    text = trigraph("run", "--help").out
    panels = [
        *("Arguments", "Options", "Model", "Prompt", "Sampling"),
        *("Structured output", "Reasoning and tools", "Speculation", "Output"),
    ]
    assert [line.strip("╭╮─ ") for line in text.splitlines() if line.startswith("╭")] == panels
    assert len(text.splitlines()) < 80 and "--repack" not in text and "Examples:" in text
    whole = trigraph("run", "--help-all").out
    options = ("--repack", "--prompt-cache", "--min-p", "--regex", "--receipt")
    assert all(option in whole for option in options)
    commands = "run serve export inspect synth models bench perplexity doctor audit verify"
    for command in ([], *([name] for name in commands.split())):
        text = trigraph(*command, "--help").out
        assert not re.search(r"<(int|str|path|float|bool)>|\[\[", text), text


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("perp", {"perplexity"}),
        ("run --json", {"--json-schema", "--json"}),
        ("run models/", set()),  # none of ours: the shell completes file names
        ("run --grammar ", set()),
        ("synth qwen3.6", {"qwen3.6-27b", "qwen3.6-35b-a3b"}),
        ("bench --activations ", {"float32", "int8"}),
    ],
)
def test_completion(trigraph: Run, monkeypatch: pytest.MonkeyPatch, words: str, expected: set[str]) -> None:
    monkeypatch.setenv("_TRIGRAPH_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", f"trigraph {words}")
    monkeypatch.setenv("COMP_CWORD", str(len(words.split(" "))))
    result = trigraph()
    assert (result.status, set(result.out.split()), result.err) == (0, expected, "")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["fly"], "No such command 'fly'. Try 'trigraph --help'."),
        (["bench", "{tmp}", "--activations", "int8"], "give the .gguf file instead"),
        (["run", "{tmp}", "--kv-type", "q8_0", "-p", "a"], "give --kv-type when exporting"),
        (
            ["run", "x.gguf", "--main-gpu", "1"],
            "unknown option --main-gpu: --device cuda:0,cuda:1 puts some layers on each GPU, and --device cuda:1",
        ),
        (["run", "x.gguf", "hi"], "unexpected argument 'hi'; give the prompt with -p"),
        (["inspect", "x.gguf", "hi"], "unexpected argument 'hi'"),
        (["run", "x.gguf", "-p", "a", "-n", "many"], "--max-tokens is 'many'; write a whole number"),
        (["run", "{tmp}/missing.gguf", "-p", "a"], "missing.gguf: cannot be read: No such file"),
        (["run", "{tmp}", "-p", "a"], "is a folder of GGUF files; give one of them, such as {tmp}/text.gguf"),
        (["run", "{tmp}/empty", "-p", "a"], "empty: is not a trigraph package"),
        (["run", "{models}", "-p", "a"], "is a folder of GGUF files; give one of them, such as "),
        (["export", "{models}", "-o", "{tmp}/out"], "is a folder of GGUF files"),
        (["inspect", "{models}"], "is a folder of GGUF files"),
        (["bench", "{models}"], "is a folder of GGUF files"),
        (["run", "https://example.com/x.gguf", "-p", "a"], "https://example.com/x.gguf: is a URL; download the file"),
        (["run", "https://example.com/" + "x" * 600, "-p", "a"], "is a URL"),
        (["run", "{tmp}/a/b.gguf", "-p", "a"], "b.gguf: cannot be read: No such file"),
        (["run", "{tmp}/text.gguf", "-p", "a"], "text.gguf"),
        (["run", "{tiny}", "-p", "a", "--temp", "-1"], "temperature is -1.0"),
        (["run", "{tiny}", "-p", "a", "--top-p", "7"], "top_p is 7.0"),
        (["run", "{tiny}", "-p", "a", "-t", "0"], "threads is 0"),
        (
            ["run", "{tiny}", "-p", "a", "-c", "4k"],
            "context is 4096; the package was exported for 1 to 2048 tokens; YaRN",
        ),
        (["run", "{tiny}", "-p", "a", "-n", "-5"], "max_tokens is -5"),
        (["run", "{tiny}", "-p", "a", "--draft-tokens", "9"], "a round drafts at most 7"),
        (["run", "{tiny}", "-p", "a", "--stop", ""], "a stop string is empty"),
        (["run", "{tiny}", "-p", "a", "--logit-bias", "12=1"], "write ID+BIAS"),
        (["run", "{tiny}", "-p", "a", "--logit-bias", "2048+1"], "ids of this model are from 0 to 2047"),
        (["run", "{tiny}", "-p", "a", "--json-schema", "{tmp}/missing.json"], "missing.json: cannot be read"),
        (["run", "{tiny}", "-p", "a", "--grammar", "{tmp}/missing.lark"], "missing.lark: cannot be read"),
        (["run", "{tiny}", "-p", "a", "--regex", "a("], "the regular expression cannot be used"),
        (["run", "{tiny}", "-p", "a", "--regex", "a", "--json-schema", "{{}}"], "exclude each other"),
        (["run", "{tiny}", "-p", "a", "-sys", "b"], "the model has none"),
        (["run", "{tiny}", "-p", "a", "-f", "b"], "exclude each other"),
        (["run", "{tiny}", "-f", "{tmp}/missing.txt"], "missing.txt: cannot be read"),
        (["run", "{tiny}", "-p", ""], "the prompt has 0 tokens"),
        (
            ["run", "{tiny}", "-p", "word " * 3000],
            "tokens; it must have 1 to 2048, the loaded context; shorten it, or load with a larger context",
        ),
        (["run", "{tiny}", "--prompt-cache", "{tmp}/cache.state"], "--prompt-cache needs a prompt"),
        (["run", "{tiny}", "-p", "a", "--prompt-cache", "{tmp}/text.gguf"], "is not a session file; name a new file"),
        (["run", "{tiny}", "-p", "a", "--prompt-cache", "{tmp}"], "is not a file"),
        (["run", "{tiny}", "-p", "a", "--prompt-cache", "{tmp}/none/x"], "does not exist; create it"),
        (
            ["run", "{tiny}", "-p", "a", "--json", "--prompt-cache", "{tmp}/" + "x" * 255],
            "cannot be written: File name",
        ),
        (["run", "{tiny}", "-p", "a", "--mtp", "{tmp}/missing.gguf"], "missing.gguf"),
        (["export", "{tmp}/missing.gguf", "-o", "{tmp}/out"], "missing.gguf"),
        (["export", "{tiny}", "-o", "/proc/out"], "/proc/out"),
        (["export", "{tiny}", "-o", "{tmp}/out", "--kv-type", "f8"], "f8"),
        (["export", "{tiny}", "-o", "{tmp}/out", "--copy-weights", "--reference"], "exclude each other"),
        (["export", "{tiny}"], "Missing option"),
        (["inspect", "{tmp}/missing"], "missing"),
        (["inspect", "{tmp}/empty"], "empty: is not a trigraph package"),
        (["inspect", "{tiny}", "--graph", "{tmp}/graphs.png"], "graphs.png: the picture is SVG"),
        (["inspect", "{tiny}", "--graph", "{tmp}/none/graphs.svg"], "graphs.svg: cannot be written"),
        (["synth", "gpt-2", "{tmp}/out.gguf"], "unknown geometry 'gpt-2'"),
        (["synth", "tiny-dense", "{tmp}/none/out.gguf"], "cannot write"),
    ],
    ids=lambda value: " ".join(value)[:50] if isinstance(value, list) else "",
)
def test_mistakes(
    trigraph: Run, tiny_gguf: Path, operator_library: Path, tmp_path: Path, arguments: list[str], text: str
) -> None:
    (tmp_path / "text.gguf").write_text("This is not a model.")
    (tmp_path / "empty").mkdir()
    before = set(tmp_path.iterdir())
    paths = dict(tmp=tmp_path, tiny=tiny_gguf, models=tiny_gguf.parent)
    arguments = [argument.format(**paths) for argument in arguments]
    assert_one_line_error(trigraph(*arguments, terminal=True), text.replace("{tmp}", str(tmp_path)))
    assert set(tmp_path.iterdir()) <= before | {tmp_path / "cache"}


def test_a_package_is_not_replaced_by_accident(trigraph: Run, tiny_gguf: Path, tmp_path: Path) -> None:
    command = ["export", tiny_gguf, "-o", tmp_path / "package", "--reference"]
    assert trigraph(*command).status == 0
    assert_one_line_error(trigraph(*command), "--force replaces it")
    assert trigraph(*command, "--force", "--max-context", 512).status == 0
    assert json.loads((tmp_path / "package/manifest.json").read_text())["max_context"] == 512


def test_a_prompt_by_option_file_or_stdin(
    trigraph: Run, tiny_package: Path, operator_library: Path, tmp_path: Path
) -> None:
    text = "And it came to pass, that"
    (tmp_path / "prompt.txt").write_text(text)
    options = ["--temp", 0, "-n", 12, "-t", 1]
    results = [
        trigraph("run", tiny_package, "-p", text, *options),
        trigraph("run", tiny_package, "-f", tmp_path / "prompt.txt", *options),
        trigraph("run", tiny_package, "-p", "-", *options, stdin=text.encode()),
        trigraph("run", tiny_package, *options, stdin=text.encode()),
    ]
    assert {result.status for result in results} == {0}
    assert len({result.out for result in results}) == 1
    assert results[0].out.endswith("\n")
    for result in results:
        assert "generated 12 tokens" in result.err
        assert result.err.count("\n") == 1
    assert_one_line_error(trigraph("run", tiny_package, stdin=b"\xff\xfe"), "is not UTF-8")


def test_json(trigraph: Run, tiny_package: Path, operator_library: Path) -> None:
    arguments = ["run", tiny_package, "-p", "In the beginning", "-n", 16, "--json", "--seed", 7]
    result = trigraph(*arguments)
    assert result.err == ""
    content = json.loads(result.out)
    assert set(content) == {"text", "message", "ids", "stats"}
    assert len(content["ids"]) == content["stats"]["tokens"] == 16
    assert content["stats"]["seed"] == 7
    for others in (["--no-spec"], ["--draft-tokens", 4], ["-t", 2]):
        assert json.loads(trigraph(*arguments, *others).out)["ids"] == content["ids"]
    assert_one_line_error(trigraph("run", tiny_package, "--json", terminal=True), "--json needs a prompt")


@pytest.mark.parametrize("kind", ["--json-schema", "file", "--grammar", "--regex"])
def test_answers_of_a_given_form(
    trigraph: Run, tiny_package: Path, operator_library: Path, tmp_path: Path, kind: str
) -> None:
    pytest.importorskip("llguidance", reason="llguidance is not installed: no constraints")
    schema = '{"enum": ["yes", "no"]}'
    (tmp_path / "schema.json").write_text(schema)
    (tmp_path / "answer.gbnf").write_text('root ::= "\\"" ("yes" | "no") "\\""')
    values = {"--json-schema": schema, "file": tmp_path / "schema.json", "--regex": '"(yes|no)"'}
    option = "--json-schema" if kind == "file" else kind
    result = trigraph("run", tiny_package, "-p", "Is it?", option, values.get(kind, tmp_path / "answer.gbnf"))
    assert (result.status, result.out in ('"yes"\n', '"no"\n')) == (0, True), result
    assert "end: stop" in result.err


def test_a_chat_without_a_template_is_chatml(trigraph: Run, tiny_package: Path, operator_library: Path) -> None:
    lines = b"Once upon\n\n/reset\nThe king\n/exit\nmore"
    result = trigraph("run", tiny_package, "-n", 4, stdin=lines, terminal=True)
    assert result.status == 0
    assert "no chat template; chats are written as ChatML" in result.err
    assert result.err.count("generated 4 tokens") == 2
    raw = trigraph("run", tiny_package, "-n", 4, "--raw", stdin=lines.replace(b"/exit", b"/quit"), terminal=True)
    assert raw.status == 0 and "Once upon" in raw.out and "more" not in raw.out
    assert "no chat template" not in raw.err


def test_a_chat_with_a_template(
    trigraph: Run, synthetic: Callable[[str, str], Path], operator_library: Path, tmp_path: Path
) -> None:
    package = tmp_path / "chat"
    assert trigraph("export", synthetic("tiny-dense", "Q8_0"), "-o", package, "--reference").status == 0
    (package / "chat_template.jinja").write_text(TEMPLATE)
    options = ["-n", 5, "--ignore-eos", "-sys", "Be brief.", "--seed", 1]
    result = trigraph("run", package, *options, stdin=b"hello\nagain\n", terminal=True)
    assert result.status == 0
    first, second = (line for line in result.err.splitlines() if line.startswith("prompt "))
    assert "reused" not in first
    assert "reused" in second
    once = trigraph("run", package, *options, "-p", "hello")
    assert once.out.strip() in result.out
    raw = trigraph("run", package, "-n", 5, "--seed", 1, "-p", "hello", "--raw")
    assert raw.err.split(",")[0] != once.err.split(",")[0], "the template was used"


def test_a_model_without_a_head_says_so(trigraph: Run, operator_library: Path, tmp_path: Path) -> None:
    trunk, head = tmp_path / "trunk.gguf", tmp_path / "head.gguf"
    write_random(trunk, "qwen35", preset="nano", mtp=False)
    write_random(head, "qwen35", preset="nano", mtp="only")
    options = ["-p", "hello", "-n", 8, "--seed", 1, "--ignore-eos"]
    alone = trigraph("run", trunk, *options)
    assert "n-grams alone: the model has no MTP head" in alone.err
    assert "note: the model has no MTP head, the layer that drafts: drafts come from repetitions" in alone.err
    assert "MTP head" not in trigraph("run", trunk, "--no-spec", *options).err
    both = trigraph("run", trunk, "--mtp", head, *options)
    assert "speculation on" in both.err or "speculation parked" in both.err
    assert both.out == alone.out
    result = trigraph("export", trunk, "-o", tmp_path / "out")
    assert "no MTP head" in result.err
    assert_one_line_error(trigraph("run", tmp_path / "out", "--mtp", head, *options), "give --mtp when exporting")


def test_inspect_and_synth(trigraph: Run, tmp_path: Path) -> None:
    out = tmp_path / "small.gguf"
    assert trigraph("synth", "tiny-dense", out, "--layers", 2, "--quant", "Q8_0", "--seed", 3).status == 0
    content = json.loads(trigraph("inspect", out, "--json", "--context", 100).out)
    assert (content["context"], content["mtp"], content["layers"]["Gated DeltaNet"]) == (100, True, 2)
    assert "Gated DeltaNet" in trigraph("inspect", out).out
    assert trigraph("inspect", out, "--graph", tmp_path / "small.svg").status == 0
    assert "verify.onnx" in (tmp_path / "small.svg").read_text()


@pytest.mark.parametrize("arguments", [["-n20"], ["-n", "20"], ["--max-tokens=20"], ["-t1", "-n20", "-s-1"]])
def test_values_of_options(trigraph: Run, tiny_gguf: Path, operator_library: Path, arguments: list[str]) -> None:
    result = trigraph("run", tiny_gguf, "-p", "-5 -ngl", "--ignore-eos", *arguments)
    assert (result.status, "generated 20 tokens" in result.err) == (0, True), result


def test_notices_are_shown(trigraph: Run, tiny_gguf: Path, operator_library: Path) -> None:
    result = trigraph("run", tiny_gguf, "-p", "a", "-n", 2, "-t", 2000)
    assert result.status == 0
    assert result.err.startswith("note: 2000 threads were asked for; ")


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such names")
def test_names_that_are_not_utf_8(trigraph: Run, tiny_gguf: Path, operator_library: Path, tmp_path: Path) -> None:
    model = tmp_path / os.fsdecode(b"m\xff.gguf")
    model.write_bytes(tiny_gguf.read_bytes())
    for command in (["run", model, "-p", "a"], ["export", model, "-o", tmp_path / "out"], ["bench", model]):
        assert_one_line_error(trigraph(*command), "is not UTF-8")
    assert_one_line_error(trigraph("run", tiny_gguf, "-p", "a", "--regex", model.name), "the regular expression")
    out = tmp_path / os.fsdecode(b"\xff")
    assert trigraph("export", tiny_gguf, "-o", out).status == 0
    assert_one_line_error(trigraph("run", out, "-p", "a"), "is not UTF-8")
    assert trigraph("run", tiny_gguf, "-p", "a", "-n", 2, "--prompt-cache", out / "cache").status == 0
