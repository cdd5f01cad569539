"""How items lie in Redis: their keys, their bytes, and the scripts that change both atomically.

A key is `prefix:{root}/label/label//key`. The braces make the first label the hash tag, so that
everything under it is in one slot of a cluster. Labels are never empty, so the first `//` ends the
namespace, and the items under a namespace are exactly those that begin with its path and a slash.

An item is a string: `<created> <updated> <ttl> <kind>`, a newline, and the value as JSON, wrapped
by a serializer (such as encryption) if there is one. Times are in microseconds since 1970 by the
server's clock; the ttl is in milliseconds, 0 for none. All keys that a script touches are passed to
it, as clusters require.

An operation yields commands that go out together, and is sent the replies, so it takes as many
round trips as it has `yield`s, and serves synchronous and asynchronous callers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from datetime import UTC, date, datetime, time, timedelta
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from uuid import UUID

from memagent_graph.errors import BadRecordError, ConfigurationError

if TYPE_CHECKING:
    from langgraph.checkpoint.serde.base import SerializerProtocol

    from memagent_graph.memory.store import Value

_ESCAPES = str.maketrans({"%": "%25", "/": "%2F", "{": "%7B", "}": "%7D"})
_ESCAPED = re.compile("%(25|2F|7B|7D)")
_EMPTY_ROOT = "/"  # no label escapes to it
_ABOVE_ALL = b"\xff"  # no byte of UTF-8


T = TypeVar("T")
Reply = Any
"""A reply, whose shape depends on the command; an error is a reply too."""


class Wire(NamedTuple):
    """A command in the form that is sent.

    Attributes:
        key: one of its keys, whose node it is sent to in a cluster.
        arguments: the command's name and arguments.
        items: number of items that it reads or writes.
    """

    key: bytes
    arguments: tuple[bytes | str | int, ...]
    items: int = 1


def run_script(
    script: str, keys: Sequence[bytes], *arguments: bytes | str | int, items: int = 1
) -> Wire:
    """Return the command that runs a script; its keys, one at least, have the same hash tag."""
    return Wire(keys[0], ("EVAL", script, len(keys), *keys, *arguments), items)


Steps = Generator[Sequence[Wire], list[Reply], T]


@dataclass(frozen=True, slots=True)
class Names:
    """The keys that one store uses, which all begin with the prefix."""

    prefix: str

    def __post_init__(self) -> None:
        if "{" in self.prefix or "}" in self.prefix:
            message = (
                f"The prefix {self.prefix!r} has a brace, which would break hash tags: choose one "
                "without."
            )
            raise ConfigurationError(message)

    @property
    def roots(self) -> bytes:
        """The set of all roots."""
        return _encode(f"{self.prefix}:roots")

    def index(self, root: bytes) -> bytes:
        """The sorted set of the members under `root`."""
        return _encode(self.prefix) + b":{" + root + b"}"

    def expiry(self, root: bytes) -> bytes:
        """The sorted set of the members under `root` that expire, by time in milliseconds."""
        return self.index(root) + b"#expiry"

    def item(self, root: bytes, member: bytes) -> bytes:
        """The string that holds an item."""
        return self.index(root) + member

    def receipt(self, root: bytes, token: str) -> bytes:
        """The key that shows a repeated compare-and-put that it was carried out."""
        return self.index(root) + b"#receipt/" + token.encode()


def root_of(namespace: tuple[str, ...]) -> bytes:
    """The hash tag of all keys of `namespace`: its first label."""
    return _encode(_escape(namespace[0]) if namespace else _EMPTY_ROOT)


def member_of(namespace: tuple[str, ...], key: str) -> bytes:
    """The entry of an item in the index of its root."""
    return _path(namespace) + b"//" + _encode(_escape(key))


def decode(root: bytes, member: bytes) -> tuple[tuple[str, ...], str]:
    """Return namespace and key: the inverse of `root_of` and `member_of`."""
    labels, _, key = _text(member).partition("//")
    first = _text(root)
    namespace = () if first == _EMPTY_ROOT else (_unescape(first),)
    return (*namespace, *map(_unescape, labels.split("/")[1:])), _unescape(key)


def bounds(namespace: tuple[str, ...]) -> tuple[bytes, bytes]:
    """The range of an index, for `ZRANGEBYLEX`, with the items in or under `namespace`."""
    path = _path(namespace) + b"/"
    return b"[" + path, b"(" + path + _ABOVE_ALL


def _path(namespace: tuple[str, ...]) -> bytes:
    return _encode("".join(f"/{_escape(label)}" for label in namespace[1:]))


def _escape(name: str) -> str:
    return name.translate(_ESCAPES)


def _unescape(name: str) -> str:
    if "%" not in name:
        return name
    return _ESCAPED.sub(lambda match: chr(int(match[1], 16)), name)


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogatepass")


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


RECEIPT_MILLISECONDS = 60_000  # longer than any client repeats a command
SWEPT_BY_WRITES = 10
SWEPT_BY_READS = 1_000

_CLOCK = """
local time = redis.call('TIME')
local now = time[1] .. string.format('%06d', time[2])
local function in_milliseconds(ttl)
  return string.format('%.0f', math.floor(tonumber(now) / 1000) + tonumber(ttl))
