"""Values as bytes: always JSON, wrapped by a serializer (encryption) if there is one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, NamedTuple

from memagent_graph.errors import StoreError

if TYPE_CHECKING:
    from langgraph.checkpoint.serde.base import SerializerProtocol

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


class Stored(NamedTuple):
    """What an item's string in Redis says.

    Attributes:
        value: the value.
        created_at: when the item was first put.
        updated_at: when it was last put.
        expires: whether it has a time to live.
        body: the value as stored.
    """

    value: dict[str, Any]
    created_at: datetime
    updated_at: datetime
    expires: bool
    body: bytes


class Codec:
    """Turns values into bodies, `<kind>`, a newline and the payload, and back.

    JSON is what a serializer is given too, so that reading can never build anything but plain
    values, whoever wrote them. The kind must be our own: a body in plain text is not accepted
    where encrypted ones are expected.

    Args:
        serializer: wraps the JSON, `EncryptedSerializer` for example.
    """

    def __init__(self, serializer: SerializerProtocol | None = None) -> None:
        self._serializer = serializer
        self._kind = b"json" if serializer is None else _kind_of(serializer)

    def encode(self, value: Mapping[str, Any]) -> bytes:
        """The body of `value`.

        Raises:
            TypeError: The value is no mapping, or JSON has no form for something in it.
        """
        if not isinstance(value, Mapping):
            message = f"A value must be a mapping, not {type(value).__name__}."
            raise TypeError(message)
        payload = _to_json(value)
        if self._serializer is not None:
            payload = self._serializer.dumps_typed(payload)[1]
        return self._kind + b"\n" + payload

    def decode(self, raw: bytes) -> Stored:
        """Read an item's string.

        Raises:
            StoreError: It was written with another serializer, key or program.
        """
        try:
            created, updated, ttl, body = raw.split(b" ", 3)
            kind, payload = body.split(b"\n", 1)
            if kind != self._kind:
                message = (
                    f"A value was written as {kind.decode()!r} and this store reads "
                    f"{self._kind.decode()!r}: open it with the serializer it was written with."
                )
                raise StoreError(message)
            if self._serializer is not None:
                payload = self._serializer.loads_typed((kind.decode(), payload))
            return Stored(_from_json(payload), _time(created), _time(updated), ttl != b"0", body)
        except ValueError as error:
            message = (
                "A value cannot be read. Was it written with another encryption key, "
                "or by another program under the same prefix?"
            )
            raise StoreError(message) from error


def as_stored(value: Mapping[str, Any]) -> dict[str, Any]:
    """The value as it comes back: tuples are lists then."""
    return _from_json(_to_json(value))


def _to_json(value: Mapping[str, Any]) -> bytes:
    # The standard library, unlike faster ones, keeps NaN, integers of any size, and lone
    # surrogates, which broken documents contain.
    text = json.dumps(dict(value), ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "surrogatepass")


def _from_json(payload: bytes) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(payload.decode("utf-8", "surrogatepass"))
    return value


def _kind_of(serializer: SerializerProtocol) -> bytes:
    return serializer.dumps_typed(b"")[0].encode()


def _time(microseconds: bytes) -> datetime:
    return _EPOCH + timedelta(microseconds=int(microseconds))
