"""How engines are configured."""

from pathlib import Path

import pytest

from trigraph.models.errors import TrigraphError
from trigraph.runtime import EngineConfig, Options, Sampling, load


def test_a_configuration_and_settings_beside_it(tiny_package: Path, operator_library: Path) -> None:
    config = EngineConfig(context=64, threads=1, speculation=False)
    with load(tiny_package, config, context=128) as engine:
        assert engine.context == 128
        assert engine.model.speculation == "off as asked"
        assert len(repr(engine)) < 100
        assert "context=128" in repr(engine)
    assert config.context == 64


def test_settings_that_do_not_exist(tiny_package: Path) -> None:
    with pytest.raises(TrigraphError, match=r"no keyword .contexts.: did you mean context\?"):
        load(tiny_package, contexts=64)  # type: ignore[call-arg]
    with pytest.raises(TrigraphError, match="max_waiting is 0; it must be 1 or more"):
        load(tiny_package, max_waiting=0)


def test_more_tokens_in_a_verify(tiny_package: Path) -> None:
    """Longer drafts change no text, on graphs that were exported for 8 tokens."""
    texts, longest = [], []
    for max_pending, drafts in ((None, 7), (20, 19)):
        options = Options(Sampling(temperature=0), 60, ignore_eos=True, drafter="ngram", draft_tokens=drafts)
        with load(tiny_package, threads=1, context=160, max_pending=max_pending) as engine:
            request = engine.generate("one two three one two three one two three one", options)
            texts.append(request.run())
            longest.append(max(round.drafted for round in request.rounds))
    assert texts[0] == texts[1]
    assert longest == [7, 19]


@pytest.mark.parametrize("wrong", [7, 257, True, 8.5])
def test_fewer_or_too_many_tokens_in_a_verify(tiny_package: Path, wrong: int) -> None:
    with pytest.raises(TrigraphError, match=f"max_pending is {wrong}; it must be"):
        load(tiny_package, max_pending=wrong)
