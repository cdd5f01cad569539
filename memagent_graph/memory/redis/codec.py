"""Encode values as JSON, wrapped by a serializer (such as encryption) if there is one."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import UTC, date, datetime, time, timedelta
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from memagent_graph.errors import BadRecordError

if TYPE_CHECKING:
    from langgraph.checkpoint.serde.base import SerializerProtocol

    from memagent_graph.memory.atomic import Value

_KIND_BYTES = 40  # of a kind, as quoted in a message: "msgpack+aes" and the like are kinds
_VECTORS = "\0vectors"
"""Key, in an item's JSON, of its embeddings: what changes or deletes the item reaches them too."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


Vector = Sequence[float]


class Stored(NamedTuple):
    """An item as stored in Redis, with its encoded `body` and its embeddings, each as text.

    `expires` says whether it has a time to live.
    """

    value: Value
    created_at: datetime
    updated_at: datetime
    expires: bool
    body: bytes
    vectors: Sequence[str] = ()


class EmbeddedValue(dict[str, Any]):
    """A value with its embeddings, each as text."""

    vectors: Sequence[str] = ()


class Codec:
    """Encodes values to bodies, which are `<kind>`, a newline and the payload, and back.

    A serializer only gets JSON, so that reading never creates anything but plain values. The kind
    must be the store's own: plain text is refused where encrypted values are expected.

    Args:
        serializer: wraps the JSON, such as `EncryptedSerializer`.
    """

    def __init__(self, serializer: SerializerProtocol | None = None) -> None:
        self._serializer = serializer
        self._kind = b"json" if serializer is None else serializer.dumps_typed(b"")[0].encode()

    def encode(self, value: Mapping[str, object]) -> bytes:
        """Return the body of a value."""
        if not isinstance(value, Mapping):
            message = f"A value must be a mapping, not {type(value).__name__}."
            raise TypeError(message)
        payload = _to_json(value)
        if isinstance(value, EmbeddedValue):
            payload = _to_json({**value, _VECTORS: [*value.vectors]})
        if self._serializer is not None:
            payload = self._serializer.dumps_typed(payload)[1]
        return self._kind + b"\n" + payload

    def decode(self, raw: bytes, namespace: tuple[str, ...] = (), key: str = "") -> Stored:
        """Decode a stored item; namespace and key are for the error message."""
        try:
            created, updated, ttl, body = raw.split(b" ", 3)
            times = _time(created), _time(updated)
            kind, payload = body.split(b"\n", 1)
            if kind == self._kind:
                if self._serializer is not None:
                    payload = self._serializer.loads_typed((kind.decode(), payload))
                value = _from_json(payload)
                vectors = value.pop(_VECTORS, ())
                return Stored(value, *times, ttl != b"0", body, vectors)
        except Exception as error:  # a serializer may raise anything
            reason = (
                "cannot be read: it was written with another encryption key, or by another program "
                "under the same prefix. Use that key, or delete the item or write it again."
            )
            raise bad_record(namespace, key, reason) from error
        reason = (
            f"was written as {kind[:_KIND_BYTES]!r} and this store reads {self._kind!r}: open it "
            "with the serializer it was written with."
        )
        raise bad_record(namespace, key, reason)


def bad_record(namespace: tuple[str, ...], key: str, reason: str) -> BadRecordError:
    """The error for an item that this store did not write."""
    message = f"The value at {namespace!r}, {key!r} {reason}"
    return BadRecordError(message, key=key, namespace=namespace)


def as_stored(value: Mapping[str, object]) -> Value:
    """Return a value as it is read back: tuples become lists."""
    return _from_json(_to_json(value))


def _to_json(value: Mapping[str, object]) -> bytes:
    # Unlike faster libraries, the standard one keeps NaN, integers of any size, and the lone
    # surrogates of broken documents.
    try:
        text = json.dumps(dict(value), ensure_ascii=False, separators=(",", ":"), default=_to_plain)
    except TypeError as error:
        message = f"A value cannot be stored: {error}. Convert it to what JSON has."
        raise TypeError(message) from error
    return text.encode("utf-8", "surrogatepass")


def _to_plain(value: object) -> object:
    """Convert what LangGraph's SqliteStore and PostgresStore take beyond JSON."""
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    message = f"it has a {type(value).__name__}"
    raise TypeError(message)


def _from_json(payload: bytes) -> Value:
    value = json.loads(payload.decode("utf-8", "surrogatepass"))
    if not isinstance(value, dict):
        raise TypeError
    return value


def _time(microseconds: bytes) -> datetime:
    return _EPOCH + timedelta(microseconds=int(microseconds))
