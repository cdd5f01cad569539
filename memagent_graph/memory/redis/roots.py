"""The set of all roots, with which searches of everything begin."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memagent_graph.memory.redis.scripts import Script
from memagent_graph.memory.redis.steps import Command

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from memagent_graph.memory.redis.connection import Connection
    from memagent_graph.memory.redis.keys import Names
    from memagent_graph.memory.redis.pipeline import Reply
    from memagent_graph.memory.redis.steps import Steps

_REMEMBERED = 10_000  # roots

# KEYS roots, ARGV roots: adds them. A key of another type, left by another program, is replaced.
_REGISTER = Script(
    """
local kind = redis.call('TYPE', KEYS[1]).ok
if kind ~= 'set' and kind ~= 'none' then redis.call('DEL', KEYS[1]) end
for _, root in ipairs(ARGV) do redis.call('SADD', KEYS[1], root) end
"""
)


class KnownRoots:
    """The roots that this store has registered, so that not every put writes the set.

    In a cluster, the set is on one node, which all writers would wait for.

    Args:
        connection: the connection. A repeated command may have been carried out before, so that
            the reply that an index was empty is lost. A given client does not report repeats, so
            nothing is remembered with one.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._roots: set[bytes] = set()

    def register(
        self,
        names: Names,
        written: set[bytes],
        commands: Sequence[Command],
        emptied: Callable[[list[Reply]], set[bytes]],
    ) -> Steps[list[Reply]]:
        """Send `commands` and register the roots that they write.

        Args:
            names: the store's keys.
            written: roots that the commands may write under.
            commands: the commands.
            emptied: returns the roots whose index was empty before, from the replies.
        """
        new, retries = written - self._roots, self._connection.retries
        try:
            replies = yield [*commands, *register(names, new)]
            lost = written if self._connection.retries != retries else emptied(replies)
            if again := (lost & written) - new:
                yield register(names, again)
        except BaseException:  # even if this generator is closed, some may have been put
            self._roots -= written
            raise
        if retries is not None:
            self._remember(new)
        return replies[: len(commands)]

    def _remember(self, roots: set[bytes]) -> None:
        if len(self._roots) + len(roots) > _REMEMBERED:
            self._roots = set()
        self._roots |= roots


def register(names: Names, roots: Iterable[bytes]) -> list[Command]:
    """Return the commands that add roots to the set; they must follow the writes."""
    found = sorted(roots)
    return [Command(_REGISTER, (names.roots,), tuple(found))] if found else []


def list_roots(names: Names) -> Steps[list[bytes]]:
    """Return all roots, in order."""
    (members,) = yield [Command(None, (names.roots,), ("SMEMBERS",))]
    return sorted(members)


def forget_root(names: Names, root: bytes) -> Steps[None]:
    """Remove a root from the set, unless something has been put under it meanwhile."""
    # A writer adds the root after the item, if the index was empty. So either the item is seen
    # here, or the writer adds the root later.
    yield [Command(None, (names.roots,), ("SREM", root))]
    (exists,) = yield [Command(None, (names.index(root),), ("EXISTS",))]
    if exists:
        yield register(names, [root])
