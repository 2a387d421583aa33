"""Option values of the command line."""

import pytest

from trigraph.models.errors import TrigraphError
from trigraph.runtime.cli.arguments import parse_logit_bias


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
