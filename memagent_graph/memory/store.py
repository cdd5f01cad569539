"""What memories ask of any LangGraph store: conditional writes, and an end to waiting.

`BaseStore` has neither. `RedisStore` writes under conditions itself, `stores.AtomicSqlite` lets
LangGraph's SQLite stores do so, and a substitute for others is here. A circuit breaker for each
store says how long it is waited for, so that no caller waits in vain.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import random
import sys
import threading
import time
import warnings
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from itertools import count
from types import EllipsisType, MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeVar, runtime_checkable
from weakref import WeakKeyDictionary

from langgraph.store.base import GetOp, Item, PutOp, SearchOp, validate_op_namespace
from langgraph.store.memory import InMemoryStore

from memagent_graph import errors
from memagent_graph.config import from_environment

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable
    from contextlib import AbstractContextManager
    from typing import Self

    from langgraph.store.base import BaseStore, Op, TTLConfig

T = TypeVar("T")
Namespace = tuple[str, ...]
Value = dict[str, Any]
"""The value of an item in a LangGraph store."""
Given = Mapping[tuple[Namespace, str], Mapping[str, object] | EllipsisType | None]

NOTHING: Mapping[Any, Any] = MappingProxyType({})
"""No conditions, or no records."""

_MOST_LOST_RACES = 100
"""Lost races after which a writer gives up; pauses in between add up to 50 s on average."""
_LONGEST_PAUSE = 0.02


class Tries:
    """The tries of a writer, each with the number of races that it has lost.

    Before each, it waits up to 20 ms for each race lost; after 100, `MemoryConflictError` is raised
    about `what` others change.
    """

    def __init__(self, what: str) -> None:
        self._what, self._lost = what, -1

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> int:
        self._lost += 1
        if self._lost > _MOST_LOST_RACES:
            message = f"{self._what} changed {self._lost} times meanwhile: try again."
            raise errors.MemoryConflictError(message)
        await asyncio.sleep(random.uniform(0, _LONGEST_PAUSE * self._lost))  # noqa: S311 - no secret
        return self._lost


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

    async def aplaces(self, namespace: Namespace) -> list[tuple[Namespace, str]]:
        """Return the places of all items in and below a namespace, which is not the empty one."""
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
    return (
        isinstance(expected, EllipsisType) or value == expected or _plain(value) == _plain(expected)
    )


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, list | tuple) else value


_PAGE = 2_000
"""Places listed in one step, at most."""


class GetThenPut:
    """The substitute of `atomic`: a get, followed by a put."""

    def __init__(self, store: BaseStore) -> None:
        self._store = store
        self._alone: AbstractContextManager[object] = nullcontext()
        if isinstance(store, InMemoryStore):
            self._alone = guard_of(store).alone
        else:
            message = (
                f"{type(store).__name__} has no compare-and-put: if two writers update the same "
                "named memory at once, one update can be lost. Use RedisStore or SQLite for "
                "several writers."
            )
            warnings.warn(message, RuntimeWarning, stacklevel=3)

    async def acommit(self, puts: Sequence[PutOp], *, given: Given) -> bool:
        """See `AtomicStore`."""
        ops = arrange(puts, (namespace for namespace, _ in given), self._store.ttl_config)
        with self._alone:
            items = await self._batch([GetOp(*place) for place in given])
            values = [item.value if isinstance(item, Item) else None for item in items]
            if not all(map(agrees, values, given.values())):
                return False
            await self._batch(ops)
            return True

    async def abatch(self, ops: Sequence[Op]) -> list[Any]:
        """See `AtomicStore`."""
        try:
            return await self._store.abatch(ops)
        except NotImplementedError:  # some stores are only synchronous
            return await asyncio.to_thread(self._store.batch, ops)

    async def aplaces(self, namespace: Namespace) -> list[tuple[Namespace, str]]:
        """See `AtomicStore`. Stores without conditional writes list places with their values."""
        # In memory, one page holds all: a second would miss what moved up as others were deleted.
        size = sys.maxsize if isinstance(self._store, InMemoryStore) else _PAGE
        places: list[tuple[Namespace, str]] = []
        for offset in count(0, size):
            search = SearchOp(namespace, None, size, offset, None, refresh_ttl=False)
            (found,) = await self._batch([search])
            below = ((tuple(item.namespace), item.key) for item in found)
            # Some stores compare prefixes as strings.
            places += (place for place in below if place[0][: len(namespace)] == namespace)
            if len(found) < size:
                break
        return places

    async def _batch(self, ops: Sequence[Op]) -> list[Any]:
        if isinstance(self._store, InMemoryStore):  # never waits, so the lock is held only briefly
            return self._store.batch(ops)
        return await self.abatch(ops)


class Pauses(NamedTuple):
    """Pauses between tries, in seconds: each is twice as long as the one before."""

    first: float
    longest: float

    def after(self, tries: int) -> float:
        """Return the pause after so many tries, at least one."""
        return min(self.first * 2.0 ** min(tries - 1, _MOST_DOUBLED), self.longest)


_MOST_DOUBLED = 20
AWAY = Pauses(0.5, 5.0)
"""Pauses between tests whether a store is back."""
FAILING = Pauses(0.1, 1.0)
"""Pauses between repeats of a call of Redis, of each a random part."""
FOLLOWED = Pauses(0.01, 0.2)
"""Pauses between looks at what another reading has stored."""
_LOOK = 0.1
"""Seconds between looks whether another caller found a store to be back."""
_LONGEST_WAIT = 120.0
"""Longest time of an operation while others are answered, in seconds: a burst is not an outage."""
_PARTS = 16
"""Parts in which an operation is waited for."""

_ANSWERS = (
    errors.BadRecordError,
    errors.MemoryConflictError,
    errors.MemoryNotFoundError,
    errors.StoreRefusedError,
)
_MISTAKES = (TypeError, ValueError)
_log = logging.getLogger(__name__)


class StoreMetrics(NamedTuple):
    """Counts for one store object since the program began.

    Attributes:
        retries: calls that tested whether the store is back, and repeats that callers or the
            store itself counted.
        pending: writes waiting for the store.
        lost_races: writes that lost to another writer.
        circuit: "closed" while the store answers, "open" while calls are refused, "half-open"
            when the next call may test the store, or is testing it.
    """

    retries: int
    pending: int
    lost_races: int
    circuit: Literal["closed", "open", "half-open"]


def store_seconds() -> float:
    """Return the time limit of a store in seconds: `MEMAGENT_STORE_SECONDS`, or 1.5."""
    return from_environment("MEMAGENT_STORE_SECONDS", 1.5)


class StoreGuard:
    """The state of a store: whether it answers, and counts of its calls.

    Thread-safe, and usable from any event loop. `failures` are those since the store last answered;
    the other counts are those of `StoreMetrics`. `alone` is held by who reads and then writes in a
    store without conditional writes; `led_to` has where names led when this process looked last;
    `seconds` is `store_seconds` as it was when the store was first used.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.failures = self.retries = self.pending = self.lost_races = 0
        self.alone = threading.Lock()
        self.led_to: dict[tuple[tuple[str, ...], str], str] = {}
        self.seconds: float = store_seconds()
        self._clock = clock
        self._lock = threading.RLock()
        self._openings = 0
        self._answers = 0
        self._testing = False
        self._next_try = 0.0
        self._reason = ""

    @property
    def away(self) -> bool:
        """Whether a call would be refused: the last one failed, and the next test is not due."""
        with self._lock:
            return self.failures > 0 and (self._testing or self._clock() < self._next_try)

    @property
    def refusal(self) -> errors.StoreError | None:
        """The error with which a call would be refused; None if it would be made."""
        if not self.away:
            return None
        message = (
            f"The memory store is unreachable ({self._reason}). It is retried every few seconds."
        )
        return errors.StoreError(message)

    @property
    def circuit(self) -> Literal["closed", "open", "half-open"]:
        """See `StoreMetrics`."""
        with self._lock:
            if not self.failures:
                return "closed"
            return "half-open" if self._testing or not self.away else "open"

    async def wait(self) -> None:
        """Wait until a call would be made: until the next test, or another caller's answer."""
        while self.away:  # noqa: ASYNC110 - callers in other event loops find out too
            await asyncio.sleep(_LOOK)

    def count(self, *, pending: int = 0, lost_races: int = 0) -> None:
        """Add to the counts; a negative number subtracts."""
        with self._lock:
            self.pending += pending
            self.lost_races += lost_races

    async def call(self, operation: Callable[[], Awaitable[T]], *, patience: float) -> T:
        """Carry out an operation of the store, unless it is unreachable.

        An operation that takes too long is cancelled and abandoned; it may still take effect.
        `BadRecordError`, `MemoryConflictError`, `MemoryNotFoundError` and `StoreRefusedError` count
        as answers and are raised; so are `TypeError` and `ValueError`, which say nothing about the
        store.

        Args:
            operation: starts the operation. It must not use this guard itself.
            patience: time in which the store must answer any call, in seconds. While it answers
                others, as in a burst, the operation may take longer, unless `patience` is below
                `seconds`. Time in which this event loop is blocked does not count.
        """
        openings, is_test = self._admit()
        try:
            result = await self._within(patience, operation)
        except _ANSWERS:
            self._close()
            raise
        except _MISTAKES:
            raise
        except errors.StoreError as error:
            self._open(openings, str(error))
            raise
        except Exception as error:
            what = ": ".join(filter(None, (type(error).__name__, str(error))))
            failure = errors.StoreError(f"The memory store failed: {what}")
            self._open(openings, str(failure))
            raise failure from error
        else:
            self._close()
            return result
        finally:
            if is_test:
                with self._lock:
                    self._testing = False

    async def _within(self, patience: float, operation: Callable[[], Awaitable[T]]) -> T:
        """Return an operation's result; one that does not end when cancelled is not waited for."""
        work, loop = _run(operation), asyncio.get_running_loop()
        task: asyncio.Task[T] = loop.create_task(work)
        task.add_done_callback(_retrieve)
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001 - its loop may end
        try:
            done = await self._patiently(task, patience)
        finally:
            if loop.is_closed():  # this waits in vain, and nothing can be cancelled
                if inspect.getcoroutinestate(work) == inspect.CORO_CREATED:
                    work.close()
            elif not task.done():
                _abandoned.add(task)
                task.add_done_callback(_abandoned.discard)
                task.cancel()
        if not done:
            message = f"The memory store did not answer within {patience:.2g} s."
            raise errors.StoreError(message)
        if task.cancelled():  # by the store: if the caller is cancelled, the wait above ends
            message = "The memory store cancelled the operation."
            raise errors.StoreError(message)
        return task.result()

    async def _patiently(self, task: asyncio.Task[T], patience: float) -> bool:
        """Wait for a task, and return whether it is done.

        A wait in parts: time in which the loop is blocked, and receives nothing, ends one of them.
        """
        longest = time.monotonic() + (_LONGEST_WAIT if patience >= self.seconds else patience)
        answers, left = self._answers, _PARTS
        while left and not (task.done() or time.monotonic() >= longest):
            await asyncio.wait([task], timeout=patience / _PARTS)
            answered = answers != self._answers
            answers, left = self._answers, _PARTS if answered else left - 1
        return task.done()

    def _admit(self) -> tuple[int, bool]:
        """How often the circuit had opened before, and whether the call is a test."""
        with self._lock:
            if (refusal := self.refusal) is not None:
                raise refusal
            test = self.failures > 0
            if test:
                self._testing = True
                self.retries += 1
            return self._openings, test

    def _close(self) -> None:
        with self._lock:
            was_away = self.failures > 0
            self._answers += 1
            self.failures = 0
        if was_away:
            _log.debug("store back")

    def _open(self, openings: int, reason: str) -> None:
        with self._lock:
            if openings != self._openings:
                return  # the call began before a failure that is counted already
            self._openings += 1
            self.failures += 1
            first, pause = self.failures == 1, AWAY.after(self.failures)
            self._next_try = self._clock() + pause
            self._reason = reason.rstrip(".")
        _log.debug("store unreachable: %s; retried in %g s", reason, pause)
        if first:
            _log.warning("The memory store is unreachable (%s). It is retried.", reason.rstrip("."))


