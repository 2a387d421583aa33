"""Several models of a server: what each is loaded with, and how much memory it takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer

from trigraph.exporter.package.reader import is_package, read_manifest
from trigraph.models.errors import TrigraphError, quote
from trigraph.models.gguf_file import GGUFFile
from trigraph.runtime.cli.arguments import ModelArguments, parse_bytes, read_text
from trigraph.runtime.cli.config_file import ConfigFile
from trigraph.runtime.cli.console import say
from trigraph.runtime.cli.opening import open_engine
from trigraph.runtime.cli.sampling_arguments import SamplingArguments
from trigraph.runtime.cli.template_arguments import TemplateArguments
from trigraph.runtime.device.memory import free_memory
from trigraph.runtime.drafting.acceptance import Acceptance
from trigraph.runtime.text.efforts import efforts_note

if TYPE_CHECKING:
    from trigraph.runtime.engine.engine import Engine
    from trigraph.runtime.server.app import App
    from trigraph.runtime.server.backend import Backend
    from trigraph.runtime.server.settings import Settings


@dataclass(frozen=True)
class Served:
    """A model of the server, and what its requests get that say nothing else."""

    model: ModelArguments
    sampling: SamplingArguments
    template: TemplateArguments

    def checked(self, where: str = "") -> Served:
        """This model with a path. Raises TrigraphError for values out of range and a template that cannot be read."""
        try:
            self.sampling.sampling()
            self.template.variables()
            if self.template.template_file is not None:
                read_text(self.template.template_file)
            return replace(self, model=self.model.found())
        except TrigraphError as error:
            raise TrigraphError(f"{where}: {error}" if where else str(error)) from error


@dataclass(frozen=True)
class ModelsArguments:
    """Several models in one server, and options from a file."""

    panel: ClassVar = "Several models"
    common: ClassVar = ("config", "models")

    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Read options from a TOML file; those given here win.")
    ] = None
    models: Annotated[
        list[str] | None,
        typer.Option("--model", metavar="NAME=MODEL", help="A model that requests can choose by name. Repeatable."),
    ] = None
    models_memory: Annotated[
        str | None,
        typer.Option(
            metavar="BYTES",
            help="Memory for loaded models; the least recently used one makes room for another (default: what is free)",
        ),
    ] = None
    idle_minutes: Annotated[
        float | None, typer.Option(min=0, help="Unload a model that nobody has used for so long (default: never)")
    ] = None

    def of(self, base: Served) -> dict[str, Served]:
        """The models by name, with the options of `base` where they have none of their own; empty for one model alone.

        Raises TrigraphError for a text that does not name one, and for a name that is given twice.
        """
        served = {}
        if self.config is not None:
            config = ConfigFile.read(self.config)
            tables = config.models(base.model, base.sampling, base.template)
            served = {name: Served(*groups).checked(config.place(model=name)) for name, groups in tables.items()}
        for text in self.models or ():
            name, given, model = text.partition("=")
            if not (given and name and model):
                raise TrigraphError(
                    f"--model {quote(text)}: write NAME=MODEL.gguf, in a file a table [models.NAME]; a single "
                    "model is given without an option"
                )
            if name in served:
                raise TrigraphError(f"--model {quote(text)}: there is a model of that name already")
            served[name] = replace(base, model=replace(base.model, model=Path(model), hub=None)).checked()
        if not served and (self.idle_minutes is not None or self.models_memory is not None):
            option = "--idle-minutes" if self.idle_minutes is not None else "--models-memory"
            raise TrigraphError(f"{option} is for models that are loaded when they are asked for: --model NAME=MODEL")
        if served and (one := base.model.model or base.model.hub) is not None:
            raise TrigraphError(f"{one}: give this model a name as well: --model NAME={one}")
        return served

    @property
    def budget(self) -> int | None:
        """Bytes that loaded models may take."""
        return parse_bytes("--models-memory", self.models_memory) or free_memory()


def weight_bytes(path: Path, drafter: Path | None = None) -> int:
    """The size of a model's weights, and of its drafter's, of which nothing is read but headers.

    Raises TrigraphError for no model.
    """
    if is_package(path):
        return sum(file.bytes for file in read_manifest(path).weight_files)
    files = (path,) if drafter is None else (path, drafter)
    return sum(part.stat().st_size for file in files for part in GGUFFile.open(file).paths)


@dataclass(frozen=True)
class Opening:
    """How the models of a server are opened."""

    settings: Settings
    sequences: int | None
    speculation: bool
    verbose: bool

    def only(self, name: str, served: Served) -> tuple[Engine, Settings]:
        """The only model of a server. Raises TrigraphError for defaults that it would refuse to every request."""
        engine, settings = self.open(name, served)
        engine.model.draft_length(settings.defaults, Acceptance(1))
        return engine, settings

    def open(self, name: str, served: Served, share: float = 1.0) -> tuple[Engine, Settings]:
        """An engine, and its settings. `share`: the part of free memory that it may take."""
        engine = open_engine(
            served.model, speculation=self.speculation, verbose=self.verbose, sequences=self.sequences, share=share
        )
        return engine, self.settings_of(name, engine, served)

    def settings_of(self, name: str, engine: Backend, served: Served) -> Settings:
        """The settings of the model that clients know by `name`."""
        sampling, budget = served.sampling.sampling(engine.sampling), served.template.reasoning_budget
        template = served.template.template_of(engine)
        for note in (template.notice, efforts_note(template.efforts)):
            if note is not None:
                say(f"note: {note}")
        return replace(
            self.settings,
            model=name,
            path=str(served.model.path),
            defaults=replace(self.settings.defaults, sampling=sampling, reasoning_budget=budget),
            template=template,
            template_variables=served.template.variables(),
            seed=None if served.sampling.seed == -1 else served.sampling.seed,
        )

    def several(self, models: Mapping[str, Served], limits: ModelsArguments) -> App:
        """Several models, none of which is loaded yet. Raises TrigraphError for what is no model."""
        from trigraph.runtime.server.app import App, Entry

        share = 1 / len(models)
        entries = {
            name: Entry(
                weight_bytes(served.model.path, served.model.draft_model), partial(self.open, name, served, share)
            )
            for name, served in models.items()
        }
        idle = None if limits.idle_minutes is None else 60 * limits.idle_minutes
        return App(self.settings, entries, limits.budget, idle)
