"""Messages that are not folded yet: they wait here, and are folded after the reply."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import threading
from collections import OrderedDict
from contextvars import Context
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from time import monotonic
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakSet

from langchain_core.messages import HumanMessage
from langgraph.store.memory import InMemoryStore

from memagent_graph.conversation.episodes import Branch
from memagent_graph.conversation.messages import as_message, record_message, seen_at
from memagent_graph.conversation.proposal import change_proposals
from memagent_graph.conversation.thread import AnonymousUser
from memagent_graph.conversation.user_memory import Changed, UserMemory
from memagent_graph.errors import BadRecordError, ConfigurationError
from memagent_graph.memory.items import check_namespace, name_user
from memagent_graph.memory.store import StoreGuard, Tries, guard_of
from memagent_graph.memory.stores import ReadOnlyStore
from memagent_graph.sync import at_exit, find_held_up_loop, find_loop, run_on, soon
from memagent_graph.templates import plural

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence

    from langchain_core.messages import BaseMessage
    from langgraph.store.base import BaseStore

    from memagent_graph.conversation.episodes import KeptMessage, Recorded
    from memagent_graph.conversation.form import NotesForm
    from memagent_graph.conversation.messages import Redact
    from memagent_graph.conversation.prompt import Reminders
    from memagent_graph.memory.items import UserId

    FoldWaiting = Callable[[Sequence[BaseMessage], bool], Awaitable[Collection[str]]]

_MOST_AT_ONCE = 64
"""Users whose messages are folded at once, in the background of one process."""
_MOST_USERS = 10_000
"""Users of one store that a process knows, at most; the one who was silent longest goes first."""
_MOST_THREADS = 100
"""Threads of one user of which a process knows what it has seen."""
_MOST_SEEN = 2_000
"""Messages of one thread that a process knows; beyond that, the oldest go that do not wait."""
_AGAIN = 1.0
"""Seconds after which messages are due again that their thread did not have yet."""
_MOST_RECENT = 16
"""Users whose `UserMemory` is made once for several calls of a turn."""
_TICK = 0.02
"""Seconds between two looks whether a fold is done, or its event loop no longer runs."""
_LAST_SECONDS = 10.0
"""Seconds that the end of the process waits for what is not folded yet."""

_log = logging.getLogger(__name__)


@dataclass
class _ThreadBacklog:
    """A thread with the messages that this process has seen, by their ids; those done are None.

    `removed` are ids of those that left it, or were taken back, and did not come again. `fold`
    returns the ids of those that wait on; its second argument says whether none may.
    """

    fold: FoldWaiting | None = None
    seen: dict[str, tuple[Recorded, BaseMessage | None]] = field(default_factory=dict)
    removed: set[str] = field(default_factory=set)
    due: float = math.inf

    @property
    def waiting(self) -> list[BaseMessage]:
        """The messages that wait, in order."""
        return [message for _, message in self.seen.values() if message is not None]


class Backlog:
    """The waiting messages of one user; one task folds them, thread by thread.

    Messages that are due are folded on the event loop that added the last of them, whose
    connections the model and the store may hold, or else on the loop of synchronous code. Safe to
    use from any thread. `last_seen` is the memory as this process last saw it, `recalled` what
    models are shown in the views of threads.
    """

    def __init__(self) -> None:
        self.last_seen = ""
        self.recalled: OrderedDict[tuple[str, str, str], Reminders] = OrderedDict()
        self._lock = threading.RLock()
        self._threads: OrderedDict[str, _ThreadBacklog] = OrderedDict()
        self._home: asyncio.AbstractEventLoop | None = None
        self._busy: asyncio.AbstractEventLoop | None = None
        self._failed = False
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def waits(self) -> int:
        """Number of waiting messages."""
        with self._lock:
            return sum(len(one.waiting) for one in self._threads.values() if one.fold)

    def list_seen(self, thread: str) -> dict[str, tuple[Recorded, BaseMessage | None]]:
        """Return the messages of a thread that this process has seen; None for those done."""
        with self._lock:
            return {**self._of(thread).seen}

    def list_removed(self, thread: str) -> set[str]:
        """Return the ids of messages that left a thread, and did not come again."""
        with self._lock:
            return {*self._of(thread).removed}

    def _of(self, thread: str) -> _ThreadBacklog:
        return self._threads.setdefault(thread, _ThreadBacklog())

    def see(self, thread: str, found: Mapping[Recorded, BaseMessage | None]) -> set[str]:
        """Let messages wait that are new, or say something else now, and None of those given so.

        Returns the ids of the new ones.
        """
        with self._lock:
            one = self._of(thread)
            self._threads.move_to_end(thread)
            known = {known for known, _ in one.seen.values()}
            new = {it.id for it in found if it not in known}
            one.seen.update((it.id, (it, m)) for it, m in found.items() if it.id in new or not m)
            one.removed -= new
            done = [key for key, (_, message) in one.seen.items() if not message]
            for gone in done[1 : 1 + len(one.seen) - _MOST_SEEN]:  # the first begins it
                del one.seen[gone]
            one.fold = one.fold if one.waiting else None  # it holds the store
            idle = [name for name, other in self._threads.items() if not other.fold]
            for name in idle[: max(0, len(self._threads) - _MOST_THREADS)]:
                del self._threads[name]
        return new

    def add(
        self,
        thread: str,
        fold: FoldWaiting,
        messages: Mapping[Recorded, BaseMessage],
        seconds: float,
    ) -> set[str]:
        """Let the new ones of a thread's messages wait, due in some seconds; return their ids."""
        with self._lock:
            one, now = self._of(thread), monotonic()
            one.due = one.due if one.fold and one.due <= now else now + seconds
            one.fold, self._home, self._failed = fold, find_loop(), False
            new = self.see(thread, messages)
        soon(self._arm)
        return new

    def schedule(self, thread: str, seconds: float) -> None:
        """Let what waits of a thread be due so many seconds from now."""
        with self._lock:
            self._of(thread).due = monotonic() + seconds
        soon(self._arm)

    def remove(self, ids: Collection[str], thread: str) -> None:
        """Remove messages of a thread: they wait again if they are added again."""
        with self._lock:
            one = self._of(thread)
            for key in ids:
                one.seen.pop(key, None)
                self.recalled.clear()
            one.removed.update(ids)
            self.see(thread, {})

    def settle(self, ids: Collection[str], thread: str | None) -> list[tuple[str, BaseMessage]]:
        """Let messages, of any thread for None, wait no longer; return them and their threads."""
        settled: list[tuple[str, BaseMessage]] = []
        with self._lock:
            self.recalled.clear()
            for name in [*self._threads] if thread is None else [thread]:
                found = {one: m for one, m in self._of(name).seen.values() if m and one.id in ids}
                settled += [(name, message) for message in found.values()]
                self.see(name, dict.fromkeys(found))
        return settled

    async def drop(self) -> None:
        """Forget all that waits; return when nothing is being folded."""
        with self._lock:
            self._threads.clear()
        await self._others_end(None)
        self.last_seen = ""
        self.recalled.clear()

    async def fold(self) -> int:
        """Fold all waiting messages, due or not; return how many still wait."""
        if self.waits:
            folding = self._fold_until(math.inf, find_held_up_loop())
            task = asyncio.get_running_loop().create_task(folding, context=Context())
            _tasks.add(task)
            task.add_done_callback(_tasks.discard)
            await asyncio.wait([task])
        return self.waits

    async def _fold_until(self, due: float, still: asyncio.AbstractEventLoop | None = None) -> None:
        """Fold what is due by then (`monotonic`), after others who do so at this moment.

        Nobody can be waited for on the loop `still`, which stands still meanwhile.
        """
        await self._others_end(still)
        self._busy = asyncio.get_running_loop()
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
                    done = {id(one) for one in messages if one.id not in early}
                    with self._lock:  # none that was edited meanwhile
                        known = self.list_seen(thread).values()
                        self.see(thread, {one: None for one, m in known if id(m) in done})
                    if early:
                        self.schedule(thread, _AGAIN)
        except asyncio.CancelledError:  # this event loop ends: another goes on
            soon(self._arm)
            raise
        finally:
            self._busy = None

    async def _others_end(self, still: asyncio.AbstractEventLoop | None) -> None:
        # An event would be one of this loop; the others may be on another one, which may end.
        while (busy := self._busy) not in (None, still) and busy.is_running():  # noqa: ASYNC110
            await asyncio.sleep(_TICK)

    def _due(
        self, due: float, failed: set[str]
    ) -> tuple[str, FoldWaiting, list[BaseMessage]] | None:
        with self._lock:
            for thread, one in self._threads.items():
                if one.fold and one.due <= due and thread not in failed:
                    return thread, one.fold, one.waiting
        return None

    def _arm(self) -> None:
        """Set the timer to when something is due; on the loop of synchronous code."""
        if self._timer is not None:
            self._timer.cancel()
        with self._lock:
            first = min((o.due for o in self._threads.values() if o.fold), default=math.inf)
        if self._task is None and not self._failed and first < math.inf:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(0.0, first - monotonic()), self._begin)

    def _begin(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._fold_due())

    async def _fold_due(self) -> None:
        try:
            async with _turns:
                if not await run_on(self._home, lambda: self._fold_until(monotonic())):
                    await self._fold_until(monotonic())
        finally:
            self._task = None
            self._arm()


