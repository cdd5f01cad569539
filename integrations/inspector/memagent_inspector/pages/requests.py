"""Objects that every route needs of a request."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from starlette.exceptions import HTTPException
from starlette.responses import Response

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from starlette.requests import Request

    from memagent_graph.conversation.users import Users
    from memagent_graph.memory.bank import MemoryBank
    from memagent_inspector.views.lanes import Tracks
    from memagent_inspector.views.passages import Documents


class State(NamedTuple):
    """State that the routes of this server share.

    Attributes:
        bank: the memories.
        users: the people of the memories.
        documents: the documents below the roots.
        tracks: what is known of readings' steps.
    """

    bank: MemoryBank
    users: Users
    documents: Documents
    tracks: Tracks


def state_of(request: Request) -> State:
    """Return what the routes of this server share."""
    found: State = request.app.state.shared
    return found


def sought(fields: Mapping[str, str]) -> tuple[str, int]:
    """The words that a list is searched for, and how many of it to pass over."""
    return fields.get("words", "")[:200], number(fields, "start")


def is_partial(request: Request) -> bool:
    """Whether htmx asks, for a part of a page that it has."""
    return request.headers.get("hx-request") == "true"


def export_of(name: str, lines: Iterable[str]) -> Response:
    """Lines as a file to be saved under that name."""
    plain = (char if char.isascii() and char.isalnum() else "-" for char in name[:80])
    file = "".join(plain).strip("-") or "memory"
    headers = {"content-disposition": f'attachment; filename="{file}.jsonl"'}
    return Response("\n".join([*lines, ""]), headers=headers, media_type="application/jsonl")


def nothing_new() -> Response:
    """Leaves the part of a page that htmx asked for as it is."""
    return Response(status_code=204)


def needed(fields: Mapping[str, str], name: str) -> str:
    """A field that must be there.

    Raises:
        HTTPException: It is not.
    """
    value = fields.get(name, "")
    if not value:
        raise HTTPException(400, f"The field {name!r} is missing in this request.")
    return value


def number(fields: Mapping[str, str], name: str) -> int:
    """A field that is a number, 0 where it is not there.

    Raises:
        HTTPException: It is none.
    """
    value = fields.get(name, "0")
    if not (value.isascii() and value.isdigit() and len(value) < 10):  # noqa: PLR2004 - as an int of C
        raise HTTPException(400, f"The field {name!r} is no number in this request.")
    return int(value)
