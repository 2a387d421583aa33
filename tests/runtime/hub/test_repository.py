"""Which files of a repository a name means."""

from __future__ import annotations

import pytest

from trigraph.models.errors import TrigraphError
from trigraph.runtime.hub.repository import ModelName, choose_drafter, choose_files, is_name

UNSLOTH = [
    "README.md",
    "imatrix_unsloth.gguf",
    "Qwen3.6-35B-A3B-Q4_K_M.gguf",
    "Qwen3.6-35B-A3B-UD-Q4_K_XL.gguf",
    "Qwen3.6-35B-A3B-UD-Q4_K_M.gguf",
    "Qwen3.6-35B-A3B-UD-IQ1_M.gguf",
    "BF16/Qwen3.6-35B-A3B-BF16-00001-of-00002.gguf",
    "BF16/Qwen3.6-35B-A3B-BF16-00002-of-00002.gguf",
    "mmproj-BF16.gguf",
    "mmproj-F16.gguf",
    "mtp-Qwen3.6-35B-A3B-Q8_0.gguf",
    "mtp-Qwen3.6-35B-A3B-BF16.gguf",
]


@pytest.mark.parametrize(
    ("text", "repository", "quant"),
    [
        ("a/b-GGUF", "a/b-GGUF", None),
        ("a/b-GGUF:Q4_K_M", "a/b-GGUF", "Q4_K_M"),
        ("hf.co/a/b:IQ4_XS", "a/b", "IQ4_XS"),
        ("https://huggingface.co/a/b", "a/b", None),
        ("hf://a/b", "a/b", None),
        ("https://huggingface.co/a/b/tree/main", "a/b", None),
        ("https://huggingface.co/a/b/tree/main/BF16", "a/b", None),
        ("https://huggingface.co/a/b/blob/main/b-Q4_K_M.gguf", "a/b", "b-Q4_K_M.gguf"),
        ("huggingface.co/a/b/resolve/main/BF16/b-BF16.gguf?download=true", "a/b", "b-BF16.gguf"),
        ("https://hf.co/a/b/blob/main/b.gguf#L3", "a/b", "b.gguf"),
    ],
)
def test_names(text: str, repository: str, quant: str | None) -> None:
    assert is_name(text) and ModelName.parse(text) == ModelName(repository, quant)


@pytest.mark.parametrize("text", ["model", "a/b.gguf", "/a/b", "./a/b", "a/b/c", "../a", "a b/c", "https://x.org/a/b"])
def test_what_is_no_name(text: str) -> None:
    assert not is_name(text)
    with (
        pytest.raises(TrigraphError, match=r"USER/REPO:QUANT") if "gguf" not in text else pytest.raises(AssertionError)
    ):
        ModelName.parse(text)
        raise AssertionError


def test_a_name_of_ollama() -> None:
    assert is_name("qwen3.5:4b")
    with pytest.raises(TrigraphError, match=r"Ollama.* such as unsloth/Qwen3\.5-4B-GGUF:Q4_K_M"):
        ModelName.parse("qwen3.5:4b")


@pytest.mark.parametrize(
    ("quant", "model", "head"),
    [
        (None, "Qwen3.6-35B-A3B-Q4_K_M.gguf", "mtp-Qwen3.6-35B-A3B-Q8_0.gguf"),
        ("Q4_K_M", "Qwen3.6-35B-A3B-Q4_K_M.gguf", "mtp-Qwen3.6-35B-A3B-Q8_0.gguf"),
        ("q4_k_m", "Qwen3.6-35B-A3B-Q4_K_M.gguf", "mtp-Qwen3.6-35B-A3B-Q8_0.gguf"),
        ("UD-Q4_K_M", "Qwen3.6-35B-A3B-UD-Q4_K_M.gguf", "mtp-Qwen3.6-35B-A3B-Q8_0.gguf"),
        ("IQ1_M", "Qwen3.6-35B-A3B-UD-IQ1_M.gguf", "mtp-Qwen3.6-35B-A3B-Q8_0.gguf"),
        ("Qwen3.6-35B-A3B-UD-Q4_K_XL.gguf", "Qwen3.6-35B-A3B-UD-Q4_K_XL.gguf", "mtp-Qwen3.6-35B-A3B-Q8_0.gguf"),
        ("BF16", "BF16/Qwen3.6-35B-A3B-BF16-00001-of-00002.gguf", "mtp-Qwen3.6-35B-A3B-BF16.gguf"),
    ],
)
def test_the_files_of_a_quantisation(quant: str | None, model: str, head: str) -> None:
    files = choose_files(ModelName("a/b", quant), UNSLOTH)
    assert (files.parts[0], files.mtp, files.projector) == (model, head, "mmproj-F16.gguf")
    assert len(files.parts) == (2 if quant == "BF16" else 1)


