"""Put, delete, and the two writes that depend on what is there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import uuid4

from memagent_graph.memory.redis import scripts
from memagent_graph.memory.redis.codec import as_stored
from memagent_graph.memory.redis.keys import member_of, root_of
from memagent_graph.memory.redis.steps import Command

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from langgraph.store.base import PutOp

    from memagent_graph.memory.redis.codec import Codec
    from memagent_graph.memory.redis.keys import Names
    from memagent_graph.memory.redis.steps import Steps

_MILLISECONDS = 60_000  # in a minute, the unit of times to live
_NOTHING = b""  # the body of an item that is not there


def put(names: Names, codec: Codec, op: PutOp) -> Command:
    """Set an item, or delete it when the value is None."""
    return Command(scripts.PUT, *_write(names, codec, op))


def put_if_absent(
    names: Names, codec: Codec, op: PutOp, topic: str | None
) -> Steps[dict[str, Any]]:
    """Set an item unless there is one, and announce it; returns the one there is then."""
    keys, arguments = _write(names, codec, op)
    if topic is not None:
        keys += (names.stream(op.namespace, topic),)
    claim = Command(scripts.CLAIM, keys, arguments)
    replies = yield [claim, *register(names, [op])]
    if replies[0] is None:
        return as_stored(op.value or {})
    return codec.decode(replies[0]).value


def compare_and_put(
    names: Names, codec: Codec, op: PutOp, expected: Mapping[str, Any] | None
) -> Steps[bool]:
    """Set or delete an item if its value is `expected`, None for absent.

    The server compares bytes. The same value can have several forms (another order of keys, other
    encrypted bytes): when the bytes differ, values are compared here, and the server is asked
    again with the bytes that it had.
    """
    keys, arguments = _write(names, codec, op)
    # A reply can be lost after the write: the receipt tells a repeat that it has won already.
    keys += (names.receipt(root_of(op.namespace), uuid4().hex),)
    wanted = _NOTHING if expected is None else codec.encode(expected)
    while True:
        swap = Command(scripts.SWAP, keys, (*arguments, wanted))
        replies = yield [swap, *register(names, [op])]
        if replies[0] == 1:
            return True
        if replies[0] is None or expected is None:
            return False
        stored = codec.decode(replies[0])
        if stored.value != as_stored(expected):
            return False
        wanted = stored.body


def register(names: Names, ops: Iterable[PutOp]) -> list[Command]:
    """What makes roots known to searches of everything. Must follow the writes."""
    roots = {root_of(op.namespace) for op in ops if op.value is not None}
    return [Command(None, (names.roots,), ("SADD", *sorted(roots)))] if roots else []


def _write(
    names: Names, codec: Codec, op: PutOp
) -> tuple[tuple[bytes, ...], tuple[bytes | int, ...]]:
    root, member = root_of(op.namespace), member_of(op.namespace, op.key)
    keys = (names.item(root, member), names.index(root), names.expiry(root))
    body = _NOTHING if op.value is None else codec.encode(op.value)
    milliseconds = 0 if op.ttl is None else max(1, round(op.ttl * _MILLISECONDS))
    return keys, (member, milliseconds, body)
