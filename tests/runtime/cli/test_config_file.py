"""Options from a TOML file: what each model of a server gets, and messages that name file and line."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trigraph.models.errors import TrigraphError
from trigraph.runtime import Options
from trigraph.runtime.cli.app import main
from trigraph.runtime.cli.arguments import ModelArguments
from trigraph.runtime.cli.config_file import ConfigFile
from trigraph.runtime.cli.sampling_arguments import SamplingArguments
from trigraph.runtime.cli.serve_models import ModelsArguments, Opening, Served
from trigraph.runtime.cli.template_arguments import TemplateArguments
from trigraph.runtime.sampling.sampling import Sampling
from trigraph.runtime.server.settings import Settings

TWO = """\
[models.calm]
model = "tiny"
temp = 0
seed = 7
think = false
reasoning-budget = 100
chat-template-kwargs = { preserve_thinking = true }

[models."wild one"]  # a comment
model = "tiny"
temperature = 1.5
logit-bias = ["5+1.5"]
chat-template-file = "{template}"
"""


@pytest.fixture
def served(tmp_path: Path) -> dict[str, Served]:
    (tmp_path / "t.jinja").write_text("{{ messages[0].content }}!")
    file = tmp_path / "server.toml"
    file.write_text(TWO.replace("{template}", str(tmp_path / "t.jinja")))
    base = Served(ModelArguments(context=4096), SamplingArguments(temperature=0.5, top_k=3), TemplateArguments())
    return ModelsArguments(config=file).of(base)


def test_each_model_has_its_sampling_and_template(served: dict[str, Served]) -> None:
    calm, wild = served["calm"], served["wild one"]
    assert (calm.sampling.temperature, calm.sampling.top_k, calm.model.context) == (0, 3, 4096)
    assert (wild.sampling.temperature, wild.sampling.seed) == (1.5, -1)
    assert calm.template.variables() == {"preserve_thinking": True, "enable_thinking": False}
    assert wild.sampling.sampling().logit_bias == ((5, 1.5),)


def test_the_settings_of_a_model_are_its_own(served: dict[str, Served]) -> None:
    template: Any = SimpleNamespace(notice=None, efforts=(), with_source=lambda text: SimpleNamespace(
        notice=None, efforts=(), text=text))  # fmt: skip
    engine: Any = SimpleNamespace(sampling=Sampling(), chat_template=lambda: template)
    opening = Opening(Settings(defaults=Options(max_tokens=9)), None, True, False)
    calm, wild = (opening.settings_of(name, engine, one) for name, one in served.items())
    assert (calm.seed, wild.seed) == (7, None)
    assert (calm.defaults.chosen_by.temperature, wild.defaults.chosen_by.temperature) == (0, 1.5)
    assert (calm.defaults.reasoning_budget, wild.defaults.reasoning_budget) == (100, None)
    assert calm.defaults.max_tokens == wild.defaults.max_tokens == 9
    assert calm.template_variables == {"preserve_thinking": True, "enable_thinking": False}
    assert calm.template is template and getattr(wild.template, "text", "") == "{{ messages[0].content }}!"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('\nport = "abc"', "F:2: port is 'abc'; write a whole number"),
        ("config = 'other.toml'", "F:1: unknown option 'config'"),
        ("[server]\nport = 1", "unknown table [server]: options are outside tables, models in [models.NAME]"),
        ("model = 'tiny'", "--model 'tiny': write NAME=MODEL.gguf, in a file a table [models.NAME]"),
        ("cors-origin = 'x'", "error: "),
        ("\n\nprot = 3", "F:3: unknown option 'prot': did you mean port?"),
        ("port = ", "F:1: is not TOML: Invalid value"),
        ("[models]\nx = 3", "F: models must be tables"),
        ("[models.x]\n", "F:1: [models.x]: model is missing"),
        ("[models.x]\nmodel = 3", "F:2: [models.x]: model is 3; it must be a path"),
        ("temp = 1\n[models.x]\nmodel = 'tiny'\n[models.y]\nmodel = 'tiny'\ntemp = 'warm'", "F:6: [models.y]: temp is"),
        ("[models.x]\nmodel = 'tiny'\n'ctx-size' = '4x'", "F:3: [models.x]: '4x' is not a number of tokens"),
        ("[models.x]\nmodel = 'tiny'\ntop-q = 1", "F:3: [models.x]: unknown option 'top-q': did you mean top-p?"),
        ("[models.x]\nmodel = 'tiny'\nport = 1", "F:3: [models.x]: unknown option 'port': a model has"),
        ("[models.x]\nmodel = 'tiny'\ntop-p = 3", "F:1: [models.x]: top_p is 3.0; it must be"),
        ("[models.x]\nmodel = 'tiny'\nchat-template-file = 'none'", "F:1: [models.x]: none: cannot be read"),
        ("[models.x]\nmodel = 'tiny'\nstop = 1", "F:3: [models.x]: unknown option 'stop'"),
        (
            "[models.x]\nmodel = 'tiny'\nlogit-bias = 1",
            "F:3: [models.x]: logit-bias is 1; it must be a list of strings",
        ),
    ],
)
def test_a_message_names_file_and_line(
    text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "server.toml"
    file.write_text(text)
    monkeypatch.setattr("sys.argv", ["trigraph", "serve", "--config", str(file)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert message.replace("F:", f"{file}:", 1) in capsys.readouterr().err


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(TrigraphError, match=r"nothing\.toml: cannot be read: No such file"):
        ConfigFile.read(tmp_path / "nothing.toml")
    (tmp_path / "latin.toml").write_bytes(b'host = "\xff"')
    with pytest.raises(TrigraphError, match=r"latin\.toml: is not TOML"):
        ConfigFile.read(tmp_path / "latin.toml")
