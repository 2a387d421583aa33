"""Hints: what users of other programs may type, and the sentence that helps each of them on."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.command import Run, assert_one_line_error
from trigraph.custom_ops import library_path
from trigraph.exporter import ExportOptions, export
from trigraph.models.errors import TrigraphError
from trigraph.runtime.device.device import Device


@pytest.fixture(scope="module")
def short_package(tmp_path_factory: pytest.TempPathFactory, tiny_gguf: Path, operator_library: Path) -> Path:
    """A package whose context is shorter than the model's."""
    folder = tmp_path_factory.mktemp("short") / "package"
    export(tiny_gguf, folder, ExportOptions(max_context=512, weights="reference"))
    return folder


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["rum"], "No such command 'rum'. Did you mean 'run'? Try 'trigraph --help'."),
        (["version"], "unknown command 'version': 'trigraph --version' prints the version"),
        (["quantize", "x.gguf"], "unknown command 'quantize': GGUF files are made by llama.cpp's"),
        (["-m", "x.gguf", "-p", "a"], "unknown option -m: options follow the command, such as 'trigraph run"),
        (["x.gguf"], "unknown command 'x.gguf': 'trigraph run x.gguf' runs a model"),
        (["serve", "x.gguf", "-p", "hi"], "unknown option -p: requests bring their prompts; --port is the port"),
        (["serve", "x.gguf", "--tp", "2"], "unknown option --tp: --device cuda:0,cuda:1 puts"),
        (["serve", "x.gguf", "--reload"], "unknown option --reload: not needed"),
        (["serve", "x.gguf", "--log-level", "debug"], "unknown option --log-level: messages go to stderr"),
        (["export", "x.gguf", "--outtype", "q8_0"], "unknown option --outtype: not needed: weights stay"),
        (["perplexity", "x.gguf", "-p", "a"], "unknown option -p: -f names the text"),
        (["run", "-p", "a"], "name a model: MODEL.gguf, a package, or -hf USER/REPO:QUANT"),
        (["run", "x.gguf", "-hf", "a/b"], "x.gguf and -hf a/b both name a model"),
        (["run", "-hf", "model"], "model: write USER/REPO or USER/REPO:QUANT"),
        (
            ["run", "qwen3.5:4b"],
            "write ollama:qwen3.5:4b if Ollama has pulled it, or give a repository of GGUF files, such as unsloth/Qwen",
        ),
        (["export", "{package}", "-o", "{tmp}/out"], "is a package already; run and serve take it as it is"),
        (["run", "x.gguf", "--wings", "2"], "unknown option --wings: 'trigraph run --help-all' lists all"),
        (["run", "x.gguf", "--top_k", "2"], "unknown option --top_k: did you mean --top-k?"),
        (["run", "x.gguf", "-ngl", "99"], "unknown option -ngl: --device cuda"),
        (["run", "x.gguf", "--n-cpu-moe", "8"], "unknown option --n-cpu-moe: --gpu-memory 12G leaves experts"),
        (["run", "{tiny}", "-p", "a", "--gpu-memory", "12G"], "gpu_memory is for a GPU, and the device is cpu; use"),
        (["run", "{tiny}", "-p", "a", "--gpu-memory", "12Q"], "--gpu-memory '12Q': write a number of bytes"),
        (
            ["inspect", "{tiny}", "--gpu-memory", "1M"],
            "may take 0.00 GB, and the model needs 1.08 GB there, even with all",
        ),
        (["run", "x.gguf", "-no-cnv"], "unknown option -no-cnv: --raw completes"),
        (["run", "x.gguf", "-cnv"], "unknown option -cnv: without a prompt"),
        (["run", "x.gguf", "-nkvo"], "unknown option -nkvo: keys and values"),
        (["run", "x.gguf", "-fa"], "unknown option -fa: not needed"),
        (["run", "x.gguf", "-vh"], "unknown option -vh"),
        (["run", "x.gguf", "--no-cnv"], "unknown option --no-cnv: --raw completes"),
        (["run", "x.gguf", "--lora", "y.gguf"], "unknown option --lora: adapters are not supported; merge them"),
        (["run", "x.gguf", "-mm", "y"], "unknown option -mm: use --mmproj"),
        (["run", "x.gguf", "--video", "y.mp4"], "unknown option --video: audio and video are not supported; --image"),
        (["serve", "x.gguf", "--embedding"], "unknown option --embedding: not needed: serve has /v1/embeddings"),
        (["serve", "x.gguf", "--parallel", "4"], "unknown option --parallel: use --max-sequences"),
        (["serve", "x.gguf", "--served-model-name", "x"], "unknown option --served-model-name: use --alias"),
        (["serve", "x.gguf", "--max-model-len", "4096"], "unknown option --max-model-len: use --ctx-size"),
        (["serve", "x.gguf", "-ot", "exps=CPU"], "unknown option -ot: --gpu-memory 12G leaves experts"),
        (["serve", "x.gguf", "--cpu-offload-gb", "4"], "unknown option --cpu-offload-gb: --gpu-memory 12G leaves"),
        (["serve", "x.gguf", "-cb"], "unknown option -cb: not needed: requests are always decoded together"),
        (["serve", "x.gguf", "--rerank"], "unknown option --rerank: reranking is not offered"),
        (
            ["serve", "x.gguf", "--spec-type", "x"],
            "unknown option --spec-type: not needed: the MTP head and repetitions",
        ),
        (["serve", "x.gguf", "--metrics"], "unknown option --metrics: not needed: serve has /metrics, /slots"),
        (["serve", "x.gguf", "--cache-ram", "8"], "unknown option --cache-ram: --kv-memory sets the memory"),
        (["serve", "x.gguf", "--enable-prefix-caching"], "unknown option --enable-prefix-caching: not needed: prompts"),
        (
            ["serve", "x.gguf", "--tool-call-parser=x"],
            "unknown option --tool-call-parser: not needed: the chat template",
        ),
        (["serve", "x.gguf", "--keepalive", "5m"], "unknown option --keepalive: use --model NAME=FILE and --idle"),
        (["run", "x.gguf", "--keepalive", "5m"], "unknown option --keepalive: not needed: the model stays loaded"),
        (["run", "x.gguf", "--system", "y"], "unknown option --system: use --system-prompt"),
        (["run", "x.gguf", "--hidethinking"], "unknown option --hidethinking: use --reasoning hide"),
        (["run", "x.gguf", "--format", "json"], "unknown option --format: use -j"),
        (["run", "x.gguf", "--fit", "on"], "unknown option --fit: not needed: what does not fit on the GPU"),
        (["run", "x.gguf", "--reasoning", "y", "-nr"], "unknown option -nr: use --repack off"),
        (["serve", "{tiny}", "-np", "100000"], "sequences is 100000; at most 1024 requests are computed at once"),
        (
            ["serve", "{tiny}", "--cors-origin", "notaorigin"],
            "--cors-origin is 'notaorigin'; an origin is a scheme and",
        ),
        (["bench", "x.gguf", "-m", "y.gguf"], "unknown option -m: the model is the first argument"),
        (
            ["run", "x.gguf", "--repeat-last-n", "32"],
            "unknown option --repeat-last-n: penalties consider",
        ),
        (["run", "x.gguf", "--draft-p-min", "0.5"], "unknown option --draft-p-min: not needed"),
        (["serve", "x.gguf", "-j", "{{}}"], "unknown option -j: requests ask for a form: response_format"),
        (["perplexity", "x.gguf", "--mtp", "y.gguf"], "unknown option --mtp: not needed: a score makes no drafts"),
        (["perplexity", "x.gguf", "-md", "y.gguf"], "unknown option -md: not needed: a score makes no drafts"),
        (
            ["perplexity", "x.gguf", "--kl-divergence-base", "y"],
            "--save-logits writes the file, and --against reads it",
        ),
        (["inspect", "x.gguf", "--device", "cuda"], "unknown option --device: 'trigraph doctor --device' says whether"),
        (["serve", "--config", "{tmp}/old.toml"], "unknown option 'max-model-len': use --ctx-size"),
        (["export", "x.gguf", "-r", "y"], "unknown option -r: 'trigraph export --help' lists all"),
        (["run", "{tiny}", "-p", "a", "-c", "99999"], "; YaRN extends it: rope_scaling=yarn:49"),
        (["run", "{package}", "-p", "a", "-c", "1k"], "1 to 512 tokens; export it with a larger max_context"),
        (["run", "{tiny}", "-p", "a", "-c", "4q"], "'4q' is not a number of tokens, such as 4096 or 32k"),
    ],
    ids=lambda value: " ".join(value)[:50] if isinstance(value, list) else "",
)
def test_hints(
    trigraph: Run, tiny_gguf: Path, short_package: Path, tmp_path: Path, arguments: list[str], text: str
) -> None:
    (tmp_path / "old.toml").write_text("max-model-len = 4096")
    paths = dict(tmp=tmp_path, tiny=tiny_gguf, package=short_package)
    result = trigraph(*(argument.format(**paths) for argument in arguments), terminal=True)
    assert_one_line_error(result, text)


