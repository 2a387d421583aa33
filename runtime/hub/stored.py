"""Models in the cache of `huggingface_hub`: their sizes, and how they are removed."""

from __future__ import annotations

import os
from pathlib import Path

from trigraph.runtime.hub.download import cached_files, hub_module
from trigraph.runtime.hub.repository import ModelName, choose_files


def stored_models() -> dict[str, dict[str, int]]:
    """Bytes of each GGUF file of each repository."""
    return {
        repository: {name: path.stat().st_size for name, path in sorted(files.items()) if path.exists()}
        for repository, files in sorted(cached_files(hub_module()).items())
    }


def remove(name: ModelName) -> int | None:
    """Removes a repository, or one quantisation of it; the bytes that are free then, None where there is none.

    Raises TrigraphError for a quantisation that is not there.
    """
    hub = hub_module()
    if (files := cached_files(hub).get(name.repository)) is None:
        return None
    if name.quant is not None and len(files) > len(parts := choose_files(name, [*files]).parts):
        return sum(_remove(files[part]) for part in parts)
    (repository,) = (one for one in hub.scan_cache_dir().repos if one.repo_id == name.repository)
    strategy = hub.scan_cache_dir().delete_revisions(*(one.commit_hash for one in repository.revisions))
    strategy.execute()
    return int(strategy.expected_freed_size)


def _remove(path: Path) -> int:
    """Removes a file, and what its link leads to; its size."""
    size = path.stat().st_size
    if path.is_symlink():
        (path.parent / os.readlink(path)).unlink(missing_ok=True)
    path.unlink()
    return size
