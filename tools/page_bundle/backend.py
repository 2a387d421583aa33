"""The build backend: scikit-build-core's, which packs the chat page with its libraries."""

from __future__ import annotations

from libraries import NODE_PACKAGE, bundle, current, has_node
from scikit_build_core import build as _scikit_build
from scikit_build_core.build import (
    build_editable,
    get_requires_for_build_editable,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

_Settings = dict[str, list[str] | str] | None


def get_requires_for_build_wheel(config_settings: _Settings = None) -> list[str]:
    """Returns what a wheel needs to be built: node as a package, if the page must be bundled and node is missing."""
    return [*_scikit_build.get_requires_for_build_wheel(config_settings), *_node()]


def get_requires_for_build_sdist(config_settings: _Settings = None) -> list[str]:
    """Returns what a source distribution needs to be built, as for a wheel."""
    return [*_scikit_build.get_requires_for_build_sdist(config_settings), *_node()]


def build_wheel(wheel_directory: str, config_settings: _Settings = None, metadata_directory: str | None = None) -> str:
    """Builds a wheel. A source distribution has the bundle, so that its wheel needs no node."""
    bundle()
    return _scikit_build.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_sdist(sdist_directory: str, config_settings: _Settings = None) -> str:
    """Builds a source distribution."""
    bundle()
    return _scikit_build.build_sdist(sdist_directory, config_settings)


def _node() -> list[str]:
    return [] if current() or has_node() else [NODE_PACKAGE]
