"""The newest messages of a user and their assistant, verbatim, in pages of a store.

| namespace, below the user's | key | value |
|---|---|---|
| episodes | "contents" | `pages`: key, digest, tokens, newest day of each; `next`: next number |
| episodes | a page's key | `said`: messages, in the order in which they were folded |
| episodes | "waiting" | `said`: messages that are not folded yet, in the order of their turns |

Pages and contents are written in one step with the memory that their messages were folded into, so
that all listed pages exist, and no message is kept twice. A process caches pages by their digests.
What waits is written as soon as it is observed, so that every process finds it.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from hashlib import sha256
from itertools import chain
from json import dumps
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import TypeAdapter

from memagent_graph.errors import BadRecordError
from memagent_graph.evidence.statements import drop_statements
from memagent_graph.memory.store import Tries
from memagent_graph.text.terms import terms
from memagent_graph.text.tokens import EstimatingTokenizer

if TYPE_CHECKING:
    from collections.abc import (
        Callable,
        Collection,
        Container,
        Iterable,
        Iterator,
        Mapping,
        Sequence,
    )
    from types import EllipsisType

    from langgraph.store.base import PutOp

    from memagent_graph.memory.items import Place, Records
    from memagent_graph.memory.store import Value

_MOST = 1 << 25
"""Size of the cached pages of all people, in code points."""

_counter = EstimatingTokenizer()


@dataclass(frozen=True, slots=True)
class KeptMessage:
    """One message, its time in ISO 8601."""

    id: str
    thread: str
    at: str
    speaker: str
    text: str

    @property
    def day(self) -> str:
        """The date, without the time."""
        return self.at[:10]

    @property
    def own_id(self) -> str:
        """The id that it has in its thread."""
        return own_id(self.id, self.thread)


def own_id(key: str, thread: str) -> str:
    """Return the id in its thread of a message whose id another thread had used, or as it is."""
    return key.removesuffix(f" in {thread}")


@dataclass(frozen=True, slots=True)
class KeepFilter:
    """The rules of what is kept: what `redact` leaves, without statements with a word of `never`.

    `banned` are the topics of `never`; an instruction without any bans every text.
    """

    redact: Callable[[str], str]
    never: str
    banned: frozenset[str]

    def clean(self, text: str) -> str:
        """Return a text as it is kept."""
        return self.drop(self.redact(text))

    def allows(self, text: str) -> bool:
        """Whether nothing in a redacted text is banned."""
        return self.drop(text) == text

    def drop(self, text: str) -> str:
        """Return a redacted text without banned statements."""
        if not self.banned:
            return "" if self.never else text
        if self.banned.isdisjoint(terms(text)):
            return text
        return drop_statements(text, lambda said: not self.banned.isdisjoint(said))[0]


@dataclass(frozen=True, slots=True)
class Recorded:
    """A message of a thread as it was recorded, with the checkpoint in which it was seen, or ""."""

    id: str
    digest: str
    checkpoint: str = field(default="", compare=False)


class Branch(NamedTuple):
    """Where a thread is now: its checkpoint and the ids of its messages, "" and none if not known.

    `replaced` are recorded messages that it left behind on another branch.
    """

    checkpoint: str = ""
    there: Collection[str] = ()
    replaced: Collection[Recorded] = ()


_said = TypeAdapter(tuple[KeptMessage, ...])


class Page:
    """Messages that are kept together; immutable."""

    def __init__(self, said: Sequence[KeptMessage]) -> None:
        self.said = tuple(said)
        self.size = sum(len(one.text) for one in said)

    @cached_property
    def record(self) -> dict[str, list[dict[str, str]]]:
        """The page as it is stored."""
        return {"said": _said.dump_python(self.said, mode="json")}

    @cached_property
    def digest(self) -> str:
        """A digest of the record."""
        return sha256(dumps(self.record).encode()).hexdigest()[:32]

    @cached_property
    def tokens(self) -> int:
        """Tokens of all texts."""
        return sum(_counter.count(one.text) for one in self.said)

    @cached_property
    def keys(self) -> frozenset[tuple[str, str]]:
        """Threads and ids of the messages."""
        return frozenset((one.thread, one.id) for one in self.said)

    @cached_property
    def texts(self) -> frozenset[tuple[str, str]]:
        """Ids and texts of the messages."""
        return frozenset((one.id, one.text) for one in self.said)

    @cached_property
    def oldest(self) -> str:
        """The first day of a message; "" without one."""
        return min((one.day for one in self.said), default="")

    @classmethod
    def of(cls, record: Any) -> Page | None:
        """Return the page of a record; None if it is not a page."""
        with suppress(KeyError, TypeError, ValueError):
            return cls(_said.validate_python(record["said"]))
        return None


def drop_subjects(text: str, subjects: Iterable[frozenset[str]]) -> str:
    """Return a text without the statements that have all words of a subject."""
    for subject in subjects:
        text = drop_statements(text, subject.issubset)[0]
    return text


class Kept:
    """The kept messages of a user: the same object as long as nothing changes."""

    def __init__(self, pages: Sequence[Page] = (), since: float = 0.0) -> None:
        self.pages = tuple(pages)
        self.since = since
        self.size = sum(page.size for page in pages)

    @property
    def said(self) -> Iterator[KeptMessage]:
        """All messages, in the order in which they were folded."""
        return chain.from_iterable(page.said for page in self.pages)

    def has(self, message: KeptMessage) -> bool:
        """Whether a message is kept with this text."""
        return any((message.id, message.text) in page.texts for page in self.pages)


_lock = threading.Lock()
_cached: OrderedDict[tuple[int, tuple[str, ...]], Kept] = OrderedDict()
"""What was read last of each user in each store; the least recently used goes first."""

_CONTENTS, _WAITING = "contents", "waiting"
_PAGE = 4_000
"""Tokens at which a page is full; each turn writes the last page again."""
_PAGES = 16
"""Least number of pages before the oldest is deleted, so that not too much is deleted at once."""
_MOST_WAITING = 1_000
"""Messages of a user that wait and are found, at most; the oldest go first."""

_ASKED = 10
"""Reads of a cached page within its time to live, so that it does not expire in the store."""

_log = logging.getLogger(__name__)


class EpisodePuts(NamedTuple):
    """Puts that keep or delete messages, for one atomic step with the change of the memory."""

    puts: Sequence[PutOp] = ()
    given: Mapping[Place, Mapping[str, object] | EllipsisType | None] = {}

    def __or__(self, other: EpisodePuts) -> EpisodePuts:
        """Return the step that does both."""
        return EpisodePuts([*self.puts, *other.puts], {**self.given, **other.given})


class Episodes:
    """The kept messages of one user: the newest `tokens` of them, for `days`."""

    def __init__(self, records: Records, tokens: int, days: float | None) -> None:
        self._records = records
        self._place = (*records.namespace, "episodes")
        self._key = (id(records.guard), self._place)
        self._tokens = tokens
        self._days = days
        self._page = max(1, min(_PAGE, tokens // _PAGES))
        # A cached page that is never read would expire in the store.
        lives = records.lives
        self._fresh = math.inf if lives is None else 60 * lives / _ASKED

    @property
    def since(self) -> str:
        """The first day whose messages may still be used; "" for any."""
        if self._days is None:
            return ""
        return (datetime.now(UTC) - timedelta(days=self._days)).date().isoformat()

    @property
    def off(self) -> bool:
        """Whether no messages are kept."""
        return not self._tokens

    async def read(self) -> Kept:
        """Return the kept messages, with one round trip if this process has cached the pages."""
        return (await self.read_all())[0]

    async def read_all(self, *, empty: bool = False) -> tuple[Kept, Sequence[KeptMessage]]:
        """Return the kept messages, and those that wait; one that is taken back has no text."""
        if empty or self.off:
            return Kept(), ()
        contents = await self._contents()
        pages = tuple((await self._load(contents.listed)).values())
        with _lock:
            kept = _cached.pop(self._key, None) or Kept(since=monotonic())
            if kept.pages != pages:
                kept = Kept(pages, kept.since if self._is_fresh(kept) else monotonic())
            _cached[self._key] = kept
            while len(_cached) > 1 and sum(one.size for one in _cached.values()) > _MOST:
                _cached.popitem(last=False)
        return kept, contents.waiting.said

    async def wait(
        self, said: Sequence[KeptMessage], gone: Callable[[KeptMessage], bool] = lambda _: False
    ) -> None:
        """Let every process find messages that are not folded yet, and no longer those gone."""
        now = {(one.thread, one.id) for one in said}
        async for _ in Tries("What is kept of a user's messages"):
            contents = await self._contents()
            before = contents.waiting.said
            left = [one for one in before if not gone(one) and (one.thread, one.id) not in now]
            step = self._step_waiting(contents, [*left, *said])
            if (*left, *said) == before or await self._records.commit(*step):
                return

    def _step_waiting(self, contents: _EpisodeContents, said: Sequence[KeptMessage]) -> EpisodePuts:
        value = Page(said[-_MOST_WAITING:]).record if said else None
        put = self._records.put(self._place, _WAITING, value)
        return EpisodePuts([put], {(self._place, _WAITING): contents.waits})

    def _is_fresh(self, kept: Kept) -> bool:
        """Whether cached pages need not be read again, so that they live on in the store."""
        return monotonic() - kept.since < self._fresh

    async def keep(
        self, said: Iterable[KeptMessage], *, new: Container[str], clean: Callable[[str], str]
    ) -> EpisodePuts:
        """Return the step that changes kept messages, and keeps those whose ids are `new`.

        Messages have their current texts; kept ones with an empty text are deleted. `clean` returns
        the part of a text that may be kept.
        """
        contents = await self._contents()
        now = {} if self.off else {(one.thread, one.id): one for one in said}
        pages, since = await self._load(contents.listed), self.since

        def change(one: KeptMessage) -> KeptMessage | None:
            left = now.pop((one.thread, one.id), None) or _with_text(one, clean(one.text))
            return left if left.text and left.day >= since else None

        changed = _change_all(
            {
                key: page
                for key, page in pages.items()
                if page.oldest < since
                or not page.keys.isdisjoint(now)
                or any(clean(one.text) != one.text for one in page.said)
            },
            change,
        )
        more: dict[str, list[KeptMessage]] = {}
        last, number = (contents.listed[-1].key if contents.listed else ""), contents.next
        newest = changed.get(last) or pages.get(last)
        said, room = ([], 0) if newest is None else ([*newest.said], self._page - newest.tokens)
        for one in now.values():
            if one.id not in new or not one.text or one.day < since:
                continue
            if room <= 0:
                last, number = f"page-{number:09}", number + 1
                said, room = [], self._page
            said.append(one)
            room -= _counter.count(one.text)
            more[last] = said
        changed |= {key: Page(said) for key, said in more.items()}
        return self._step(contents, changed, number)

    async def remove(self, ids: Collection[str], thread: str | None = None) -> int:
        """Delete messages of a thread, or of any, and return their number."""
        return await self._change(
            lambda one: None if one.own_id in ids and thread in (None, one.thread) else one
        )

    async def expire(self, *, preview: bool = False) -> int:
        """Delete messages that are older than `days`, or only count them; return their number."""
        since = self.since
        return await self._change(lambda one: None if one.day < since else one, preview=preview)

    def drop(self) -> None:
        """Empty the cache, after everything was deleted."""
        _cached.pop(self._key, None)

    async def drop_about(self, subject: frozenset[str]) -> list[str]:
        """Delete the statements that have all words of a subject, and return them."""
        gone: list[str] = []

        def change(one: KeptMessage) -> KeptMessage | None:
            text, dropped = drop_statements(one.text, subject.issubset)
            gone.extend(dropped)
            return _with_text(one, text) if text else None

        await self._change(change)
        return gone

    async def _change(
        self, change: Callable[[KeptMessage], KeptMessage | None], *, preview: bool = False
    ) -> int:
        """Change each message, or delete it for None; return the number of those deleted."""
        async for _ in Tries("What is kept of a user's messages"):
            contents = await self._contents()
            pages = {**await self._load(contents.listed), _WAITING: contents.waiting}
            changed = _change_all(pages, change)
            gone = sum(len(pages[key].said) - len(page.said) for key, page in changed.items())
            if preview:
                return gone
            waiting = changed.pop(_WAITING, None)
            step = self._step(contents, changed, contents.next)
            if waiting is not None:
                step |= self._step_waiting(contents, waiting.said)
            if not step.puts or await self._records.commit(*step):
                await self.read()
                break
        return gone

    def _step(
        self, contents: _EpisodeContents, changed: Mapping[str, Page], number: int
    ) -> EpisodePuts:
        rows = {row.key: row for row in contents.listed}
        rows |= {key: _row(key, page) for key, page in changed.items()}
        left, since, kept = self._tokens, self.since, list[_Listed]()
        for row in sorted(rows.values(), reverse=True):
            left -= row.tokens
            if left < 0 and (kept or self.off):
                break
            if row.newest and row.newest >= since:
                kept.append(row)
        keys, put = {row.key for row in kept}, self._records.put
        puts = [put(self._place, key, page.record) for key, page in changed.items() if key in keys]
        puts += [put(self._place, key, None) for key in rows if key not in keys]
        if not puts:
            return EpisodePuts()
        after = {"pages": [[*row] for row in reversed(kept)], "next": number}
        puts.append(put(self._place, _CONTENTS, after))
        return EpisodePuts(puts, {(self._place, _CONTENTS): contents.record})

    async def _contents(self) -> _EpisodeContents:
        # What is folded meanwhile is in both; it would be in neither the other way round.
        places = [(self._place, _WAITING), (self._place, _CONTENTS)]
        found, value = await self._records.values(places)
        waiting = Page.of(found) or Page(())
        waits = ... if isinstance(found, BadRecordError) else found
        if value is None:
            return _EpisodeContents(None, [], 0, waits, waiting)
        with suppress(KeyError, TypeError, ValueError):
            if isinstance(value, dict):
                listed = _pages.validate_python(value["pages"])
                return _EpisodeContents(value, listed, int(value["next"]), waits, waiting)
        _log.warning(
            "The list of a user's messages cannot be read; it is rebuilt from their pages."
        )
        items = [item async for item in self._records.scan(self._place)]
        sound = [item for item in items if not isinstance(item, BadRecordError)]
        pages = {item.key: Page.of(item.value) for item in sound if item.key != _WAITING}
        listed = [_row(key, page) for key, page in sorted(pages.items()) if page]
        number = 1 + int(listed[-1].key.rpartition("-")[2]) if listed else 0
        return _EpisodeContents(..., listed, number, waits, waiting)

    async def _load(self, listed: Sequence[_Listed]) -> dict[str, Page]:
        """Load pages by key; unreadable ones are logged and skipped."""
        kept = _cached.get(self._key, Kept())
        known = {page.digest: page for page in kept.pages} if self._is_fresh(kept) else {}
        found = {row.key: known.get(row.digest) for row in listed}
        missing = [row for row in listed if found[row.key] is None]
        values = await self._records.values([(self._place, row.key) for row in missing])
        for row, value in zip(missing, values, strict=True):
            found[row.key] = Page.of(value)
            if found[row.key] is None and value is not None:
                _log.warning("Page %r of a user's messages cannot be read; it is skipped.", row.key)
        return {key: page for key, page in found.items() if page is not None}


def _with_text(said: KeptMessage, text: str) -> KeptMessage:
    return said if said.text == text else replace(said, text=text)


def _change_all(
    pages: Mapping[str, Page], change: Callable[[KeptMessage], KeptMessage | None]
) -> dict[str, Page]:
    """Return the pages that change, by their keys, without the messages that become None."""
    changed: dict[str, Page] = {}
    for key, page in pages.items():
        left = [now for one in page.said if (now := change(one)) is not None]
        if left != [*page.said]:
            changed[key] = Page(left)
    return changed


class _Listed(NamedTuple):
    """A page's entry in the contents."""

    key: str
    digest: str
    tokens: int
    newest: str


_pages = TypeAdapter(list[_Listed])


class _EpisodeContents(NamedTuple):
    """The record (`...` if it cannot be read), pages, next page's number, and what waits."""

    record: Value | EllipsisType | None
    listed: Sequence[_Listed]
    next: int
    waits: Value | EllipsisType | None
    waiting: Page


def _row(key: str, page: Page) -> _Listed:
    newest = max((one.day for one in page.said), default="")
    return _Listed(key, page.digest, page.tokens, newest)
