"""Read the announcements on a stream."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memagent_graph.memory.redis.steps import Command

if TYPE_CHECKING:
    from memagent_graph.memory.redis.steps import Steps

_WAIT_MILLISECONDS = 1_000  # shorter than any sensible socket timeout
_ENTRIES_AT_ONCE = 100


def last_id(stream: bytes) -> Steps[str]:
    """Return the id of the newest entry."""
    (entries,) = yield [Command(None, (stream,), ("XREVRANGE", "+", "-", "COUNT", 1))]
    return entries[0][0].decode() if entries else "0-0"


def entries_after(stream: bytes, after: str) -> Steps[list[tuple[str, bytes]]]:
    """Return ids and members of entries newer than `after`, waiting a second for the first."""
    words = f"XREAD COUNT {_ENTRIES_AT_ONCE} BLOCK {_WAIT_MILLISECONDS} STREAMS"
    (reply,) = yield [Command(None, (stream,), (words, after))]
    # A list or a dictionary, depending on the protocol version.
    found = dict(reply or ()).get(stream, [])
    entries = found[0] if found and isinstance(found[0], list) else found
    return [(position.decode(), fields[b"member"]) for position, fields in entries]


def delete(stream: bytes) -> Steps[None]:
    """Delete all entries."""
    yield [Command(None, (stream,), ("DEL",))]