def test_contexts(trigraph: Run, tiny_gguf: Path, operator_library: Path) -> None:
    """0 is all of the model's; k stands for 1024."""
    for options, context in (([], 2048), (["-c", "0"], 2048), (["-c", "1k"], 1024), (["-c", "100"], 100)):
        result = trigraph("run", tiny_gguf, "-p", "a", "-n", 1, "-v", *options)
        assert result.status == 0 and f"context {context}," in result.err, result.err


def test_a_context_that_memory_bounds(
    trigraph: Run, tiny_gguf: Path, operator_library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is said, unless it was asked for."""
    monkeypatch.setattr(Device, "free_memory", lambda self: 1)
    command = ["run", tiny_gguf, "--rope-scaling", "yarn:49", "-p", "a", "-n", 1, "-v"]
    said = "note: context 32,768 of 100,352: what memory allows; context=0 asks for all"
    for options, context in (([], 32768), (["-c", "0"], 100352), (["-c", "40k"], 40960)):
        result = trigraph(*command, *options)
        assert result.status == 0 and f"context {context}," in result.err, result.err
        assert (said in result.err) == (not options)


def test_a_library_folder_that_is_wrong(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRIGRAPH_LIBRARY_DIR", str(tmp_path))
    with pytest.raises(TrigraphError, match=r"TRIGRAPH_LIBRARY_DIR is .*name the folder that has it, or unset"):
        library_path("cpu")


def test_a_session_file_of_another_kind_is_not_to_be_removed(
    trigraph: Run, tiny_package: Path, tiny_gguf: Path, operator_library: Path
) -> None:
    result = trigraph("run", tiny_package, "-p", "a", "--prompt-cache", tiny_gguf)
    assert_one_line_error(result, "is not a session file; name a new file, or one that was saved as such")
    assert "remove" not in result.err


def test_a_score_of_one_token_has_no_error(trigraph: Run, tiny_gguf: Path, operator_library: Path) -> None:
    for form in ([], ["--json"]):
        result = trigraph("perplexity", tiny_gguf, "-f", "-", "-c", 3, "--chunks", 1, *form, stdin=b"In the beginning")
        assert result.status == 0 and "nan" not in result.out.lower(), result
