"""Messages that are not folded yet: they wait here, and are folded after the reply."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import threading
from collections import OrderedDict
from concurrent.futures import Future
from contextlib import suppress
from contextvars import Context
from functools import lru_cache
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple, cast
from weakref import WeakKeyDictionary, WeakSet

from langgraph.store.memory import InMemoryStore

from memagent_graph.conversation.access import ReadOnlyStore
from memagent_graph.conversation.messages import record_message
from memagent_graph.conversation.user_memory import AnonymousUser, UserMemory, name_user
from memagent_graph.conversation.users import Users
from memagent_graph.errors import ConfigurationError
from memagent_graph.memory.circuit import StoreGuard, guard_of, store_seconds
from memagent_graph.memory.items import check_namespace
from memagent_graph.sync import at_exit, find_held_up_loop, find_loop, soon
from memagent_graph.templates import plural

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Container, Iterable, Sequence

    from langchain_core.messages import BaseMessage
    from langgraph.store.base import BaseStore

    from memagent_graph.conversation.episodes import KeptMessage, Recorded
    from memagent_graph.conversation.messages import Redact
    from memagent_graph.conversation.user_memory import UserId

    Fold = Callable[[Sequence[BaseMessage], bool], Awaitable[Collection[str]]]
    """Folds messages, and returns the ids of those that wait on; of final ones, none does."""
    Keep = Callable[[Sequence[BaseMessage]], list[KeptMessage]]
    """Returns messages as they are kept word for word."""

_MOST_AT_ONCE = 64
"""Users whose messages are folded at once, in the background of one process."""
_MOST_USERS = 10_000
"""Users of one store that a process knows, at most; the one who was silent longest goes first."""
_MOST_WAITING = 1_000
"""Messages of one thread that wait, at most; the oldest go first."""
_MOST_THREADS = 100
"""Threads of one user of which a process knows what it has seen."""
_MOST_SEEN = 2_000
"""Messages of one thread that a process knows, at most."""
_AGAIN = 1.0
"""Seconds after which messages are due again that their thread did not have yet."""
_MOST_RECENT = 16
"""Users whose `UserMemory` is made once for several calls of a turn."""
_TICK = 1.0
"""Seconds between two looks whether an event loop still runs."""
_LAST_SECONDS = 10.0
"""Seconds that the end of the process waits for what is not folded yet."""

_log = logging.getLogger(__name__)


class _WaitingMessages(NamedTuple):
    """One thread's messages that wait, by id, each with when it is due (`monotonic`)."""

    fold: Fold
    keep: Keep
    waiting: dict[str, tuple[float, BaseMessage]]


