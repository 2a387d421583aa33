"""What tests of the server share: one browser, the page's libraries, and a server that reads small images."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.pages.browser import MISSING, Browser, chromium
from support.pages.bundle import page_bundle
from support.pages.mock_api import MockApi, mock_api
from support.pages.page import visit
from support.servers.scripted import serving
from support.servers.seeing_server import LIMITED, Seeing, limited_engine


@pytest.fixture(scope="session")
def window() -> Iterator[Browser]:
    if MISSING:
        pytest.skip(MISSING)
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="session")
def bundle() -> Path:
    """The folder of the page's libraries."""
    return page_bundle()


@pytest.fixture
def api(window: Browser) -> Iterator[MockApi]:
    with mock_api() as api:
        yield api


@pytest.fixture
def page(window: Browser, api: MockApi, bundle: Path) -> Iterator[Browser]:
    """The page, just opened: its storage is empty, as every test has a port of its own."""
    window.size(1280, 800)
    window.complaints()
    visit(window, api)
    yield window
    unexpected = [text for text in window.complaints() if "Failed to load resource" not in text]
    assert not unexpected, "errors of scripts or of the content security policy"


@pytest.fixture(scope="module")
def sighted() -> Seeing:
    return limited_engine()


@pytest.fixture(scope="module")
def sighted_url(sighted: Seeing) -> Iterator[str]:
    with serving(sighted, LIMITED) as address:
        yield address
