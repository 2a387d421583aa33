"""Brings the files of a model into the cache of `huggingface_hub`, from where an earlier try has stopped."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import NamedTuple, TypeAlias
from urllib.parse import urlsplit

from trigraph.models.errors import TrigraphError
from trigraph.models.progress import Progress, silent
from trigraph.runtime.hub.repository import ModelFiles, ModelName, choose_drafter, choose_files

_SHA256 = re.compile(r"[0-9a-f]{64}")
_BLOCK = 1 << 24  # bytes hashed at once
_PIECE = 1 << 20  # bytes written at once: what a broken connection loses at most
_PATIENCE, _PATIENCE_CACHED = 30, 5  # seconds for the hub's first answer, and where its files are there already


@dataclass(frozen=True)
class Downloaded:
    """A model in the cache."""

    path: Path
    """Its first part."""
    mtp: Path | None
    """Its MTP head, if that is a file of its own."""
    notice: str | None = None
    """What the user should know of it."""


_Choose: TypeAlias = Callable[[Sequence[str]], ModelFiles]


class _Obtained(NamedTuple):
    """Files of a repository."""

    files: ModelFiles
    paths: dict[str, Path]
    """Where each is in the cache."""
    notice: str | None = None
    """What the user should know of them."""


def download(name: ModelName, progress: Progress = silent) -> Downloaded:
    """The files of a model, downloaded unless they are there; their hashes are checked once. Raises TrigraphError."""
    files, paths, notice = _obtained(name, partial(choose_files, name), progress)
    return Downloaded(paths[files.parts[0]], None if files.mtp is None else paths[files.mtp], notice)


def download_drafter(name: ModelName, kind: str | None, progress: Progress = silent) -> Path:
    """The file of a block drafter as `choose_drafter` chooses it, downloaded as a model is. Raises TrigraphError."""
    files, paths, _ = _obtained(name, partial(choose_drafter, name, kind=kind), progress)
    return paths[files.parts[0]]


def _obtained(name: ModelName, choose: _Choose, progress: Progress) -> _Obtained:
    """The files that `choose` takes of a repository's.

    `HF_ENDPOINT` names a mirror, `HF_TOKEN` opens private repositories, `HF_HUB_OFFLINE=1` keeps to what is there.
    Where the hub cannot be reached, what is there is used, too. Raises TrigraphError.
    """
    hub = hub_module()
    there = cached_files(hub).get(name.repository, {})
    with _explained(hub, name):
        try:
            patience = _PATIENCE_CACHED if there else _PATIENCE
            info = hub.HfApi().model_info(name.repository, timeout=patience, files_metadata=True)
        except Exception as error:
            if not _is_unreachable(hub, error):
                raise
            return _local(hub, name, there, choose, error)
        sizes = {sibling.rfilename: sibling.size or 0 for sibling in info.siblings or ()}
        files = choose([*sizes])
        _check_space(hub, name, sum(sizes[file] for file in files.all if not _is_there(hub, name, file, info.sha)))
        return _Obtained(files, {file: _fetched(hub, name, file, info.sha, progress) for file in files.all})


def hub_module() -> ModuleType:
    """The package `huggingface_hub`. Raises TrigraphError where it is not installed."""
    try:
        import huggingface_hub
        import huggingface_hub.constants
        import huggingface_hub.errors
    except ImportError as error:
        raise TrigraphError(f"models by name need {error.name}: pip install huggingface-hub") from error
    constants = huggingface_hub.constants
    constants.DOWNLOAD_CHUNK_SIZE = min(constants.DOWNLOAD_CHUNK_SIZE, _PIECE)
    return huggingface_hub


def cached_files(hub: ModuleType) -> dict[str, dict[str, Path]]:
    """The GGUF files of each repository in the cache: by their names there, those of its last revision."""
    try:
        repositories = hub.scan_cache_dir(hub.constants.HF_HUB_CACHE).repos
    except hub.CacheNotFound:
        return {}
    cached = {}
    for repository in repositories:
        revisions = sorted(repository.revisions, key=lambda one: (bool(one.refs), one.last_modified))
        files = {
            file.file_path.relative_to(revision.snapshot_path).as_posix(): file.file_path
            for revision in revisions[-1:]
            for file in revision.files
            if file.file_name.endswith(".gguf")
        }
        if files:
            cached[repository.repo_id] = files
    return cached


def _local(
    hub: ModuleType,
    name: ModelName,
    there: dict[str, Path],
    choose: _Choose,
    unreachable: Exception,
) -> _Obtained:
    """What was downloaded before."""
    offline, address = hub.constants.HF_HUB_OFFLINE, hub.constants.ENDPOINT
    try:
        files = choose([*there])
    except TrigraphError as error:
        beside = f" (of this repository there are {', '.join(sorted(there))})" if there else ""
        if offline:
            raise TrigraphError(f"{name}: is not downloaded{beside}, and HF_HUB_OFFLINE is set; unset it") from error
        raise TrigraphError(
            f"{name}: is not downloaded{beside}, and {address} cannot be reached ({_short(unreachable)}); "
            "try again, or set HF_ENDPOINT to a mirror"
        ) from error
    notice = None if offline else f"{address} cannot be reached; the files that were downloaded before are used"
    return _Obtained(files, there, notice)


def _is_there(hub: ModuleType, name: ModelName, file: str, revision: str) -> bool:
    return isinstance(hub.try_to_load_from_cache(name.repository, file, revision=revision), str)


def _check_space(hub: ModuleType, name: ModelName, needed: int) -> None:
    """Raises TrigraphError where the cache's disk has no room for so many bytes, those of broken downloads aside."""
    folder = blobs_folder(hub, name.repository)
    needed -= sum(part.stat().st_size for part in folder.glob("*.part"))
    exists = next(place for place in (folder, *folder.parents) if place.exists())
    if needed > (free := shutil.disk_usage(exists).free):
        raise TrigraphError(
            f"{name}: {needed / 1e9:.1f} GB are to be downloaded, and {exists} has {free / 1e9:.1f} GB free; make room "
            "('trigraph models' lists what is there), or set HF_HOME to a folder on another disk"
        )