class Backlog:
    """The waiting messages of one user; one task folds them, thread by thread.

    Messages that are due are folded on the event loop that added the last of them, whose
    connections the model and the store may hold, or else on the loop of synchronous code. Safe to
    use from any thread.

    Attributes:
        last_seen: the memory as this process last saw it.
    """

    def __init__(self) -> None:
        self.last_seen = ""
        self._lock = threading.Lock()
        self._threads: dict[str, _WaitingMessages] = {}
        self._seen: OrderedDict[str, dict[str, tuple[Recorded, int]]] = OrderedDict()
        self._home: asyncio.AbstractEventLoop | None = None
        self._under_way: tuple[Future[None], asyncio.AbstractEventLoop] | None = None
        self._failed = False
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def waits(self) -> int:
        """Number of waiting messages."""
        with self._lock:
            return sum(len(said.waiting) for said in self._threads.values())

    def read(self) -> list[KeptMessage]:
        """Return the waiting messages as they will be kept; what is taken back has no text."""
        with self._lock:
            threads = [(one.keep, [*one.waiting.values()]) for one in self._threads.values()]
        return [said for keep, waiting in threads for said in keep([one for _, one in waiting])]

    def record(self, thread: str) -> list[Recorded]:
        """Return the messages of a thread that this process has seen, in order."""
        with self._lock:
            return [one for one, _ in self._seen.get(thread, {}).values()]

    def see(
        self, thread: str, messages: Sequence[BaseMessage], redact: Redact
    ) -> list[BaseMessage]:
        """Return those of a thread's messages that this process sees for the first time.

        A message that says something else than before is among them.
        """
        with self._lock:
            known = {key: said for key, (_, said) in self._seen.get(thread, {}).items()}
        new = [message for message in messages if known.get(str(message.id)) != _hash(message)]
        records = [(record_message(message, redact), _hash(message)) for message in new]
        with self._lock:
            seen = self._seen[thread] = self._seen.pop(thread, {})
            seen.update({one.id: (one, key) for one, key in records})
            for gone in [*seen][1 : 1 + len(seen) - _MOST_SEEN]:  # the first begins the thread
                del seen[gone]
            while len(self._seen) > _MOST_THREADS:
                self._seen.popitem(last=False)
        return new

    def add(
        self,
        thread: str,
        messages: Iterable[tuple[float, BaseMessage]],
        new: Container[str | None],
        fold: Fold,
        keep: Keep,
    ) -> None:
        """Let new messages of a thread wait; none is due later than it was before.

        Args:
            thread: whose.
            messages: each with the seconds from now on until it is due; infinity for never.
            new: ids of those that are new; others are due earlier if they wait.
            fold: folds them; messages that are folded already do no harm.
            keep: returns them as they are kept word for word.
        """
        now = monotonic()
        with self._lock:
            known = self._threads[thread].waiting if thread in self._threads else {}
            for seconds, message in messages:
                key = str(message.id)
                before = known[key][0] if key in known else math.inf
                if key in known or key in new:
                    known[key] = min(before, now + seconds), message
            while len(known) > _MOST_WAITING:
                del known[next(iter(known))]
            if known:
                self._threads[thread] = _WaitingMessages(fold, keep, known)
            self._home = find_loop()
            self._failed = False
        soon(self._arm)

    def hurry(self) -> None:
        """Let all that waits be due now."""
        with self._lock:
            for said in self._threads.values():
                said.waiting.update({key: (0.0, m) for key, (_, m) in said.waiting.items()})
        soon(self._arm)

    def remove(self, thread: str, messages: Iterable[BaseMessage]) -> None:
        """Messages of a thread that are folded, and so wait no longer."""
        with self._lock:
            said = self._threads.get(thread)
            if said is not None:
                for message in messages:
                    said.waiting.pop(str(message.id), None)
                if not said.waiting:
                    del self._threads[thread]

    def withdraw(self, ids: Collection[str], thread: str | None) -> None:
        """Remove waiting messages, so that they are not folded; they are new if they come again.

        Args:
            ids: ids of the messages.
            thread: thread of the messages; None for any.
        """
        with self._lock:
            for name, said in [*self._threads.items()]:
                if thread in (None, name):
                    for key in ids:
                        said.waiting.pop(key, None)
                    if not said.waiting:
                        del self._threads[name]
            for name, seen in self._seen.items():
                for key in ids if thread in (None, name) else ():
                    seen.pop(key, None)

    def keep_only(self, thread: str, ids: Collection[str]) -> None:
        """Remove the waiting messages of a thread that it no longer has."""
        with self._lock:
            said = self._threads.get(thread)
            gone = [] if said is None else [key for key in said.waiting if key not in ids]
        if gone:
            self.withdraw(gone, thread)

    async def drop(self) -> None:
        """Forget all that waits; return when nothing is being folded."""
        with self._lock:
            self._threads.clear()
            self._seen.clear()
            self.last_seen = ""
        await self._others_end(None)
        self.last_seen = ""

    async def fold(self) -> int:
        """Fold all waiting messages, due or not; return how many still wait."""
        if self.waits:
            loop = asyncio.get_running_loop()
            task = loop.create_task(
                self._fold_until(math.inf, find_held_up_loop()), context=Context()
            )
            _tasks.add(task)
            task.add_done_callback(_tasks.discard)
            await asyncio.wait([task])
        return self.waits

    async def _fold_until(self, due: float, still: asyncio.AbstractEventLoop | None = None) -> None:
        """Fold what is due by then; others who do so at this moment are waited for.

        Args:
            due: when, as `monotonic` counts.
            still: an event loop that stands still meanwhile, on which nobody can be waited for.
        """
        await self._others_end(still)
        done: Future[None] = Future()
        self._under_way = done, asyncio.get_running_loop()
        failed: set[str] = set()
        try:
            while taken := self._due(due, failed):
                thread, fold, messages = taken
                try:
                    early = await fold(messages, due == math.inf)
                except Exception as error:  # noqa: BLE001 - it is tried again at the next turn
                    failed.add(thread)
                    self._failed = True
                    what = plural(self.waits, "message")
                    _log.warning("Folding %s failed, and is tried again: %s", what, error)
                else:
                    self.remove(thread, [one for one in messages if one.id not in early])
                    self._postpone(thread, early)
        except asyncio.CancelledError:  # this event loop ends: another goes on
            soon(self._arm)
            raise
        finally:
            if self._under_way is not None and self._under_way[0] is done:
                self._under_way = None
            done.set_result(None)

    async def _others_end(self, still: asyncio.AbstractEventLoop | None) -> None:
        while (others := self._under_way) is not None:
            future, loop = others
            if loop is still or not loop.is_running():
                return
            await asyncio.wait([asyncio.wrap_future(future)], timeout=_TICK)

    def _postpone(self, thread: str, ids: Collection[str]) -> None:
        with self._lock:
            waiting = self._threads[thread].waiting if thread in self._threads else {}
            for key in {*ids} & waiting.keys():
                waiting[key] = monotonic() + _AGAIN, waiting[key][1]

    def _due(self, due: float, failed: set[str]) -> tuple[str, Fold, list[BaseMessage]] | None:
        with self._lock:
            for thread, said in self._threads.items():
                messages = [message for when, message in said.waiting.values() if when <= due]
                if messages and thread not in failed:
                    return thread, said.fold, messages
        return None

    def _arm(self) -> None:
        """Set the timer to when something is due; on the loop of synchronous code."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._task is not None or self._failed:
            return
        with self._lock:
            times = [when for said in self._threads.values() for when, _ in said.waiting.values()]
        first = min(times, default=math.inf)
        if first < math.inf:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(0.0, first - monotonic()), self._begin)

    def _begin(self) -> None:
        self._timer = None
        self._task = asyncio.get_running_loop().create_task(self._fold_at_home())
        self._task.add_done_callback(self._end)

    def _end(self, _: object) -> None:
        self._task = None
        self._arm()

    async def _fold_at_home(self) -> None:
        async with _gate():
            home, here = self._home, asyncio.get_running_loop()
            if home is None or home is here or not await _run_on(home, self._fold_due):
                await self._fold_due()

    async def _fold_due(self) -> None:
        await self._fold_until(monotonic())


def _hash(message: BaseMessage) -> int:
    return hash((message.type, str(message.content), str(getattr(message, "tool_calls", ""))))


def backlog_of(store: BaseStore, place: tuple[str, ...]) -> Backlog:
    """Return the backlog of one user's memory in a store, the same at each call.

    Args:
        store: the store of the memory.
        place: the memory's namespace in the store.
    """
    with _lock:
        users = _backlogs.setdefault(guard_of(store), OrderedDict())
        found = users.pop(place, None) or Backlog()
        users[place] = found
        if len(users) > _MOST_USERS:
            gone = users.popitem(last=False)[1].waits
            if gone:
                what = plural(gone, "message")
                _log.warning("Too many users wait to be remembered: %s will not be folded.", what)
        return found


async def fold_all(backlogs: Iterable[Backlog]) -> int:
    """Fold all waiting messages of these; return how many still wait."""
    turns = asyncio.Semaphore(_MOST_AT_ONCE)

    async def fold(backlog: Backlog) -> int:
        async with turns:
            return await backlog.fold()

    return sum(await asyncio.gather(*map(fold, [*backlogs])))


async def _run_on(loop: asyncio.AbstractEventLoop, work: Callable[[], Awaitable[None]]) -> bool:
    """Do `work` on another loop; False if that loop ended before it was done."""
    begun: list[asyncio.Task[None]] = []

    async def run() -> None:
        begun.append(task := cast("asyncio.Task[None]", asyncio.current_task()))
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001 - its loop may end
        await work()

    if not loop.is_running():
        return False
    coroutine = run()
    try:
        future = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, loop))
    except RuntimeError:  # it was closed at this moment
        coroutine.close()
        return False
    while not future.done():
        await asyncio.wait([future], timeout=_TICK)
        if not future.done() and not loop.is_running():
            with suppress(IndexError, RuntimeError):  # it was not begun, or the loop is closed
                loop.call_soon_threadsafe(begun.pop().cancel)
            return False
    return not future.cancelled()


def _gate() -> asyncio.Semaphore:
    return _gates.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(_MOST_AT_ONCE))


def _begin_anew() -> None:
    """Start anew in a forked child: waiting messages are the parent's, and its threads are gone."""
    global _lock  # noqa: PLW0603 - another thread of the parent may have held it
    _lock = threading.Lock()
    _backlogs.clear()
    for people in [*_everyone]:
        people.seen = WeakSet()


