"""The page at `/`: plain files, which ask no other host for anything."""

from __future__ import annotations

import mimetypes
import os
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

FOLDER = Path(__file__).with_name("page")
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "font-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}

# Some systems have other types for these, or none; browsers refuse a script of a wrong type.
for _kind, _suffix in (("text/javascript", ".js"), ("text/css", ".css"), ("font/woff2", ".woff2")):
    mimetypes.add_type(_kind, _suffix)


class Page(StaticFiles):
    """The files of the page, with a content security policy."""

    def __init__(self) -> None:
        super().__init__(directory=FOLDER, html=True, check_dir=False)

    async def get_response(self, path: str, scope: Scope) -> Response:
        """Serves a file of the page; paths that are not the page's come here, too, with any method."""
        if scope["method"] not in ("GET", "HEAD"):
            raise HTTPException(404)
        response = await super().get_response(os.path.normpath(path), scope)
        response.headers.update(HEADERS)
        return response
