"""Manage the memories of all users in a store: list, search, edit, prune, export and forget."""

from __future__ import annotations

import json
import logging
from contextlib import suppress
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from langgraph.store.base import ListNamespacesOp, MatchCondition

from memagent_graph.conversation.episodes import Page
from memagent_graph.conversation.user_memory import (
    MEMORY,
    MemoryChange,
    UserMemory,
    days_ago,
    put_change,
    unknown_user,
)
from memagent_graph.errors import BadRecordError, StoreError
from memagent_graph.memory.items import (
    NAMESPACE,
    Records,
    UserId,
    check_namespace,
    name_user,
    place_of,
    user_of,
)
from memagent_graph.memory.maintenance import quote, to_markdown
from memagent_graph.memory.stores import erase
from memagent_graph.memory.version import MemoryVersion
from memagent_graph.sync import to_sync

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Sequence

    from langgraph.store.base import BaseStore, PutOp

    from memagent_graph.conversation.user_memory import ForgottenUser
    from memagent_graph.memory.store import Value
    from memagent_graph.memory.version import History


def is_of_users(lines: Iterable[str]) -> bool:
    """Whether lines are an export of users, not of a bank."""
    first = next(filter(str.strip, lines), "")
    return first.strip().startswith('{"user":')


def _put(records: Records, row: object, line: str) -> PutOp:
    """The put of an item, which must be below the user's own namespace."""
    match row:
        case {"place": [_, *_] as labels, "key": str(key), "value": dict(value)}:
            sound = all(isinstance(label, str) and label and "." not in label for label in labels)
            namespace = (*records.namespace, *labels)
            if sound and not _is_of_the_bank(records, namespace):
                return records.put(namespace, key, value)
    raise _no_line(line)


def _is_of_the_bank(records: Records, namespace: Sequence[str]) -> bool:
    """Whether the bank itself exports the items of a namespace, or nobody does."""
    lists = (records.versions, records.heads, records.readings, records.all_members)
    places = (*lists, records.leases, records.forgotten)
    return any(tuple(namespace[: len(place)]) == place for place in places)


def _parse_line(line: str) -> dict[str, Any]:
    with suppress(ValueError):
        record = json.loads(line)
        if isinstance(record, dict):
            return record
    raise _no_line(line)


def _no_line(line: str) -> StoreError:
    message = (
        f"Not a line of an export of users: {line[:60]!r}. Import a file that "
        "`memagent memory export --user` wrote."
    )
    return StoreError(message)


_PAGE = 50_000
"""Namespaces listed at once; for each page, stores go over all of them."""
_AT_ONCE = 200
"""Users whose memories are loaded at once."""

_log = logging.getLogger(__name__)


class Remembered(NamedTuple):
    """A user with their memory.

    Attributes:
        user: id of the user.
        version: newest version of their memory; None if there is none, or it cannot be read.
    """

    user: str
    version: MemoryVersion | None


class UserMatch(NamedTuple):
    """A search result.

    Attributes:
        user: id of the user.
        text: a line of the memory, or a kept message.
    """

    user: str
    text: str


class Pruned(NamedTuple):
    """The result of pruning.

    Attributes:
        versions: number of old versions deleted, by user.
        messages: number of kept messages deleted, by user.
        forgotten: ids of the users forgotten.
        left: places where deleted text may remain, and what to do about it; "" if there are none.
        marks: number of marks of threads and lines of the log deleted, by user.
    """

    versions: dict[str, int]
    messages: dict[str, int]
    forgotten: list[str]
    left: str
    marks: dict[str, int]


class Held(NamedTuple):
    """Counts of the items that are stored for a user.

    Attributes:
        items: number of all items.
        versions: number of versions of their memory.
        threads: ids of the threads whose messages were folded; a checkpointer may have them.
    """

    items: int
    versions: int
    threads: tuple[str, ...]


def finder(words: str) -> Callable[[str], bool]:
    """Return a function that tests whether a text has all of these words, ignoring case."""
    wanted = words.casefold().split()
    return lambda text: all(word in text.casefold() for word in wanted)


