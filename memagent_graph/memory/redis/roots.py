"""The set of all roots, which searches of everything begin with."""

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

# KEYS roots, ARGV roots: adds them. A key of another type, which other programs leave, gives way.
_REGISTER = Script(
    """
local kind = redis.call('TYPE', KEYS[1]).ok
if kind ~= 'set' and kind ~= 'none' then redis.call('DEL', KEYS[1]) end
for _, root in ipairs(ARGV) do redis.call('SADD', KEYS[1], root) end
"""
)


class KnownRoots:
    """Roots that this store has registered, so that the set is not written with each put.

    In a cluster the set is on one node, which all writers would wait for.

    Args:
        connection: what is sent again may have been carried out before, so the answer that an
            index was empty is lost then. A given client repeats unseen: nothing is remembered.
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
            names: of the store.
            written: roots that the commands may put something under.
            commands: what to send.
            emptied: finds in the replies the roots whose index was empty before.
        """
        new, retries = written - self._roots, self._connection.retries
        try:
            replies = yield [*commands, *register(names, new)]
            lost = written if self._connection.retries != retries else emptied(replies)
            if again := (lost & written) - new:
                yield register(names, again)
        except BaseException:  # also when this generator is closed: some may have been put
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
    """What makes `roots` known to searches of everything. Must follow the writes."""
    found = sorted(roots)
    return [Command(_REGISTER, (names.roots,), tuple(found))] if found else []


def list_roots(names: Names) -> Steps[list[bytes]]:
    """All roots, in order."""
    (members,) = yield [Command(None, (names.roots,), ("SMEMBERS",))]
    return sorted(members)


def forget_root(names: Names, root: bytes) -> Steps[None]:
    """Take a root out of the set, unless something has been put under it meanwhile."""
    # A writer adds the root after the item if the index was empty: whichever of the two this
    # overtakes, either the item is seen here or the writer's own step comes later.
    yield [Command(None, (names.roots,), ("SREM", root))]
    (exists,) = yield [Command(None, (names.index(root),), ("EXISTS",))]
    if exists:
        yield register(names, [root])
