"""The libraries of the chat page, for the tests that need them."""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

_BUNDLER = Path(__file__).parents[3] / "tools/page_bundle/libraries.py"


def page_bundle() -> Path:
    """Returns the folder of the page's libraries, bundled if they are not; skips the test where they cannot be."""
    spec = spec_from_file_location("libraries", _BUNDLER)
    assert spec is not None and spec.loader is not None
    libraries = module_from_spec(spec)
    spec.loader.exec_module(libraries)
    try:
        libraries.bundle()
    except libraries.BundleError as error:
        pytest.skip(f"the page's libraries cannot be bundled: {error}")
    return Path(libraries.TARGET)
