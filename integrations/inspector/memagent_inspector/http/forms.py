"""What a request holds: the fields of its address and of its form, of bounded size."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

from starlette.requests import ClientDisconnect

from memagent_http.access import content_type
from memagent_http.bodies import read_body
from memagent_http.refusals import Refusal

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
        Refusal: They cannot be read.
    """
    return _parse(request.scope["query_string"])


async def form_of(request: Request) -> dict[str, str]:
    """The fields of a form; line ends are as a memory has them.

    Raises:
        Refusal: It is too long, too slow, no form, or its sender left.
    """
    if content_type(request) != _KIND:
        raise Refusal(415, f"A form is sent as {_KIND}.")
    try:
        body = await read_body(request, most=MOST_BYTES, seconds=_SECONDS)
    except ClientDisconnect:
        raise Refusal(400, "The form did not come to its end.") from None
    fields = _parse(body)
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
        raise Refusal(400, "The fields of this request cannot be read.") from None
    return dict(found)
