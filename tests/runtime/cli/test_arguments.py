"""Option values of the command line."""

import pytest

from trigraph.models.errors import TrigraphError
from trigraph.runtime.cli.arguments import parse_bytes
from trigraph.runtime.cli.sampling_arguments import parse_logit_bias


@pytest.mark.parametrize(
    ("text", "pair"),
    [("15043+1", (15043, 1.0)), ("0-2.5", (0, -2.5)), ("7-inf", (7, -float("inf"))), ("12+.5", (12, 0.5))],
)
def test_logit_biases_are_written_as_in_llama_cpp(text: str, pair: tuple[int, float]) -> None:
    assert parse_logit_bias(text) == pair


@pytest.mark.parametrize("text", ["", "5", "5+", "+5", "-5+1", "5=1", "a+1", "5+nan", "5+1x", "5+1e400", " 5+1", "٥+1"])
def test_other_writings_are_refused(text: str) -> None:
    with pytest.raises(TrigraphError, match="write ID"):
        parse_logit_bias(text)


@pytest.mark.parametrize(
    ("text", "size"), [("1", 1), ("4G", 4 << 30), ("800m", 800 << 20), ("1.5K", 1536), ("2T", 2 << 40)]
)
def test_sizes(text: str, size: int) -> None:
    assert parse_bytes("--kv-memory", text) == size


@pytest.mark.parametrize("text", ["", "0", "0.1", "-1", "G", "4GB", "4 G", "1e9", "nan", "٥G", "9" * 99])
def test_other_sizes_are_refused(text: str) -> None:
    with pytest.raises(TrigraphError, match=r"--kv-memory .* such as 800M or 4G"):
        parse_bytes("--kv-memory", text)