async def find_changed(
    personal: UserMemory, thread: str, messages: Sequence[BaseMessage], redact: Redact
) -> list[Changed]:
    """Return those of some messages that were not folded, or said something else then.

    A message is known by its id in all threads of the user. One of another thread that says
    something else is another message, and has an id of its own here. What was seen before the
    user was forgotten is not folded again.
    """
    keys = [key for m in messages for key in (str(m.id), f"{m.id} in {thread}")]
    places = [personal.forgotten, *((personal.said, key) for key in keys)]
    last, *values = await personal.bank.values(places)
    since = str(last.get("at", "")) if isinstance(last, dict) else ""
    found, skipped = [], False
    for message, *known in zip(messages, values[::2], values[1::2], strict=True):
        if since and isinstance(message, HumanMessage):
            skipped = "" < seen_at(message) <= since
        own = record_message(message, redact)
        for key, value in zip((own.id, f"{own.id} in {thread}"), known, strict=True):
            if isinstance(value, BadRecordError) or (value or {}).get("digest") == own.digest:
                break
            if value is None or value.get("thread") == thread:
                same = message.model_copy(update={"id": key})
                found += [] if skipped else [Changed(same, replace(own, id=key), value)]
                break
    return found


async def record_said(
    personal: UserMemory, thread: str, message: BaseMessage, redact: Redact
) -> None:
    """Record a message as folded that will not be."""
    async for _ in Tries(f"The memory of {personal.user!r}"):
        mark = await personal.read_mark(thread)
        changed = await find_changed(personal, thread, [message], redact)
        step = personal.put_said(thread, mark, changed, Branch())
        if not changed or await personal.bank.commit(*step):
            return


