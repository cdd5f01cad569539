"""What a request holds: the fields of its address and of its form, of bounded size."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

if TYPE_CHECKING:
    from starlette.requests import Request

MOST_BYTES = 1 << 20
"""Of a form: the text of a memory is a few thousand."""
_SECONDS = 30.0
"""Within which a form must have come."""
_MOST_FIELDS = 20
_KIND = "application/x-www-form-urlencoded"


def place_of(request: Request) -> str:
    """A request's address within this server."""
    query = request.url.query
    return f"{request.url.path}?{query}" if query else request.url.path


def fields_of(request: Request) -> dict[str, str]:
    """The fields of a request's address.

    Raises:
        HTTPException: They cannot be read.
    """
    return _parse(request.scope["query_string"])


async def form_of(request: Request) -> dict[str, str]:
    """The fields of a form; line ends are as a memory has them.

    Raises:
        HTTPException: It is too long, too slow, no form, or its sender left.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != _KIND:
        raise HTTPException(415, f"A form is sent as {_KIND}.")
    body = bytearray()
    try:
        async with asyncio.timeout(_SECONDS):
            async for block in request.stream():
                body += block
                if len(body) > MOST_BYTES:
                    message = f"The text is over {MOST_BYTES >> 20} MiB: a memory is far shorter."
                    raise HTTPException(413, message)
    except TimeoutError:
        raise HTTPException(408, "The form took too long to come.") from None
    except ClientDisconnect:
        raise HTTPException(400, "The form did not come to its end.") from None
    fields = _parse(bytes(body))
    return {name: value.replace("\r\n", "\n") for name, value in fields.items()}


def _parse(raw: bytes) -> dict[str, str]:
    try:
        found = parse_qsl(
            raw.decode("ascii"),
            keep_blank_values=True,
            errors="strict",
            max_num_fields=_MOST_FIELDS,
        )
    except ValueError:
        raise HTTPException(400, "The fields of this request cannot be read.") from None
    return dict(found)
