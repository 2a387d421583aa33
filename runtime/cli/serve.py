"""The command `trigraph serve`: the model behind HTTP, for programs and for a page in the browser."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from trigraph.exporter import ExportOptions
from trigraph.models.errors import TrigraphError, quote
from trigraph.runtime.cli.arguments import (
    EndArguments,
    ModelArguments,
    SpeculationArguments,
    read_text,
)
from trigraph.runtime.cli.command import examples, grouped
from trigraph.runtime.cli.console import say
from trigraph.runtime.cli.naming import public_name
from trigraph.runtime.cli.opening import load_arguments
from trigraph.runtime.cli.receipt_arguments import signer_of
from trigraph.runtime.cli.request_options import request_options
from trigraph.runtime.cli.sampling_arguments import SamplingArguments
from trigraph.runtime.cli.serve_models import ModelsArguments, Opening, Served
from trigraph.runtime.cli.template_arguments import TemplateArguments
from trigraph.runtime.device.heap import share_heap
from trigraph.runtime.text.efforts import EFFORTS

if TYPE_CHECKING:
    from trigraph.runtime.server.backend import Backend

_KEY_VARIABLE = "TRIGRAPH_API_KEY"


@dataclass(frozen=True)
class ServerArguments:
    """Address, access and limits of the server."""

    panel: ClassVar = "Server"
    common: ClassVar = ("host", "port", "api_key", "alias", "max_sequences")

    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 serves other machines as well.")] = (
        "127.0.0.1"
    )
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0: any free port.")] = 8080
    api_key: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY", help=f"API key that requests must send (default: ${_KEY_VARIABLE}). Repeatable."),
    ] = None
    api_key_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="File with API keys, one per line; lines that start with # are comments."),
    ] = None
    alias: Annotated[
        str | None,
        typer.Option(
            "-a",
            "--alias",
            help="Model name shown to clients (default: the file name); further names of it follow after commas.",
        ),
    ] = None
    max_sequences: Annotated[
        int | None, typer.Option("-np", "--max-sequences", help="Maximum requests computed at once (default: 8)")
    ] = None
    cors_origin: Annotated[
        list[str] | None,
        typer.Option(
            metavar="URL", help="Allowed CORS origin: https://example.org, 'http://localhost:*', 'app://*'. Repeatable."
        ),
    ] = None
    drain_seconds: Annotated[
        float, typer.Option(min=0, help="Graceful shutdown timeout after SIGTERM, in seconds.")
    ] = 30.0
    receipt_key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Sign receipts with this Ed25519 private key, in PEM.")
    ] = None

    def names(self) -> tuple[str, ...]:
        """The model's names to clients, if any are given."""
        return tuple(name for text in (self.alias or "").split(",") if (name := text.strip()))

    def keys(self) -> tuple[str, ...]:
        """All keys that were given. Raises TrigraphError for one that cannot be sent, and for a file without any."""
        keys = list(self.api_key or ())
        if self.api_key_file is not None:
            lines = map(str.strip, read_text(self.api_key_file).splitlines())
            listed = [line for line in lines if line and not line.startswith("#")]
            if not listed:
                raise TrigraphError(f"--api-key-file {self.api_key_file}: the file has no key; write one a line")
            keys += listed
        elif not keys and (key := os.environ.get(_KEY_VARIABLE)):
            keys = [key]
        if not all(key and key == key.strip() and key.isascii() and key.isprintable() for key in keys):
            raise TrigraphError(
                f"a key of --api-key, --api-key-file or {_KEY_VARIABLE} is empty, or has characters that HTTP cannot "
                "carry; use ASCII without spaces at its ends"
            )
        return tuple(keys)


@dataclass(frozen=True)
class DefaultArguments(EndArguments):
    """Defaults of request fields."""

    panel: ClassVar = "Defaults of requests"
    common: ClassVar = ("max_tokens",)

    effort_map: Annotated[
        str | None,
        typer.Option(
            "--reasoning-effort-map",
            metavar="NAME=EFFORT,...",
            help="Reasoning efforts in place of those that requests name: high=medium,max=xhigh (default: the nearest "
            "that the chat template takes)",
        ),
    ] = None

    def efforts(self) -> dict[str, str]:
        """The effort map. Raises TrigraphError for what is none."""
        pairs = [pair.partition("=") for pair in (self.effort_map or "").split(",") if pair]
        for name, _, effort in pairs:
            if not name or effort not in EFFORTS:
                raise TrigraphError(
                    f"--reasoning-effort-map is {quote(self.effort_map)}; write NAME=EFFORT pairs with commas between "
                    f"them, where EFFORT is one of {', '.join(EFFORTS)}"
                )
        return {name: effort for name, _, effort in pairs}


