"""Conditional writes: what a memory needs and `BaseStore` lacks."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from types import EllipsisType, MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from langgraph.store.base import PutOp, validate_op_namespace

from memagent_graph.errors import MemoryConflictError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from langgraph.store.base import Op, TTLConfig

Namespace = tuple[str, ...]
Value = dict[str, Any]
"""The value of an item in a LangGraph store."""
Given = Mapping[tuple[Namespace, str], Mapping[str, object] | EllipsisType | None]

NO_CONDITIONS: Given = MappingProxyType({})

MOST_LOST_RACES = 100
"""Lost races after which a writer gives up; pauses in between add up to 50 s on average."""
_LONGEST_PAUSE = 0.02


async def pause(lost: int) -> None:
    """Wait before the next try: a random time of up to 20 ms for each race lost."""
    await asyncio.sleep(random.uniform(0, _LONGEST_PAUSE * lost))  # noqa: S311 - no secret


def race_error(what: str, name: str) -> MemoryConflictError:
    """Return the error of a writer that gives up."""
    message = f"{what} {name!r} changed {MOST_LOST_RACES} times meanwhile: try again."
    return MemoryConflictError(message)


@runtime_checkable
class ListsPlaces(Protocol):
    """Places of items, listed in one step by a store that pages slowly."""

    async def aplaces(self, namespace: Namespace) -> list[tuple[Namespace, str]]:
        """Return the places of all items in and below a namespace, which is not the empty one."""


@runtime_checkable
class AtomicStore(Protocol):
    """Atomic operations, which `RedisStore` has and `atomic` adds to other stores."""

    async def acommit(self, puts: Sequence[PutOp], *, given: Given) -> bool:
        """Carry out all puts in one atomic step, if items are as given; otherwise none.

        All namespaces must begin with the same label, which puts them on one node of a Redis
        cluster.

        Args:
            puts: the puts; a value of None deletes. The last put of an item counts. A `ttl` of None
                stands for the store's default.
            given: items, and the values that they must have: None for no item, `...` for any value.

        Returns:
            Whether it was done. If not, read the items again, and decide again.

        Raises:
            ValueError: The namespaces begin with different labels, or there are none.
            StoreError: The store cannot be reached, or refused.
        """
        ...

    async def abatch(self, ops: Sequence[Op]) -> list[Any]:
        """Carry out operations as `BaseStore.abatch` does.

        If the caller is cancelled meanwhile, the store remains usable.
        """
        ...


def arrange(
    puts: Iterable[PutOp], beside: Iterable[Namespace], ttl: TTLConfig | None
) -> list[PutOp]:
    """Return the puts of one atomic step: the last one of each item, deletes last.

    A time to live of None stands for the default of `ttl`, in minutes. All namespaces, with those
    `beside` that the step touches, must begin with the same label.
    """
    default = (ttl or {}).get("default_ttl")
    last = {(op.namespace, op.key): op for op in puts}
    namespaces = {*beside, *(namespace for namespace, _ in last)}
    for namespace in namespaces:
        validate_op_namespace(PutOp(namespace, "", None))
    if len({namespace[:1] for namespace in namespaces}) != 1:
        message = (
            "The namespaces of one atomic step must begin with the same label, not "
            f"{sorted(namespaces)}. Put items that change together under one first label."
        )
        raise ValueError(message)
    ops = [op._replace(ttl=default) if op.ttl is None else op for op in last.values()]
    return sorted(ops, key=lambda op: op.value is None)


def agrees(
    value: Mapping[str, object] | None, expected: Mapping[str, object] | EllipsisType | None
) -> bool:
    """Whether an item's value (None if absent) is as `acommit` expects."""
    if value is None or expected is None:
        return value is expected
    return isinstance(expected, EllipsisType) or _plain(value) == _plain(expected)


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, list | tuple) else value
