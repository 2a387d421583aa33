"""Models in the cache of `huggingface_hub`: their sizes and names, and how they are removed."""

from __future__ import annotations

import os
from pathlib import Path

from trigraph.runtime.hub.download import blobs_folder, cached_files, hub_module
from trigraph.runtime.hub.repository import ModelName, choose_files


def stored_models() -> dict[str, dict[str, int]]:
    """Bytes of each GGUF file of each repository."""
    return {
        repository: {name: path.stat().st_size for name, path in sorted(files.items()) if path.exists()}
        for repository, files in sorted(cached_files(hub_module()).items())
    }


def names_of_files() -> dict[Path, str]:
    """The name of each file in the cache, which is called by its hash."""
    cached = cached_files(hub_module()).items()
    return {path.resolve(): f"{repository}  {name}" for repository, files in cached for name, path in files.items()}


def begun_downloads() -> dict[str, int]:
    """Bytes of what was downloaded in part, of each repository."""
    begun: dict[str, int] = {}
    for part in Path(hub_module().constants.HF_HUB_CACHE).glob("models--*/blobs/*.part"):
        repository = part.parents[1].name.removeprefix("models--").replace("--", "/")
        begun[repository] = begun.get(repository, 0) + part.stat().st_size
    return begun


def remove(name: ModelName) -> int | None:
    """Removes a repository with what was downloaded in part, or one quantisation of it.

    The bytes that are free then; None where there is none. Raises TrigraphError for a quantisation that is not there.
    """
    hub = hub_module()
    files = cached_files(hub).get(name.repository, {})
    if name.quant is not None and len(files) > len(parts := choose_files(name, [*files]).parts):
        return sum(_remove(files[part]) for part in parts)
    begun = [*blobs_folder(hub, name.repository).glob("*.part")]
    if not files and not begun:
        return None
    freed = sum(_remove(part) for part in begun)
    if files:
        cache = hub.scan_cache_dir(hub.constants.HF_HUB_CACHE)
        (repository,) = (one for one in cache.repos if one.repo_id == name.repository)
        strategy = cache.delete_revisions(*(one.commit_hash for one in repository.revisions))
        strategy.execute()
        freed += int(strategy.expected_freed_size)
    return freed


def _remove(path: Path) -> int:
    """Removes a file, and what its link leads to; its size."""
    size = path.stat().st_size
    if path.is_symlink():
        (path.parent / os.readlink(path)).unlink(missing_ok=True)
    path.unlink()
    return size
