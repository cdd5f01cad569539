"""Everyone who is remembered in a store: listed, searched, kept short, exported and forgotten."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from langgraph.store.base import ListNamespacesOp, MatchCondition

from memagent_graph.errors import BadRecordError
from memagent_graph.memory import moving
from memagent_graph.memory.erasing import erase
from memagent_graph.memory.personal import (
    MEMORY,
    PersonalMemory,
    nothing_of,
    place_of,
    user_of,
)
from memagent_graph.memory.records import NAMESPACE, Records, check_namespace
from memagent_graph.memory.version import MemoryVersion
from memagent_graph.sync import blocking

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence

    from langgraph.store.base import BaseStore

    from memagent_graph.memory.atomic import Value
    from memagent_graph.memory.changes import Change
    from memagent_graph.memory.history import History
    from memagent_graph.memory.personal import ForgottenUser

    Stored = Value | BadRecordError | None

_PAGE = 50_000
"""Namespaces that are asked for at once: stores go over all of them for each page."""
_AT_ONCE = 200
"""Users whose memories are loaded at once."""
_KNOWN = ("versions", "heads", "readings", "members", "leases", "threads", "changes", "forgotten")
"""Namespaces of a person's that hold nothing which was said, beside the memory itself."""

_log = logging.getLogger(__name__)


class Remembered(NamedTuple):
    """One user.

    Attributes:
        user: their id.
        version: the newest of their memory; None if there is none yet, or it cannot be read.
    """

    user: str
    version: MemoryVersion | None


class Found(NamedTuple):
    """A line that a search found.

    Attributes:
        user: whose.
        text: a line of the memory, or a message that was kept.
    """

    user: str
    text: str


class Pruned(NamedTuple):
    """What retention deleted.

    Attributes:
        versions: how many old versions of each user.
        messages: how many messages of each user that were kept word for word.
        forgotten: users who were forgotten.
        left: where deleted text may still be, and what to do about it; empty if nowhere.
    """

    versions: dict[str, int]
    messages: dict[str, int]
    forgotten: list[str]
    left: str


class Held(NamedTuple):
    """What is stored of a user.

    Attributes:
        items: how many items, in all.
        versions: how many versions of their memory are among them.
        threads: ids of the threads whose messages were folded. A checkpointer may hold them.
    """

    items: int
    versions: int
    threads: tuple[str, ...]


def finder(words: str) -> Callable[[str], bool]:
    """Whether a text has all of these words, anywhere; capitals do not matter."""
    wanted = words.casefold().split()
    return lambda text: all(word in text.casefold() for word in wanted)