def _fold_the_rest() -> None:
    with _lock:
        left = [b for users in _backlogs.values() for b in users.values() if b.waits]
    if not left:
        return
    done = threading.Event()

    def begin() -> None:
        task = asyncio.get_running_loop().create_task(fold_all(left))
        _tasks.add(task)
        task.add_done_callback(lambda _: done.set())

    soon(begin)
    done.wait(_LAST_SECONDS)


_lock = threading.Lock()
_backlogs: WeakKeyDictionary[StoreGuard, OrderedDict[tuple[str, ...], Backlog]] = (
    WeakKeyDictionary()
)
_gates: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()
_everyone: WeakSet[UserMemories] = WeakSet()
_tasks: set[asyncio.Task[object]] = set()  # an event loop's are weak
os.register_at_fork(after_in_child=_begin_anew)
at_exit(_fold_the_rest)


class UserMemories:
    """The people whom a `ConversationMemory` remembers; the arguments are the same.

    Attributes:
        namespace: labels of the memories in the store, below a label for each person.
        seen: backlogs of the people who were seen in this process.
    """

    def __init__(
        self,
        store: BaseStore | None,
        namespace: Sequence[str],
        *,
        keep_versions: int | None,
        keep_days: float | None,
        episode_tokens: int,
        episode_days: float | None,
        ttl: float | None,
        read_only: bool,
    ) -> None:
        self.read_only = read_only
        self.namespace = check_namespace(namespace)
        self.seen: WeakSet[Backlog] = WeakSet()
        _everyone.add(self)
        self._store = store
        self._here: BaseStore | None = None
        self._keep_versions = keep_versions
        self._keep_days = keep_days
        self._episode_tokens = episode_tokens
        self._episode_days = episode_days
        self._ttl = ttl
        self._guarded: ReadOnlyStore | None = None
        self._of = lru_cache(_MOST_RECENT)(self._make)

    def of(self, user: UserId, store: BaseStore | None) -> UserMemory:
        """Return the memory of a person.

        Args:
            user: id of the person.
            store: store of the host graph, used if this memory has no store of its own.

        Raises:
            ConfigurationError: The user is empty, not an id, or has the id of an anonymous thread.
        """
        name = name_user(user)
        if name.startswith(AnonymousUser.PREFIX) and not isinstance(user, AnonymousUser):
            message = (
                f"The user {name!r} cannot be used in a conversation: ids that begin with "
                f"{AnonymousUser.PREFIX!r} are those of threads without a user. Give another id, "
                "or use `ConversationMemory.users()` to look after such a memory."
            )
            raise ConfigurationError(message)
        return self._of(self._choose_store(store), name)

    def _make(self, store: BaseStore, name: str) -> UserMemory:
        return UserMemory(
            store,
            self.namespace,
            name,
            keep_versions=self._keep_versions,
            keep_days=self._keep_days,
            episode_tokens=self._episode_tokens,
            episode_days=self._episode_days,
            ttl=self._ttl,
            patience=store_seconds,
        )

    def users(self, store: BaseStore | None) -> Users:
        """Return all who are remembered; the store is as for `of`."""
        return Users(self._choose_store(store), self.namespace, ttl=self._ttl)

    def backlog(self, user: UserId, store: BaseStore | None) -> Backlog:
        """Return the backlog of a person; the arguments are as for `of`."""
        bank = self.of(user, store).bank
        found = backlog_of(bank.store, bank.namespace)
        self.seen.add(found)
        return found

    def _choose_store(self, store: BaseStore | None) -> BaseStore:
        chosen = self._store or store or self._here
        if chosen is None:
            chosen = self._here = InMemoryStore()
        if not self.read_only:
            return chosen
        if self._guarded is None or self._guarded.store is not chosen:
            self._guarded = ReadOnlyStore(chosen)
        return self._guarded
