"""Keys in Redis: an injective encoding of namespaces and keys, ordered so that prefixes are ranges.

A key is `prefix:{root}/label/label//key`. The braces make the first label the hash tag, so that
everything under it is in one slot of a cluster. Labels are never empty, so the first `//` ends the
namespace, and the items under a namespace are exactly those that begin with its path and a slash.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from memagent_graph.errors import ConfigurationError
from memagent_graph.memory.redis.pipeline import Wire, run_script

if TYPE_CHECKING:
    from collections.abc import Iterable

    from memagent_graph.memory.redis.pipeline import Steps

_ESCAPES = str.maketrans({"%": "%25", "/": "%2F", "{": "%7B", "}": "%7D"})
_ESCAPED = re.compile("%(25|2F|7B|7D)")
_EMPTY_ROOT = "/"  # no label escapes to it
_ABOVE_ALL = b"\xff"  # no byte of UTF-8


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


# KEYS roots, ARGV roots: adds them. A key of another type, left by another program, is replaced.
_REGISTER = """
local kind = redis.call('TYPE', KEYS[1]).ok
if kind ~= 'set' and kind ~= 'none' then redis.call('DEL', KEYS[1]) end
for _, root in ipairs(ARGV) do redis.call('SADD', KEYS[1], root) end
"""


def register(names: Names, roots: Iterable[bytes]) -> list[Wire]:
    """Return the commands that add roots to the set; they go out with the writes and follow them.

    They go out with every write: one that is left out because the set has the root already would
    have to know of servers that lost their data, lost replies, and roots that others removed.
    """
    found = sorted(roots)
    return [run_script(_REGISTER, (names.roots,), *found)] if found else []


def list_roots(names: Names) -> Steps[list[bytes]]:
    """Return all roots, in order."""
    (members,) = yield [Wire(names.roots, ("SMEMBERS", names.roots))]
    return sorted(members)


def forget_root(names: Names, root: bytes) -> Steps[None]:
    """Remove a root from the set, unless something has been put under it meanwhile."""
    # A writer adds the root after the item. So either the item is seen here, or the writer adds
    # the root later.
    yield [Wire(names.roots, ("SREM", names.roots, root))]
    (exists,) = yield [Wire(names.index(root), ("EXISTS", names.index(root)))]
    if exists:
        yield register(names, [root])