class Users:
    """The memories of conversations in a store, for those who run the chatbot.

    Each method has a twin for async code whose name begins with an a.

    Args:
        store: any LangGraph store.
        namespace: that of the `ConversationMemory`.
        ttl: minutes that what is written lives on when it is not read; None for the store's
            default.
        patience: see `MemoryBank`.

    Examples:
        >>> from langgraph.store.memory import InMemoryStore
        >>> from memagent_graph import ConversationMemory
        >>> from memagent_graph.memory.users import Users
        >>> store = InMemoryStore()
        >>> said = [("human", "I moved to Bern.")]
        >>> memory = ConversationMemory("openai:gpt-4o", store=store)
        >>> memory.save(said, user="ann", thread="monday")
        'I moved to Bern.'
        >>> users = Users(store)
        >>> [(user, version.text) for user, version in users.list()]
        [('ann', 'I moved to Bern.')]
        >>> version = users.edit("ann", "Lives in Berlin.", by="support")
        >>> [change.by for change in users.history("ann")[1]]
        ['support', 'conversation']
        >>> done = users.forget("ann", by="support")
    """

    def __init__(
        self,
        store: BaseStore,
        namespace: Sequence[str] = NAMESPACE,
        *,
        ttl: float | None = None,
        patience: Callable[[], float] | None = None,
    ) -> None:
        self.store = store
        self.namespace = check_namespace(namespace)
        self._records = Records(store, self.namespace, ttl, patience)
        self._ttl = ttl
        self._patience = patience

    def of(self, user: str) -> PersonalMemory:
        """The memory of one user.

        Raises:
            ConfigurationError: The user is empty.
        """
        return PersonalMemory(
            self.store, self.namespace, user, ttl=self._ttl, patience=self._patience
        )

    async def anames(self) -> list[str]:
        """The ids of all users of whom something is stored, sorted."""
        below = MatchCondition("prefix", ("*", *self.namespace))
        depth = len(place_of("?", self.namespace))
        found: set[str] = set()
        for offset in range(0, 2**62, _PAGE):
            page = ListNamespacesOp((below,), max_depth=depth, limit=_PAGE, offset=offset)
            (places,) = await self._records.items([page])
            found.update(filter(None, (user_of(place, self.namespace) for place in places)))
            if len(places) < _PAGE:
                break
        return sorted(found)

    async def alist(self, users: Iterable[str] | None = None) -> list[Remembered]:
        """Users with their memories, sorted by their ids.

        A memory that cannot be read is logged as a warning that names its user.

        Args:
            users: which; all by default.
        """
        return [found async for found in self._remembered(users)]

    async def asearch(self, words: str, users: Iterable[str] | None = None) -> list[Found]:
        """Lines of memories, and messages that were kept, which have all of these words.

        A user whose id has them is found with each line of their memory. Capitals do not matter.

        Args:
            words: what to look for, with white space between them.
            users: whose memories; those of all by default.
        """
        has = finder(words)
        found: list[Found] = []
        async for user, version in self._remembered(users):
            named = has(user)
            lines = [] if version is None else [*filter(None, version.text.splitlines())]
            known = "\n".join(lines)
            lines += [line for line in await self._said(user) if line not in known]
            found += [Found(user, line) for line in lines if named or has(line)]
        return found

    async def aget(self, user: str) -> MemoryVersion:
        """The memory of a user.

        Raises:
            MemoryNotFoundError: Nothing is remembered of them.
        """
        found = await self.of(user).head()
        if found is None:
            raise nothing_of(user)
        return found

    async def ahistory(self, user: str) -> tuple[History, list[Change]]:
        """The versions of a user's memory, and what was done to it, newest first.

        Raises:
            MemoryNotFoundError: Nothing is remembered of them, and nobody has forgotten them.
        """
        personal = self.of(user)
        versions, changes = await personal.history(), await personal.changes()
        if not versions and not changes:
            raise nothing_of(user)
        return versions, changes

    async def aedit(
        self, user: str, text: str, *, by: str, before: str | None = None
    ) -> MemoryVersion:
        """See `PersonalMemory.edit`."""
        return await self.of(user).edit(text, by=by, before=before)

    async def aheld(self, user: str) -> Held:
        """What is stored of a user."""
        personal, items, versions = self.of(user), 0, 0
        records = personal.bank.records
        async for item in records.scan(records.namespace):
            items += 1
            versions += tuple(item.namespace or ()) == records.versions
        return Held(items, versions, await personal.threads())

    async def aforget(self, user: str, *, by: str) -> ForgottenUser:
        """Delete all that is stored of a user, and what the store's files keep of it.

        `memagent_graph.conversation.threads.aforget` deletes their threads as well.

        Args:
            user: who is to be forgotten.
            by: whom, for the line that stays under a digest of the user's id.
        """
        return await self.of(user).forget(by=by)

    async def aprune(
        self,
        *,
        versions: int | None = None,
        days: float | None = None,
        idle_days: float | None = None,
        users: Iterable[str] | None = None,
        by: str,
        preview: bool = False,
    ) -> Pruned:
        """Delete old versions and messages, and forget users who are long gone.

        Args:
            versions: how many of the newest versions of each memory stay; None for all.
            days: days after which a version goes that a newer one replaced, and a message that
                was kept word for word; None for never.
            idle_days: days after which a user is forgotten whose memory has not changed; None
                for never.
            users: whose memories; those of all by default.
            by: whom, for the lines of those who are forgotten.
            preview: whether to say only what would go.
        """
        limit = None if idle_days is None else _before(idle_days)
        thinned: dict[str, int] = {}
        messages: dict[str, int] = {}
        forgotten: list[str] = []
        async for user, version in self._remembered(users):
            personal = self.of(user)
            if limit is not None and await self._changed(user, version) < limit:
                forgotten.append(user)
                if not preview:
                    await personal.delete(by=by)
                continue
            if version is not None and (
                gone := await personal.thin(versions, days, preview=preview)
            ):
                thinned[user] = gone
            if days is not None and (gone := await personal.thin_messages(days, preview=preview)):
                messages[user] = gone
        changed = not preview and (thinned or messages or forgotten)
        return Pruned(thinned, messages, forgotten, await erase(self.store) if changed else "")

    async def aexport(self, users: Iterable[str] | None = None) -> list[str]:
        """All that is stored of users, as JSON lines.

        Args:
            users: which; all by default.
        """
        lines = []
        for user in await self.anames() if users is None else users:
            lines += await moving.export(self.of(user))
        return lines

    async def aimport(self, lines: Iterable[str], *, by: str) -> list[str]:
        """Store what `export` gave; say of which users. What is there stays as it is.

        Args:
            lines: the JSON lines.
            by: whom, for a line of changes.

        Raises:
            StoreError: A line is none of `export`'s.
        """
        users = moving.by_user(lines)
        for user, own in users.items():
            await moving.import_lines(self.of(user), own, by=by)
        return [*users]

    async def _remembered(self, users: Iterable[str] | None) -> AsyncIterator[Remembered]:
        left = iter(await self.anames() if users is None else users)
        while batch := [*islice(left, _AT_ONCE)]:
            heads = [((*place_of(user, self.namespace), "heads"), MEMORY) for user in batch]
            pointers = await self._records.values(heads, refresh=False)
            keys = [str(p.get("version")) if isinstance(p, dict) else "" for p in pointers]
            places = [
                ((*place_of(user, self.namespace), "versions"), key)
                for user, key in zip(batch, keys, strict=True)
            ]
            values = await self._records.values(places, refresh=False)
            for user, pointer, key, value in zip(batch, pointers, keys, values, strict=True):
                if pointer is None and not await self._any(user):
                    continue  # some stores list namespaces that are empty
                yield Remembered(user, _version(user, pointer, key, value))

    async def _any(self, user: str) -> bool:
        place = place_of(user, self.namespace)
        async for _ in self._records.scan(place):
            return True
        return False

    async def _said(self, user: str) -> list[str]:
        """Messages of a user that were kept."""
        place = place_of(user, self.namespace)
        page = ListNamespacesOp((MatchCondition("prefix", place),), limit=_PAGE)
        (places,) = await self._records.items([page])
        depth = len(place)
        found: list[str] = []
        for at in places:
            if len(at) > depth and at[depth] not in _KNOWN:
                async for item in self._records.scan(tuple(at)):
                    if not isinstance(item, BadRecordError):
                        found += _texts(item.value)
        return found

    async def _changed(self, user: str, version: MemoryVersion | None) -> str:
        """When the memory of a user changed last, ISO 8601, UTC."""
        if version is not None:
            return version.created_at
        times = [
            item.updated_at.astimezone(UTC).isoformat()
            async for item in self._records.scan(place_of(user, self.namespace))
            if not isinstance(item, BadRecordError)
        ]
        return max(times, default="")

    names = blocking(anames)
    list = blocking(alist)
    get = blocking(aget)
    history = blocking(ahistory)
    edit = blocking(aedit)
    held = blocking(aheld)
    forget = blocking(aforget)
    search = blocking(asearch)
    prune = blocking(aprune)
    export = blocking(aexport)
    import_ = blocking(aimport)


def _version(
    user: str,
    pointer: Value | BadRecordError | None,
    key: str,
    value: Value | BadRecordError | None,
) -> MemoryVersion | None:
    """The newest version of a user's memory; what is wrong with it is logged."""
    if pointer is None:
        return None
    try:
        if isinstance(value, dict):
            return MemoryVersion.from_record(value, key)
        error = next((e for e in (pointer, value) if isinstance(e, BadRecordError)), None)
        reason = str(error or f"version {key} is gone.")
    except BadRecordError as error:
        reason = str(error)
    _log.warning(
        "The memory of user %r cannot be read: %s `memagent memory check --user ... --repair` "
        "goes back to what is left of it.",
        user,
        reason,
    )
    return None


def _texts(value: object) -> Iterator[str]:
    """The lines of all texts in a record of messages."""
    if isinstance(value, dict):
        text = value.get("text")
        yield from filter(None, text.splitlines() if isinstance(text, str) else ())
        value = [*value.values()]
    if isinstance(value, list):
        for inner in value:
            yield from _texts(inner)


def _before(days: float) -> str:
    return (datetime.now(UTC) - timedelta(days=days)).isoformat()