def blobs_folder(hub: ModuleType, repository: str) -> Path:
    """Where the cache has the contents of a repository's files."""
    return Path(hub.constants.HF_HUB_CACHE, f"models--{repository.replace('/', '--')}", "blobs")


def _fetched(hub: ModuleType, name: ModelName, file: str, revision: str, progress: Progress) -> Path:
    """The path of a file in the cache. One that has just been downloaded is checked."""
    there = hub.try_to_load_from_cache(name.repository, file, revision=revision)
    if isinstance(there, str):
        return Path(there)
    _fetch(hub, name.repository, file, revision)
    path = Path(hub.hf_hub_download(name.repository, file, revision=revision))
    _check(path, f"{name}: {file}", progress)
    return path


def _fetch(hub: ModuleType, repository: str, file: str, revision: str) -> None:
    """Brings a file's content into the cache, from where an earlier try has stopped.

    What `hf_hub_download` itself has begun is lost with its process, and files have tens of gigabytes.
    """
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils._fixes import WeakFileLock
    from huggingface_hub.utils._headers import build_hf_headers

    constants = hub.constants
    address = hub.hf_hub_url(repository, file, revision=revision)
    metadata = hub.get_hf_file_metadata(address)
    if not (metadata.etag and metadata.size and metadata.size <= constants.MAX_HTTP_DOWNLOAD_SIZE):
        return
    blobs = blobs_folder(hub, repository)
    blobs.mkdir(parents=True, exist_ok=True)
    blob, part = blobs / metadata.etag, blobs / f"{metadata.etag}.part"
    with WeakFileLock(blobs / f"{metadata.etag}.lock"):
        if not blob.exists():
            with part.open("ab") as opened:
                same_host = (
                    urlsplit(metadata.location).netloc == urlsplit(address).netloc
                )  # others have no use for the token
                http_get(
                    metadata.location,
                    opened,
                    resume_size=opened.tell(),
                    headers=build_hf_headers() if same_host else None,
                    expected_size=metadata.size,
                    displayed_filename=file,
                )
            part.replace(blob)


def _check(path: Path, label: str, progress: Progress) -> None:
    """Compares a file with its hash, which is the name of what its link leads to. A damaged one is removed."""
    blob = path.parent / os.readlink(path) if path.is_symlink() else path
    if not _SHA256.fullmatch(blob.name):
        return
    digest, done, size = hashlib.sha256(), 0, blob.stat().st_size
    with blob.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
            progress("check", done := done + len(block), size)
    if digest.hexdigest() != blob.name:
        path.unlink()
        blob.unlink()
        raise TrigraphError(f"{label}: was damaged on its way and has been removed; run the command again")


def _is_unreachable(hub: ModuleType, error: Exception) -> bool:
    """Whether nobody has answered: without a network, for instance."""
    answered = isinstance(error, hub.errors.HfHubHTTPError)
    return isinstance(error, hub.errors.OfflineModeIsEnabled | hub.errors.HTTPError) and not answered


@contextmanager
def _explained(hub: ModuleType, name: ModelName) -> Iterator[None]:
    """Turns errors of the hub into ours."""
    address, errors = hub.constants.ENDPOINT, hub.errors
    try:
        yield
    except TrigraphError:
        raise
    except errors.GatedRepoError as error:
        raise TrigraphError(f"{name}: accept its licence at {address}/{name.repository}, and set HF_TOKEN") from error
    except errors.RepositoryNotFoundError as error:
        raise TrigraphError(
            f"{name}: {address} has no such repository; check its name, or set HF_TOKEN if it is private"
        ) from error
    except (OSError, ValueError, errors.EntryNotFoundError, errors.HTTPError) as error:
        raise TrigraphError(
            f"{name}: the download failed ({_short(error)}); run the command again, and it goes on where it stopped"
        ) from error


def _short(error: BaseException) -> str:
    """The first line of what has happened."""
    error = error.__cause__ or error
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
