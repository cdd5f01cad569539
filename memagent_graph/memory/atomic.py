"""Writes that lose nothing, and news: what a memory needs and `BaseStore` does not have."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from types import EllipsisType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from langgraph.store.base import PutOp, validate_op_namespace

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Sequence

    from langgraph.store.base import Item, TTLConfig

Namespace = tuple[str, ...]
Value = dict[str, Any]
"""Of an item, as LangGraph's stores give it."""
Given = Mapping[tuple[Namespace, str], Mapping[str, object] | EllipsisType | None]

MOST_LOST_RACES = 100
"""Lost races after which a writer gives up; pauses in between add up to 50 s on average."""
_LONGEST_PAUSE = 0.02


async def pause(lost: int) -> None:
    """Let other writers by, up to 20 ms for each race that was lost to them."""
    await asyncio.sleep(random.uniform(0, _LONGEST_PAUSE * lost))  # noqa: S311 - no secret


class Present(NamedTuple):
    """What is there after `AtomicStore.aput_if_absent`.

    Attributes:
        value: what was put, or what another writer put first.
        beside: the other item that was asked for; None if there is none, or it cannot be read.
    """

    value: Value
    beside: Value | None = None


class Announcement(NamedTuple):
    """Something new.

    Attributes:
        id: what `watch` takes as `after` to go on from here.
        item: the item, as it is when read.
    """

    id: str
    item: Item


@runtime_checkable
class AtomicStore(Protocol):
    """Operations that `RedisStore` has, and that `atomic` gives to other stores."""

    async def aput_if_absent(
        self,
        namespace: Namespace,
        key: str,
        value: Mapping[str, object],
        *,
        topic: str | None = None,
        also: Sequence[PutOp] = (),
        beside: tuple[Namespace, str] | None = None,
        ttl: float | None = None,
    ) -> Present:
        """Put an item unless there is one.

        Args:
            namespace: where.
            key: its key.
            value: the value to put.
            topic: tell those who `watch` this topic of the namespace, if it was put.
            also: carried out in the same atomic step, whether the item was there or not: puts
                that can be repeated, such as entries of an index. Their namespaces begin with
                the same label.
            beside: another item that is read in the same round trip. Its time to live does not
                begin again.
            ttl: minutes to live; None for the store's default.

        Returns:
            The value that is there now, and that of the item beside it.

        Raises:
            ValueError: The namespaces begin with different labels.
            StoreError: The store cannot be reached, or refused.
        """
        ...

    async def acommit(
        self, puts: Sequence[PutOp], *, given: Given, topic: str | None = None
    ) -> bool:
        """Carry out all puts in one atomic step if items are as given, or none of them.

        All namespaces begin with the same label: in a Redis cluster, that makes them neighbours.

        Args:
            puts: what to put, or to delete where the value is None. The last put of an item
                counts. A `ttl` of None stands for the store's default.
            given: items and the values that they must have; None where there must be no item,
                `...` where there must be one, whatever its value.
            topic: announce the first of `puts` to those who `watch` this topic of its namespace.

        Returns:
            Whether it was done. If not, read again and decide anew.

        Raises:
            ValueError: The namespaces begin with different labels, or there are none.
            StoreError: The store cannot be reached, or refused.
        """
        ...

    def watch(
        self, namespace: Namespace, topic: str, *, after: str = "$"
    ) -> AsyncIterator[Announcement]:
        """Follow what `aput_if_absent` and `acommit` announce under `topic`, without end.

        Args:
            namespace: where the items are.
            topic: as given to `aput_if_absent` or `acommit`.
            after: an announcement's id; "0" for all that the store still knows of; "$" for
                those made after the first step of the iteration.

        Raises:
            StoreError: The store cannot be reached, or cannot be watched.
        """
        ...

    async def aforget_topic(self, namespace: Namespace, topic: str) -> None:
        """Delete all announcements under `topic`; items stay.

        Raises:
            StoreError: The store cannot be reached, or refused.
        """
        ...


def arrange(
    puts: Iterable[PutOp], beside: Iterable[Namespace], ttl: TTLConfig | None
) -> list[PutOp]:
    """What one atomic step has to write: the last put of each item, deletes last.

    Args:
        puts: with times to live in minutes, None for the default.
        beside: other namespaces that the step touches.
        ttl: the store's configuration, which has the default.

    Raises:
        ValueError: The namespaces begin with different labels, or there are none.
    """
    default = (ttl or {}).get("default_ttl")
    last = {(op.namespace, op.key): op for op in puts}
    namespaces = {*beside, *(namespace for namespace, _ in last)}
    for namespace in namespaces:
        validate_op_namespace(PutOp(namespace, "", None))
    if len({namespace[:1] for namespace in namespaces}) != 1:
        message = (
            "The namespaces of one atomic step must begin with the same label, not "
            f"{sorted(namespaces)}. Put what changes together under one first label."
        )
        raise ValueError(message)
    ops = [op._replace(ttl=default) if op.ttl is None else op for op in last.values()]
    return sorted(ops, key=lambda op: op.value is None)


def agrees(
    value: Mapping[str, object] | None, expected: Mapping[str, object] | EllipsisType | None
) -> bool:
    """Whether an item, None if absent, is as given to `acommit`."""
    if value is None or expected is None:
        return value is expected
    return isinstance(expected, EllipsisType) or _plain(value) == _plain(expected)


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, list | tuple) else value
