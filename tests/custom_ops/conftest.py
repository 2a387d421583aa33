"""What tests of operators share: memory that goes with the file that needs it."""

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="module")
def results_kept_for_a_file(request: pytest.FixtureRequest) -> Iterator[None]:
    """Its functools.cache results: those of all files together come near what `make test` allows a process."""
    yield
    for value in vars(request.module).values():
        if hasattr(value, "cache_clear"):
            value.cache_clear()
