"""The README as a package index shows it: links and pictures lead to the repository, at the tag of the version."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\((?!https?:|mailto:|#)([^)\s]+)\)")
_PICTURE = re.compile(r'(<(?:img|source)[^>]*?\b(?:src|srcset)=")(?!https?:)([^"]+)')


def dynamic_metadata(_settings: Mapping[str, Any], project: Mapping[str, Any]) -> dict[str, Any]:
    """Gives the metadata their `readme`; called by scikit-build-core."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    text = absolute(text, project["urls"]["Repository"], f"v{project['version']}")
    return {"readme": {"content-type": "text/markdown", "text": text}}


def absolute(text: str, repository: str, tag: str) -> str:
    """Returns Markdown whose relative links lead to files of the repository as they are at `tag`."""

    def link(match: re.Match[str]) -> str:
        picture, label, target = match.groups()
        kind = "raw" if picture else "blob"
        return f"{picture}[{_LINK.sub(link, label)}]({repository}/{kind}/{tag}/{target})"

    return _PICTURE.sub(rf"\g<1>{repository}/raw/{tag}/\g<2>", _LINK.sub(link, text))