@pytest.mark.parametrize(
    ("quant", "files", "message"),
    [
        ("Q5_K_M", UNSLOTH, r"no Q5_K_M; it has BF16, Q4_K_M, UD-IQ1_M, UD-Q4_K_M, UD-Q4_K_XL"),
        (None, ["model.safetensors"], r"a/b: has no GGUF files; .* such as unsloth/b-GGUF"),
        (None, ["b-Q2_K.gguf", "b-Q6_K.gguf"], r"name one of Q2_K, Q6_K, such as a/b:Q2_K"),
        (None, ["mmproj-F16.gguf"], "no model file"),
    ],
)
def test_what_does_not_fit(quant: str | None, files: list[str], message: str) -> None:
    with pytest.raises(TrigraphError, match=message):
        choose_files(ModelName("a/b", quant), files)


@pytest.mark.parametrize(
    ("files", "chosen"),
    [
        (["b-Q8_0.gguf", "b-Q4_K_M.gguf"], "b-Q4_K_M.gguf"),
        (["b-Q8_0.gguf", "b-UD-Q4_K_M.gguf", "b-UD-Q4_K_XL.gguf"], "b-UD-Q4_K_M.gguf"),
        (["b.Q8_0.gguf", "b.Q4_0.gguf"], "b.Q4_0.gguf"),
        (["b-Q6_K.gguf", "b-Q8_0.gguf"], "b-Q8_0.gguf"),
    ],
)
def test_the_quantisation_where_none_is_named(files: list[str], chosen: str) -> None:
    assert choose_files(ModelName("a/b"), files).parts == (chosen,)


def test_files_that_are_no_models() -> None:
    beside = ["dflash-b-Q8_0.gguf", "dspark-b-Q4_K_M.gguf", "b.mmproj-f16.gguf", "imatrix.gguf"]
    found = choose_files(ModelName("a/b"), ["b-Q2_K.gguf", *beside])
    assert found.all == ("b-Q2_K.gguf", "b.mmproj-f16.gguf")


DRAFTED = ["b-Q4_K_M.gguf", "dflash-b-BF16.gguf", "dflash-b-Q4_K_M.gguf", "dflash-b-Q8_0.gguf", "dspark-b-F16.gguf"]


@pytest.mark.parametrize(
    ("quant", "kind", "chosen"),
    [
        ("Q4_K_M", "dflash", "dflash-b-Q4_K_M.gguf"),
        ("Q2_K", "dflash", "dflash-b-Q8_0.gguf"),
        (None, "dflash", "dflash-b-Q8_0.gguf"),
        ("Q4_K_M", "dspark", "dspark-b-F16.gguf"),
        ("dflash-b-BF16.gguf", None, "dflash-b-BF16.gguf"),
        ("F16", None, "dspark-b-F16.gguf"),
        ("Q4_K_M", None, "dflash-b-Q4_K_M.gguf"),  # not the model of gigabytes
        (None, None, "dflash-b-Q4_K_M.gguf"),
    ],
)
def test_drafters(quant: str | None, kind: str | None, chosen: str) -> None:
    assert choose_drafter(ModelName("a/b", quant), DRAFTED, kind).all == (chosen,)


@pytest.mark.parametrize(
    ("quant", "kind", "message"),
    [
        (None, "dspark", r"a/b: has no dspark-\*.gguf; give the file or the repository of a drafter"),
        ("Q5_K_M", None, "a/b:Q5_K_M: the repository has no Q5_K_M; it has BF16, Q4_K_M, Q8_0"),
    ],
)
def test_drafters_that_are_not_there(quant: str | None, kind: str | None, message: str) -> None:
    with pytest.raises(TrigraphError, match=message):
        choose_drafter(ModelName("a/b", quant), DRAFTED[:4], kind)


def test_the_only_model() -> None:
    assert choose_files(ModelName("a/b"), ["odd.gguf", "config.json"]).all == ("odd.gguf",)