class Users:
    """The memories of conversations in a store, for operators of a chatbot.

    Each method has an async twin whose name begins with an a.

    Args:
        store: any LangGraph store.
        namespace: namespace of the `ConversationMemory`.
        ttl: minutes after which a written item that is not read expires; None for the store's
            default.
        patience: see `MemoryBank`.

    Examples:
        >>> from langgraph.store.memory import InMemoryStore
        >>> from memagent_graph import ConversationMemory
        >>> from memagent_graph.conversation.users import Users
        >>> store = InMemoryStore()
        >>> said = [("human", "I moved to Bern.")]
        >>> memory = ConversationMemory("openai:gpt-4o", store=store)
        >>> said = memory.save(said, user="ann", thread="monday")
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
        self._records = Records(store, self.namespace, ttl=ttl, patience=patience)
        self._ttl = ttl
        self._patience = patience

    def of(self, user: UserId) -> UserMemory:
        """Return the memory object of one user.

        Raises:
            ConfigurationError: The user is empty, or not an id.
        """
        return UserMemory(self.store, self.namespace, user, ttl=self._ttl, patience=self._patience)

    async def anames(self) -> list[str]:
        """Return the ids of all users about whom something is stored, sorted."""
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

    async def alist(self, users: Iterable[UserId] | None = None) -> list[Remembered]:
        """Return users, all by default, with their memories, sorted by id.

        For a memory that cannot be read, a warning that names the user is logged.
        """
        return [found async for found in self._scan_users(users)]

    async def asearch(self, words: str, users: Iterable[UserId] | None = None) -> list[UserMatch]:
        """Return lines of memories, and kept messages, that have all of these words.

        If a user's id has them, all lines of their memory are returned. Case is ignored, and white
        space separates words. All users are searched by default.
        """
        has = finder(words)
        found: list[UserMatch] = []
        async for user, version in self._scan_users(users):
            named = has(user)
            lines = [] if version is None else [*filter(None, version.text.splitlines())]
            known = "\n".join(lines)
            lines += [line for line in await self._list_said(user) if line not in known]
            found += [UserMatch(user, line) for line in lines if named or has(line)]
        return found

    async def aget(self, user: UserId) -> MemoryVersion:
        """Return the newest version of a user's memory.

        Raises:
            MemoryNotFoundError: Nothing is remembered about them.
        """
        found = await self.of(user).head()
        if found is None:
            raise unknown_user(str(user))
        return found

    async def ahistory(self, user: UserId) -> tuple[History, list[MemoryChange]]:
        """Return the versions of a user's memory, and its changes, newest first.

        Raises:
            MemoryNotFoundError: Nothing is remembered about them, and they were never forgotten.
        """
        personal = self.of(user)
        versions, changes = await personal.history(), await personal.changes()
        if not versions and not changes:
            raise unknown_user(str(user))
        return versions, changes

    async def aedit(
        self, user: UserId, text: str, *, by: str, before: str | None = None
    ) -> MemoryVersion:
        """Replace the text of a memory, if its newest version is `before` or that is None."""
        return await self.of(user).edit(text, by=by, before=before)

    async def aheld(self, user: UserId) -> Held:
        """Return counts of what is stored about a user."""
        personal, items, versions = self.of(user), 0, 0
        records = personal.bank
        async for item in records.scan(records.namespace):
            items += 1
            versions += tuple(item.namespace or ()) == records.versions
        return Held(items, versions, await personal.threads())

    async def aforget(self, user: UserId, *, by: str) -> ForgottenUser:
        """Delete everything about a user, and erase it from the store's files.

        Use `memagent_graph.conversation.catch_up.aforget` to delete their threads as well. An entry
        with the author (`by`) stays, under a digest of the user's id.
        """
        return await self.of(user).forget(by=by)

    async def aprune(
        self,
        *,
        versions: int | None = None,
        days: float | None = None,
        idle_days: float | None = None,
        users: Iterable[UserId] | None = None,
        by: str,
        preview: bool = False,
    ) -> Pruned:
        """Delete old versions and messages, and forget inactive users.

        Args:
            versions: number of newest versions of each memory to keep; None for all.
            days: days to keep a replaced version, a message, a line of the log, and the mark that
                says which messages of a thread were folded; None for ever.
            idle_days: days without a change of the memory after which a user is forgotten; None
                for never.
            users: ids of the users; all by default.
            by: author of the change, for the entries of the users forgotten.
            preview: whether only to return what would be deleted.
        """
        limit = None if idle_days is None else days_ago(idle_days)
        done = Pruned({}, {}, [], "", {})
        async for user, version in self._scan_users(users):
            personal = self.of(user)
            if limit is not None and await self._find_last_change(user, version) < limit:
                done.forgotten.append(user)
                if not preview:
                    await personal.delete(by=by)
                continue
            old = await personal.thin(versions, days, preview=preview) if version else 0
            expired = (0, 0) if days is None else await personal.expire(days, preview=preview)
            counts = (done.versions, done.messages, done.marks)
            for found, count in zip(counts, (old, *expired), strict=True):
                if count:
                    found[user] = count
        changed = any(done) and not preview
        return done._replace(left=await erase(self.store)) if changed else done

    async def aexport(
        self, users: Iterable[UserId] | None = None, *, markdown: bool = False
    ) -> list[str]:
        """Return everything stored about users, all by default, as JSON lines.

        Lines of Markdown, which nothing imports, have the notes, their sources, and the messages
        that are kept word for word.
        """
        lines = []
        for user in await self.anames() if users is None else map(name_user, users):
            personal = self.of(user)
            if markdown:
                lines += to_markdown(user, await personal.head())
                for one in (await personal.episodes.read()).said:
                    source = f"- {one.at}, {one.speaker}, message {one.id} of {one.thread}"
                    lines += quote(source, one.text, "  > ")
                continue
            bank = personal.bank
            records, own = bank, await bank.aexport()
            async for item in records.scan(records.namespace):  # `check` names what is unreadable
                if isinstance(item, BadRecordError) or _is_of_the_bank(records, item.namespace):
                    continue
                place = [*item.namespace[len(records.namespace) :]]
                row = {"place": place, "key": item.key, "value": item.value}
                own.append(json.dumps({"item": row}))
            lines += [json.dumps({"user": user}), *own] if own else []
        return lines

    async def aimport(self, lines: Iterable[str], *, by: str) -> list[str]:
        """Store the lines of an `export`, and return the users' ids. Existing records are kept.

        Raises:
            StoreError: A line is not from `export`.
        """
        found: dict[str, tuple[list[str], list[PutOp]]] = {}
        user = ""
        for line in filter(str.strip, lines):
            record = _parse_line(line)
            if isinstance(name := record.get("user"), str) and name:
                user = name
                found.setdefault(user, ([], []))
            elif not user:
                message = f"No user was named before {line[:60]!r}. Import the whole file."
                raise StoreError(message)
            elif "item" in record:
                found[user][1].append(_put(self.of(user).bank, record["item"], line))
            else:
                found[user][0].append(line)
        for user, (versions, puts) in found.items():
            bank = self.of(user).bank
            await bank.aimport(versions)
            for put in puts:
                await bank.commit([put], {(put.namespace, put.key): None})
            change = MemoryChange(datetime.now(UTC).isoformat(), "imported", by)
            await bank.items([put_change(bank, change)])
        return [*found]

    async def _scan_users(self, users: Iterable[UserId] | None) -> AsyncIterator[Remembered]:
        left = iter(await self.anames() if users is None else map(name_user, users))
        while batch := [*islice(left, _AT_ONCE)]:
            places = [place_of(user, self.namespace) for user in batch]
            heads = [((*place, "heads"), MEMORY) for place in places]
            pointers = await self._records.values(heads, refresh=False)
            keys = [str(p.get("version")) if isinstance(p, dict) else "" for p in pointers]
            of = [((*place, "versions"), key) for place, key in zip(places, keys, strict=True)]
            values = await self._records.values(of, refresh=False)
            for user, pointer, key, value in zip(batch, pointers, keys, values, strict=True):
                if pointer is not None or await self._any(user):  # some list empty namespaces
                    yield Remembered(user, _version(user, pointer, key, value))

    async def _any(self, user: str) -> bool:
        place = place_of(user, self.namespace)
        async for _ in self._records.scan(place):
            return True
        return False

    async def _list_said(self, user: str) -> list[str]:
        """The lines of the messages of a user that are kept, or wait for approval."""
        found: list[str] = []
        place = place_of(user, self.namespace)
        for kind in ("episodes", "proposals"):
            async for item in self._records.scan((*place, kind)):
                page = None if isinstance(item, BadRecordError) else Page.of(item.value)
                for one in page.said if page else ():
                    found += filter(None, one.text.splitlines())
        return found

    async def _find_last_change(self, user: str, version: MemoryVersion | None) -> str:
        """The time of the last change of a user's memory, ISO 8601, UTC."""
        place = place_of(user, self.namespace)
        if version is not None:
            place = (*place, "proposals")
        items = [item async for item in self._records.scan(place)]
        times = [
            str(item.value.get("at") or item.updated_at.astimezone(UTC).isoformat())
            for item in items
            if not isinstance(item, BadRecordError)
        ]
        return max([*times, "" if version is None else version.created_at])

    names = to_sync(anames)
    list = to_sync(alist)
    get = to_sync(aget)
    history = to_sync(ahistory)
    edit = to_sync(aedit)
    held = to_sync(aheld)
    forget = to_sync(aforget)
    search = to_sync(asearch)
    prune = to_sync(aprune)
    export = to_sync(aexport)
    import_ = to_sync(aimport)


def _version(
    user: str,
    pointer: Value | BadRecordError | None,
    key: str,
    value: Value | BadRecordError | None,
) -> MemoryVersion | None:
    """The newest version of a user's memory; None, and a warning, if it cannot be read."""
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
        "restores what is left of it.",
        user,
        reason,
    )
    return None
