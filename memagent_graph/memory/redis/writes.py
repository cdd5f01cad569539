"""Put, delete, and conditional writes."""

from __future__ import annotations

from collections.abc import Mapping
from types import EllipsisType
from typing import TYPE_CHECKING
from uuid import uuid4

from memagent_graph.errors import BadRecordError
from memagent_graph.memory.atomic import Present
from memagent_graph.memory.redis import reads, scripts
from memagent_graph.memory.redis.codec import as_stored
from memagent_graph.memory.redis.keys import member_of, root_of
from memagent_graph.memory.redis.steps import Command

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from langgraph.store.base import GetOp, PutOp

    from memagent_graph.memory.atomic import Given, Value
    from memagent_graph.memory.redis.codec import Codec
    from memagent_graph.memory.redis.keys import Names
    from memagent_graph.memory.redis.pipeline import Reply
    from memagent_graph.memory.redis.roots import KnownRoots
    from memagent_graph.memory.redis.steps import Steps

_MILLISECONDS = 60_000  # in a minute, the unit of times to live
_NOTHING = b""  # the body of an item to delete


def put(names: Names, codec: Codec, op: PutOp) -> Command:
    """Return the command that sets an item, or deletes it if the value is None."""
    return Command(scripts.PUT, *_write(names, codec, root_of(op.namespace), [op]))


def put_if_absent(
    names: Names,
    codec: Codec,
    known: KnownRoots,
    op: PutOp,
    also: Sequence[PutOp],
    beside: GetOp | None,
    topic: str | None,
) -> Steps[Present]:
    """Set and announce an item unless there is one; return the one that is stored.

    The puts of `also`, in the order of `arrange`, are carried out either way; `beside` is read.
    """
    ops = [op, *also]
    keys, arguments = _write(names, codec, root_of(op.namespace), ops)
    if topic is not None:
        keys += (names.stream(op.namespace, topic),)
    claim = Command(scripts.CLAIM, keys, arguments)
    looks = [] if beside is None else [reads.get(names, beside)]
    reply, *others = yield from _known(names, known, ops, [claim, *looks], scripts.CLAIMED)
    other = None if beside is None else _readable(codec, beside, others[0])
    if reply in (None, scripts.CLAIMED):
        return Present(as_stored(op.value or {}), other)
    return Present(codec.decode(reply, op.namespace, op.key).value, other)


def commit(
    names: Names,
    codec: Codec,
    known: KnownRoots,
    ops: Sequence[PutOp],
    given: Given,
    news: tuple[PutOp, str] | None,
) -> Steps[bool]:
    """Carry out `ops`, in the order of `arrange`, if all items are as given; return whether.

    `news` is a put to announce, with its topic.

    The server compares bytes, but a value can have several forms (another order of keys, other
    encrypted bytes). If the bytes differ, values are compared here, and the server is asked again
    with the bytes that it has.
    """
    places = [*given, *((op.namespace, op.key) for op in ops)]
    root = root_of(places[0][0])
    (index, expiry, *items), arguments = _write(names, codec, root, ops)
    # If the reply is lost after the write, the receipt shows the repeat that it was done.
    receipt = names.receipt(root, uuid4().hex)
    checked = [names.item(root, member_of(*place)) for place in given]
    keys = (index, expiry, receipt, *checked, *items)
    announced = b""
    if news is not None:
        op, topic = news
        keys += (names.stream(op.namespace, topic),)
        announced = member_of(op.namespace, op.key)
    expected = list(given.values())
    wanted = [_form(codec, value) for value in expected]
    while True:
        script = Command(scripts.COMMIT, keys, (len(wanted), announced, *wanted, *arguments))
        (reply,) = yield from _known(names, known, ops, [script], scripts.COMMITTED)
        if not isinstance(reply, list):
            return bool(reply)
        for place, content in reply:
            value, stored = expected[place], codec.decode(content, *places[place])
            if not isinstance(value, Mapping) or stored.value != as_stored(value):
                return False
            wanted[place] = stored.body


def _known(
    names: Names, known: KnownRoots, ops: Iterable[PutOp], commands: Sequence[Command], emptied: int
) -> Steps[list[Reply]]:
    """Send commands, the first of which writes `ops`, and return their replies.

    The first command's reply `emptied` means that the index was empty.
    """
    roots = {root_of(op.namespace) for op in ops if op.value is not None}
    return (
        yield from known.register(
            names, roots, commands, lambda replies: roots if replies[0] == emptied else set()
        )
    )


def _readable(codec: Codec, op: GetOp, reply: Reply) -> Value | None:
    try:
        item = reads.found(codec, op, reply)
    except BadRecordError:
        return None
    return None if item is None else item.value


def _write(
    names: Names, codec: Codec, root: bytes, ops: Sequence[PutOp]
) -> tuple[tuple[bytes, ...], tuple[bytes | int, ...]]:
    members = [member_of(op.namespace, op.key) for op in ops]
    keys = (names.index(root), names.expiry(root), *(names.item(root, one) for one in members))
    arguments: list[bytes | int] = []
    for op, member in zip(ops, members, strict=True):
        body = _NOTHING if op.value is None else codec.encode(op.value)
        milliseconds = 0 if op.ttl is None else max(1, round(op.ttl * _MILLISECONDS))
        arguments += (member, milliseconds, body)
    return keys, tuple(arguments)


def _form(codec: Codec, value: Mapping[str, object] | EllipsisType | None) -> bytes:
    if value is None:
        return scripts.ABSENT
    return scripts.PRESENT if isinstance(value, EllipsisType) else codec.encode(value)