@dataclass(frozen=True)
class ReplicaArguments:
    """Engines on a Ray cluster, in place of one in this process."""

    panel: ClassVar = "Replicas"

    replicas: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Engines to deploy on a Ray cluster (default: one engine in this process)"
        ),
    ] = None
    max_replicas: Annotated[int | None, typer.Option(min=1, metavar="N", help="Maximum replicas when autoscaling.")] = (
        None
    )
    ray_address: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Address of a Ray cluster, or auto; without --replicas, its running engines are used (default: a "
            "cluster on this machine that ends with the server)",
        ),
    ] = None

    @property
    def wanted(self) -> bool:
        """Whether engines on a cluster were asked for."""
        return self.replicas is not None or self.ray_address is not None

    def engines(self, model: Path, name: str, arguments: Mapping[str, object]) -> Backend:
        """Deploys or finds the engines of the model that clients know by `name`, and waits for them."""
        try:
            from trigraph.runtime.server.cluster.deployment import Deployed, engines_on
        except ImportError as error:
            raise TrigraphError(f"replicas need {error.name}: pip install 'ray[serve]'") from error
        deployed = None
        if self.replicas is not None:
            # What belongs to a file lies beside its name, not beside what a link of that name leads to.
            place = model.resolve() if model.is_dir() else model.parent.resolve() / model.name
            whole = {option: _whole(value) for option, value in arguments.items()}
            deployed = Deployed(str(place), self.replicas, self.max_replicas, whole)
        return engines_on(self.ray_address, name, deployed)


def _whole(value: Any) -> Any:
    """An argument of `load` for an engine that runs in another folder: its paths are whole ones."""
    if isinstance(value, ExportOptions):
        return replace(value, **{name: _whole(choice) for name, choice in vars(value).items()})
    return value.absolute() if isinstance(value, Path) else value


@dataclass(frozen=True)
class LogArguments:
    """Messages on stderr."""

    panel: ClassVar = "Log"

    verbose: Annotated[
        bool, typer.Option("-v", "--verbose", help="Report what was loaded, and a line for each request.")
    ] = False
    log_prompts: Annotated[bool, typer.Option("--log-prompts", help="Also log the text of prompts.")] = False


@examples(
    "trigraph serve MODEL.gguf --port 8080",
    "trigraph serve -hf unsloth/Qwen3.6-35B-A3B-MTP-GGUF:UD-Q4_K_XL --ctx-size 32k --max-sequences 8",
    "trigraph serve --model small=SMALL.gguf --model large=LARGE.gguf --idle-minutes 10",
    "trigraph serve --config SERVER.toml",
)
@grouped
def serve(
    model: ModelArguments,
    server: ServerArguments,
    defaults: DefaultArguments,
    sampling: SamplingArguments,
    template: TemplateArguments,
    speculation: SpeculationArguments,
    models: ModelsArguments,
    replicas: ReplicaArguments,
    log: LogArguments,
) -> None:
    """Serve a model over HTTP: the APIs of OpenAI and Anthropic, and a chat in the browser.

    Sampling, output and template options are defaults that each request may override.
    """
    try:
        from trigraph.runtime.server.app import App, ServedModel
        from trigraph.runtime.server.serving import bind, serve
        from trigraph.runtime.server.settings import Settings
    except ImportError as error:
        raise TrigraphError(f"the server needs {error.name}: pip install fastapi uvicorn prometheus-client") from error
    one = Served(model, sampling, template)
    if (several := models.of(one)) and replicas.wanted:
        raise TrigraphError("replicas serve one model; leave --model out, or --replicas and --ray-address")
    if several and server.alias is not None:
        raise TrigraphError("--alias is for one model; with several, --model NAME=MODEL says what clients call each")
    if not several:
        one = one.checked()
    first, *others = [*several][:1] or server.names() or [public_name(model.model, one.model.path)]
    settings = Settings(
        model=first,
        aliases=tuple(others),
        defaults=request_options(defaults, sampling, template, speculation),
        effort_map=defaults.efforts(),
        host=server.host,
        port=server.port,
        api_keys=server.keys(),
        cors_origins=tuple(server.cors_origin or ()),
        drain_seconds=server.drain_seconds,
        signer=signer_of(server.receipt_key),
        log_prompts=log.log_prompts,
        verbose=log.verbose or log.log_prompts,
    )
    listener = bind(settings)
    share_heap()
    settings = replace(settings, port=listener.getsockname()[1])
    opening = Opening(settings, server.max_sequences, speculation.spec, log.verbose)
    if several:
        app = opening.several(several, models)
    elif replicas.wanted:
        loading = load_arguments(one.model, speculation=speculation.spec, sequences=server.max_sequences)
        engine = replicas.engines(one.model.path, first, loading)
        app = App.of(ServedModel(engine, opening.settings_of(first, engine, one)))
    else:
        app = App.of(ServedModel(*opening.only(first, one)))
    if not settings.local and not settings.api_keys:
        say(f"note: anyone who reaches {settings.host} can use this server; --api-key asks for a key")
    listener.listen()
    say(f"{', '.join(several) or settings.model} at {settings.address}; Ctrl-C ends the server")
    serve(app, listener)