def guard_of(store: BaseStore) -> StoreGuard:
    """Return the guard of a store, always the same."""
    with _lock:
        try:
            return _guards.get(store) or _guards.setdefault(store, StoreGuard())
        except TypeError:  # the store cannot be hashed or weakly referenced
            return _kept.setdefault(id(store), (store, StoreGuard()))[1]


def store_metrics(store: BaseStore) -> StoreMetrics:
    """Return the counts of a store, and the state of its circuit.

    Examples:
        >>> from langgraph.store.memory import InMemoryStore
        >>> from memagent_graph import store_metrics
        >>> store_metrics(InMemoryStore())
        StoreMetrics(retries=0, pending=0, lost_races=0, circuit='closed')
    """
    guard = guard_of(store)
    retries = guard.retries + getattr(store, "retries", 0)
    return StoreMetrics(retries, guard.pending, guard.lost_races, guard.circuit)


_abandoned: set[asyncio.Task[object]] = set()
"""Calls that were cancelled and have not ended: a store's guard may go before they do."""
_lock = threading.Lock()
_guards: WeakKeyDictionary[BaseStore, StoreGuard] = WeakKeyDictionary()
_kept: dict[int, tuple[BaseStore, StoreGuard]] = {}  # holds the store, so that its id stays unique


async def _run(operation: Callable[[], Awaitable[T]]) -> T:
    return await operation()


def _retrieve(task: asyncio.Task[T]) -> None:
    """Retrieve the task's exception, so that asyncio does not report it."""
    if not task.cancelled():
        task.exception()
