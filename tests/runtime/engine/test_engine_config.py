"""How engines are configured."""

from pathlib import Path

import pytest

from trigraph.models.errors import TrigraphError
from trigraph.runtime import EngineConfig, load


def test_a_configuration_and_settings_beside_it(tiny_package: Path, operator_library: Path) -> None:
    config = EngineConfig(context=64, threads=1, speculation=False)
    with load(tiny_package, config, context=128) as engine:
        assert engine.context == 128
        assert engine.model.speculation == "off as asked"
        assert len(repr(engine)) < 100
        assert "context=128" in repr(engine)
    assert config.context == 64


def test_settings_that_do_not_exist(tiny_package: Path) -> None:
    with pytest.raises(TypeError, match="contexts"):
        load(tiny_package, contexts=64)
    with pytest.raises(TrigraphError, match="max_waiting is 0; it must be 1 or more"):
        load(tiny_package, max_waiting=0)
