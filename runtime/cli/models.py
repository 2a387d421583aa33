"""The command `trigraph models`: what was downloaded and exported, and how it is removed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from trigraph.models.errors import TrigraphError, quote
from trigraph.runtime.cli.arguments import AsJson
from trigraph.runtime.cli.command import examples
from trigraph.runtime.cli.naming import given_model
from trigraph.runtime.engine.package_cache import ExportedModel, exported_models, sweep
from trigraph.runtime.hub.ollama import PREFIX, stored
from trigraph.runtime.hub.repository import ModelName, is_name


@examples(
    "trigraph models",
    "trigraph models pull unsloth/Qwen3.6-35B-A3B-MTP-GGUF:UD-Q4_K_XL",
    "trigraph models rm unsloth/Qwen3.6-35B-A3B-MTP-GGUF:UD-Q4_K_XL",
    "trigraph models rm MODEL.gguf",
)
def models(
    action: Annotated[
        str | None,
        typer.Argument(metavar="ACTION", help="pull downloads a model, rm removes it; by default all are listed."),
    ] = None,
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="USER/REPO, USER/REPO:QUANT, or a file whose export is to be removed."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the models that were downloaded, pulled by Ollama, or exported, with their sizes; download or remove one."""
    sweep()
    if action in (None, "list", "ls") and name is None:
        _list(as_json=as_json)
        return
    if action not in ("pull", "rm") or name is None:
        raise TrigraphError(
            f"models {quote(action)}: write 'trigraph models', or 'models pull NAME', or 'models rm NAME'"
        )
    if action == "pull":
        print(given_model(None, name).path)
        return
    if name.startswith(PREFIX):
        raise TrigraphError(f"{name}: belongs to Ollama; run 'ollama rm {name.removeprefix(PREFIX)}'")
    freed = _remove(name)
    if freed is None:
        raise TrigraphError(f"{name}: is not there; 'trigraph models' lists what is")
    print(f"{name}: removed {_size(freed)}")


def _list(*, as_json: bool) -> None:
    downloaded, begun, names = _downloads()
    pulled, exported = stored(), exported_models()
    if as_json:
        exports = [{"file": str(one.sources[0]), "folder": str(one.folder), "bytes": one.bytes} for one in exported]
        of_ollama = [
            {"name": f"{PREFIX}{name}", "file": str(one.path), "bytes": one.bytes} for name, one in pulled.items()
        ]
        print(json.dumps({"downloaded": downloaded, "begun": begun, "ollama": of_ollama, "exported": exports}))
        return
    rows = [(f"{repository}  {file}", size) for repository, files in downloaded.items() for file, size in files.items()]
    _print("Downloaded", rows)
    if begun:
        _print("Downloaded in part; the same command goes on with it", [*begun.items()])
    if pulled:
        _print("Pulled by Ollama", [(f"{PREFIX}{name}", one.bytes) for name, one in pulled.items()])
    names |= {one.path: f"{PREFIX}{name}" for name, one in pulled.items()}
    rows = [(names.get(one.sources[0], str(one.sources[0])), one.bytes) for one in exported]
    _print("Exported; made again when needed", rows)


def _print(title: str, rows: list[tuple[str, int]]) -> None:
    print(f"{title}: {_size(sum(size for _, size in rows))}")
    for text, size in rows:
        print(f"  {_size(size):>9}  {text}")


def _downloads() -> tuple[dict[str, dict[str, int]], dict[str, int], dict[Path, str]]:
    """Files of each repository, what was downloaded in part, and names of files; none without `huggingface_hub`."""
    from trigraph.runtime.hub.stored import begun_downloads, names_of_files, stored_models

    try:
        return stored_models(), begun_downloads(), names_of_files()
    except TrigraphError:
        return {}, {}, {}


def _remove(name: str) -> int | None:
    """Removes what `name` is; the bytes that are free then, None where there is nothing of that name."""
    packages: list[ExportedModel] = []
    freed = None
    if is_name(name):
        from trigraph.runtime.hub.stored import remove

        freed = remove(ModelName.parse(name))
        packages = [one for one in exported_models() if one.is_orphan]
    else:
        packages = [one for one in exported_models() if Path(name).resolve() in one.sources]
    for exported in packages:
        freed = (freed or 0) + exported.bytes
        exported.remove()
    return freed


def _size(count: int) -> str:
    for unit, scale in (("GB", 1e9), ("MB", 1e6)):
        if count >= scale:
            return f"{count / scale:.1f} {unit}"
    return f"{count / 1e3:.0f} kB"
