"""Answers to requests that are refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.exceptions import HTTPException
from starlette.routing import Match, Mount

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, MutableMapping


class Refusal(HTTPException):
    """An HTTP error; a refusal that no application formats is plain text.

    Args:
        status: HTTP status.
        message: message for users.
        code: code for programs.
        param: field of the request that caused it.
        headers: headers of the response.

    Attributes:
        said: what a server behind this one said, for the log.
    """

    headers: dict[str, str]

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(status, message, dict(headers or {}))
        self.code = code
        self.param = param
        self.said: str | None = None

    def __str__(self) -> str:
        return self.detail


def methods_of(routes: Iterable[Any], scope: MutableMapping[str, Any]) -> str:
    """Return the methods of all routes of a request's path, for the header `Allow`."""
    pages = [route for route in routes if not isinstance(route, Mount)]
    found = [
        method
        for method in ("DELETE", "GET", "HEAD", "PATCH", "POST", "PUT")
        if any(page.matches({**scope, "method": method})[0] is Match.FULL for page in pages)
    ]
    return ", ".join(found)