async def fold_all(backlogs: Iterable[Backlog]) -> int:
    """Fold all waiting messages of these; return how many still wait."""
    turns = asyncio.Semaphore(_MOST_AT_ONCE)

    async def fold(backlog: Backlog) -> int:
        async with turns:
            return await backlog.fold()

    return sum(await asyncio.gather(*map(fold, [*backlogs])))


def _begin_anew() -> None:
    """Start anew in a forked child: waiting messages are the parent's, and its threads are gone."""
    global _lock, _turns
    _lock, _turns = threading.Lock(), asyncio.Semaphore(_MOST_AT_ONCE)
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
_turns = asyncio.Semaphore(_MOST_AT_ONCE)  # of the loop of synchronous code
_everyone: WeakSet[UserMemories] = WeakSet()
_tasks: set[asyncio.Task[object]] = set()  # an event loop's are weak
os.register_at_fork(after_in_child=_begin_anew)
at_exit(_fold_the_rest)


class UserMemories:
    """The people whom a `ConversationMemory` remembers; `seen` are their backlogs here."""

    def __init__(
        self,
        store: BaseStore | None,
        namespace: Sequence[str],
        *,
        read_only: bool,
        ttl: float | None,
        **limits: float | None,
    ) -> None:
        self.read_only = read_only
        self.namespace = check_namespace(namespace)
        self.seen: WeakSet[Backlog] = WeakSet()
        _everyone.add(self)
        self._store = store
        self._here = InMemoryStore()
        self.ttl = ttl
        self._guarded = lru_cache(maxsize=1)(ReadOnlyStore)
        how: Any = {**limits, "ttl": ttl}
        self._of = lru_cache(_MOST_RECENT)(
            lambda at, *of: UserMemory(at, *of, patience=lambda: guard_of(at).seconds, **how)
        )

    def of(self, user: UserId, store: BaseStore | None) -> UserMemory:
        """Return the memory of a user; `store` is the host graph's, used if there is no own one.

        Raises `ConfigurationError` if the user is no id, or has the id of an anonymous thread.
        """
        name = name_user(user)
        if name.startswith(AnonymousUser.PREFIX) and not isinstance(user, AnonymousUser):
            message = (
                f"The user {name!r} cannot be used in a conversation: ids that begin with "
                f"{AnonymousUser.PREFIX!r} are those of threads without a user. Give another id, "
                "or use `ConversationMemory.users()` to look after such a memory."
            )
            raise ConfigurationError(message)
        return self._of(self.choose_store(store), self.namespace, name)

    def backlog(self, user: UserId, store: BaseStore | None) -> Backlog:
        """Return the backlog of a user in a store, the same at each call; see `of`."""
        bank = self.of(user, store).bank
        with _lock:
            users = _backlogs.setdefault(guard_of(bank.store), OrderedDict())
            found = users.pop(bank.namespace, None) or Backlog()
            users[bank.namespace] = found
            gone = users.popitem(last=False)[1].waits if len(users) > _MOST_USERS else 0
        if gone:
            what = plural(gone, "message")
            _log.warning("Too many users wait to be remembered: %s will not be folded.", what)
        self.seen.add(found)
        return found

    async def drop_messages(
        self,
        user: UserId,
        ids: Collection[str],
        thread: str | None,
        store: BaseStore | None,
        redact: Redact,
        form: NotesForm,
    ) -> int:
        """Do as `ConversationMemory.aforget_messages`: what waits is recorded as folded."""

        def goes(one: KeptMessage) -> bool:
            return one.own_id in ids and thread in (None, one.thread)

        own, personal = self.backlog(user, store).settle(ids, thread), self.of(user, store)
        kept, waiting = await personal.episodes.read_all()
        others = [(one.thread, as_message(one)) for one in waiting if goes(one)]
        for name, message in [*others, *own]:
            await record_said(personal, name, message, redact)
        await change_proposals(
            personal, lambda one: one.without(ids) if thread in (None, one.thread) else one
        )
        number = await personal.episodes.remove(ids, thread)
        said = [one for page in kept.pages for one in page.said]
        if words := [one.text for one in said if goes(one)]:
            left = [one.text for one in said if not goes(one)]
            await personal.drop(partial(form.drop_said, words, left), by="application")
        return number

    async def drop_about(
        self, user: UserId, subject: str, store: BaseStore | None, form: NotesForm, **how: Any
    ) -> list[str]:
        """Forget a subject, once what waits is folded: in notes, kept messages and proposals."""
        backlog, personal = self.backlog(user, store), self.of(user, store)
        await backlog.fold()
        wanted = form.find_topics(subject)
        gone = await personal.drop(partial(form.drop, subject=wanted), **how)
        gone += await personal.episodes.drop_about(wanted)
        await change_proposals(personal, lambda one: one.without(subjects=[wanted]))
        backlog.recalled.clear()
        return [*dict.fromkeys(gone)]

    def choose_store(self, store: BaseStore | None) -> BaseStore:
        """Return the store to use: its own, that of the host graph, or one in this process."""
        chosen = self._store or store or self._here
        return self._guarded(chosen) if self.read_only else chosen