end
"""

_SWEEP = """
local function sweep(index, expiry, limit)
  local until_now = in_milliseconds(0)
  local gone = redis.call('ZRANGEBYSCORE', expiry, '-inf', until_now, 'LIMIT', 0, limit)
  if #gone > 0 then
    redis.call('ZREM', index, unpack(gone))
    redis.call('ZREM', expiry, unpack(gone))
  end
  return #gone
end
"""

_WRITE = (
    _CLOCK
    + _SWEEP
    + f"""
local index, expiry = KEYS[1], KEYS[2]
local function write(item, member, ttl, body)
  if body == '' then
    redis.call('DEL', item)
    redis.call('ZREM', index, member)
    redis.call('ZREM', expiry, member)
    return
  end
  local old = redis.pcall('GETRANGE', item, 0, 31)
  local created = type(old) == 'string' and string.match(old, '^(%d+) ') or now
  if #created > 17 then created = now end
  local head = created .. ' ' .. now .. ' ' .. ttl .. ' '
  redis.call('SET', item, head .. body)
  redis.call('ZADD', index, 0, member)
  if ttl == '0' then
    redis.call('ZREM', expiry, member)
  else
    local deadline = in_milliseconds(ttl)
    redis.call('PEXPIREAT', item, deadline)
    redis.call('ZADD', expiry, deadline, member)
    sweep(index, expiry, {SWEPT_BY_WRITES})
  end
end
local function write_all(key, argument)
  while ARGV[argument] do
    write(KEYS[key], ARGV[argument], ARGV[argument + 1], ARGV[argument + 2])
    key, argument = key + 1, argument + 3
  end
end
"""
)

_TOUCH = (
    _CLOCK
    + """
local function touch(item, member, head)
  local ttl = string.match(head, '^%d+ %d+ (%d+) ')
  if ttl and ttl ~= '0' then
    local deadline = in_milliseconds(ttl)
    redis.call('PEXPIREAT', item, deadline)
    redis.call('ZADD', KEYS[1], deadline, member)
  end
end
"""
)

# KEYS index expiry, then items; ARGV member ttl body of each: sets, or deletes if there is no body.
# Items to set come first: a server without memory refuses only the first write of a script.
PUT = _WRITE + "write_all(3, 1)"

ABSENT = b"-"
PRESENT = b"*"
# As PUT, if the checked items are as expected. KEYS index expiry receipt, then checked items, then
# items; ARGV number of checked items, for each its body, ABSENT or PRESENT, then as PUT. Returns 1
# if done, 0 if not done, or place and content of the checked items that have other bytes. A key of
# another type is not an item.
COMMIT = (
    _WRITE
    + f"""
local checked = tonumber(ARGV[1])
if redis.call('EXISTS', KEYS[3]) == 1 then return 1 end
local others = {{}}
for place = 1, checked do
  local found, expected = redis.pcall('GET', KEYS[3 + place]), ARGV[1 + place]
  local there = type(found) == 'string'
  if there == (expected == '{ABSENT.decode()}') then return 0 end
  if there and expected ~= '{PRESENT.decode()}'
      and string.match(found, '^%d+ %d+ %d+ (.*)$') ~= expected then
    table.insert(others, {{place - 1, found}})
  end
end
if #others > 0 then return others end
write_all(4 + checked, 2 + checked)
redis.call('SET', KEYS[3], '', 'PX', {RECEIPT_MILLISECONDS})
return 1
"""
)

# KEYS expiry, then items; ARGV member of each, or nothing: reads items, and restarts the times to
# live of those with a member. Returns the items; an error for a key of another type.
FETCH = (
    _TOUCH
    + """
local found = {}
for place, member in ipairs(ARGV) do
  local item = KEYS[place + 1]
  local value = redis.pcall('GET', item)
  if type(value) ~= 'string' then
    if value and not string.find(value.err, 'WRONGTYPE') then return value end
  elseif member ~= '' then
    touch(item, member, value)
  end
  found[place] = value
end
return found
"""
)

# KEYS expiry item, ARGV member: restarts its time to live.
TOUCH = _TOUCH + "touch(KEYS[2], ARGV[1], redis.call('GETRANGE', KEYS[2], 0, 63))"

# KEYS index expiry: removes expired entries, and returns their number.
SWEEP = _CLOCK + _SWEEP + f"return sweep(KEYS[1], KEYS[2], {SWEPT_BY_READS})"

# KEYS item index, ARGV member: removes the entry of an item that the server evicted.
FORGET = "if redis.call('EXISTS', KEYS[1]) == 0 then redis.call('ZREM', KEYS[2], ARGV[1]) end"

# KEYS index, ARGV low high limit: jumps from namespace to namespace. Returns the start of each,
# to the end of its `//`.
NAMESPACES = r"""
local low, found = ARGV[1], {}
while #found < tonumber(ARGV[3]) do
  local member = redis.call('ZRANGEBYLEX', KEYS[1], low, ARGV[2], 'LIMIT', 0, 1)[1]
  if not member then break end
  local _, stop = string.find(member, '//', 1, true)
  local namespace = string.sub(member, 1, stop)
  table.insert(found, namespace)
  low = '(' .. namespace .. '\255'
end
return found
"""
