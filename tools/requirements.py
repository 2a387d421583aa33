"""Prints what pyproject.toml requires with an extra, one a line: `make run` installs that while the compiler works."""

import sys
import tomllib
from pathlib import Path
from typing import Any


def requirements(project: dict[str, Any], extra: str) -> list[str]:
    """The requirements of a `[project]` table, then those of the extra and of the extras that it names."""
    extras = project["optional-dependencies"]

    def of(name: str) -> list[str]:
        own, named = f"{project['name']}[", extras[name]
        others = [other for each in named if each.startswith(own) for other in each[len(own) : -1].split(",")]
        return [each for each in named if not each.startswith(own)] + [each for other in others for each in of(other)]

    return [*project["dependencies"], *of(extra)]


if __name__ == "__main__":
    file = Path(__file__).parents[1] / "pyproject.toml"
    print("\n".join(requirements(tomllib.loads(file.read_text(encoding="utf-8"))["project"], sys.argv[1])))
