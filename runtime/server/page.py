"""The page at `/`: plain files, which ask no other host for anything."""

from __future__ import annotations

import os
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

FOLDER = Path(__file__).with_name("page")
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


class Page(StaticFiles):
    """The files of the page, with a content security policy."""

    def __init__(self) -> None:
        super().__init__(directory=FOLDER, html=True, check_dir=False)

    async def get_response(self, path: str, scope: Scope) -> Response:
        """See StaticFiles. Paths that are not the page's come here, too, with any method."""
        if scope["method"] not in ("GET", "HEAD"):
            raise HTTPException(404)
        response = await super().get_response(os.path.normpath(path), scope)
        response.headers.update(_HEADERS)
        return response
