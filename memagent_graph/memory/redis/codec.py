"""Values as bytes: always JSON, wrapped by a serializer (encryption) if there is one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

from memagent_graph.errors import BadRecordError

if TYPE_CHECKING:
    from langgraph.checkpoint.serde.base import SerializerProtocol

    from memagent_graph.memory.atomic import Value

_KIND_BYTES = 40  # of a kind, as quoted in a message: "msgpack+aes" and the like are kinds
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Stored(NamedTuple):
    """What an item's string in Redis says.

    Attributes:
        value: the value.
        created_at: when the item was first put.
        updated_at: when it was last put.
        expires: whether it has a time to live.
        body: the value as stored.
    """

    value: Value
    created_at: datetime
    updated_at: datetime
    expires: bool
    body: bytes


class Codec:
    """Turns values into bodies, `<kind>`, a newline and the payload, and back.

    JSON is what a serializer is given too, so that reading can never build anything but plain
    values, no matter who wrote them. The kind must be our own: a body in plain text is not accepted
    where encrypted ones are expected.

    Args:
        serializer: wraps the JSON, `EncryptedSerializer` for example.
    """

    def __init__(self, serializer: SerializerProtocol | None = None) -> None:
        self._serializer = serializer
        self._kind = b"json" if serializer is None else _kind_of(serializer)

    def encode(self, value: Mapping[str, object]) -> bytes:
        """The body of `value`.

        Raises:
            TypeError: The value is not a mapping, or JSON has no form for something in it.
        """
        if not isinstance(value, Mapping):
            message = f"A value must be a mapping, not {type(value).__name__}."
            raise TypeError(message)
        payload = _to_json(value)
        if self._serializer is not None:
            payload = self._serializer.dumps_typed(payload)[1]
        return self._kind + b"\n" + payload

    def decode(self, raw: bytes, namespace: tuple[str, ...] = (), key: str = "") -> Stored:
        """Read an item's string; where it was found is for the message.

        Raises:
            BadRecordError: It was written with another serializer, key or program, or damaged.
        """
        try:
            created, updated, ttl, body = raw.split(b" ", 3)
            times = _time(created), _time(updated)
            kind, payload = body.split(b"\n", 1)
            if kind == self._kind:
                if self._serializer is not None:
                    payload = self._serializer.loads_typed((kind.decode(), payload))
                return Stored(_from_json(payload), *times, ttl != b"0", body)
        except Exception as error:  # serializers raise what they like
            reason = (
                "cannot be read. Was it written with another encryption key, or by another "
                "program under the same prefix? Delete it or write it anew."
            )
            raise bad_record(namespace, key, reason) from error
        reason = (
            f"was written as {kind[:_KIND_BYTES]!r} and this store reads {self._kind!r}: open it "
            "with the serializer it was written with."
        )
        raise bad_record(namespace, key, reason)


def bad_record(namespace: tuple[str, ...], key: str, reason: str) -> BadRecordError:
    """The error of an item that is something else than this store writes."""
    message = f"The value at {namespace!r}, {key!r} {reason}"
    return BadRecordError(message, key=key, namespace=namespace)


def as_stored(value: Mapping[str, object]) -> Value:
    """The value as it comes back: tuples are lists then."""
    return _from_json(_to_json(value))


def _to_json(value: Mapping[str, object]) -> bytes:
    # The standard library, unlike faster ones, keeps NaN, integers of any size, and lone
    # surrogates, which broken documents contain.
    text = json.dumps(dict(value), ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "surrogatepass")


def _from_json(payload: bytes) -> Value:
    value = json.loads(payload.decode("utf-8", "surrogatepass"))
    if not isinstance(value, dict):
        raise TypeError
    return value


def _kind_of(serializer: SerializerProtocol) -> bytes:
    return serializer.dumps_typed(b"")[0].encode()


def _time(microseconds: bytes) -> datetime:
    return _EPOCH + timedelta(microseconds=int(microseconds))
