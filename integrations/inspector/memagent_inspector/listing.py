"""Memories of a store: one that a page is about, one page of them, and what their readings cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from langgraph.store.base import SearchOp

from memagent_graph.errors import BadRecordError, MemoryNotFoundError
from memagent_graph.memory.bank import answers_of
from memagent_graph.memory.items import find_versions
from memagent_graph.memory.version import MemoryVersion
from memagent_graph.readers.base import Usage
from memagent_inspector.history import Coverage

if TYPE_CHECKING:
    from langgraph.store.base import Item

    from memagent_graph.memory.bank import KeptAnswer, MemoryBank

_LOOKED_AT = 200
"""Versions of a reading under way of which the newest is taken, where nothing points to it."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A memory with its newest version; a reading that has not ended is "unfinished"."""

    reference: str
    kind: Literal["memory", "reading", "version", "unfinished"]
    version: MemoryVersion


async def find(bank: MemoryBank, reference: str) -> Subject:
    """Return what a reference leads to."""
    named, read = (await bank.pointers(reference)).values()
    if named is not None or read is not None:
        kind: Literal["memory", "reading"] = "reading" if named is None else "memory"
        return Subject(reference, kind, await bank.aget(reference))
    ids = await bank.keys(bank.members(reference))
    if not ids:
        return Subject(reference, "version", await bank.aget(reference))
    found = await find_versions(bank, ids[-_LOOKED_AT:], refresh=False)
    known = [version for version in found if isinstance(version, MemoryVersion)]
    if not known:
        message = f"No version of {reference!r} can be read."
        raise MemoryNotFoundError(message)
    newest = max(known, key=lambda version: version.created_at)
    return Subject(reference, "unfinished", newest)


Kind = Literal["memories", "readings"]
"""Named memories, or readings without a name."""

ROWS = 50
"""Memories, or users, on a page."""
_AT_ONCE = 200
_MOST_SEEN = 2_000
"""Memories that one request of a search looks at."""


@dataclass(frozen=True, slots=True)
class Row:
    """One memory in a list, or what is remembered of a user.

    Attributes:
        name: of the memory, or the reading's key, or the user's id.
        version: the newest; None if it cannot be read.
        answer: what was answered; None if it was not, or not kept.
        text: why there is no more to show; of a user, a line that a search found, or how the
            memory begins.
    """

    name: str
    version: MemoryVersion | None
    answer: KeptAnswer | None = None
    text: str = ""

    @property
    def coverage(self) -> Coverage | None:
        """How far the document was read."""
        return None if self.version is None else Coverage.of(self.version)


@dataclass(frozen=True, slots=True)
class Listing:
    """Some memories, or users; `seen` were looked at, and the list continues at `next`."""

    rows: list[Row]
    next: int | None
    seen: int


async def list_page(bank: MemoryBank, kind: Kind, words: str = "", start: int = 0) -> Listing:
    """The next page of memories that have all the words.

    Args:
        bank: where they are.
        kind: which ones.
        words: to be found in name, question, answer, document or text, in any case.
        start: how many to pass over.
    """
    wanted = words.casefold().split()
    rows: list[Row] = []
    at, most = start, start + (_MOST_SEEN if wanted else ROWS)
    while len(rows) < ROWS and at < most:
        size = _AT_ONCE if wanted else ROWS
        items = await _window(bank, kind, at, size + 1)
        ended = len(items) <= size
        for row, text in await _rows(bank, items[:size]):
            at += 1
            if all(word in text for word in wanted):
                rows.append(row)
            if len(rows) == ROWS:
                break
        else:
            if ended:
                return Listing(rows, None, at)
    return Listing(rows, at, at)


async def _window(
    bank: MemoryBank, kind: Kind, start: int, size: int
) -> list[Item | BadRecordError]:
    """Pointers to memories; for one that cannot be read, the error."""
    namespace = bank.heads if kind == "memories" else bank.readings
    search = SearchOp(namespace, None, size, start, None, refresh_ttl=False)
    try:
        (found,) = await bank.items([search])
    except BadRecordError as error:
        if size == 1:
            return [error]
        first = await _window(bank, kind, start, size // 2)
        if len(first) < size // 2:
            return first
        return first + await _window(bank, kind, start + size // 2, size - size // 2)
    return [item for item in found if tuple(item.namespace) == namespace]


async def _rows(bank: MemoryBank, items: list[Item | BadRecordError]) -> list[tuple[Row, str]]:
    """Rows, each with the text that a search looks through."""
    ids = [
        "" if isinstance(item, BadRecordError) else str(item.value.get("version")) for item in items
    ]
    found = await find_versions(bank, ids, refresh=False)
    known = [version for version in found if isinstance(version, MemoryVersion)]
    answers = await answers_of(bank, known)
    rows = []
    for item, version in zip(items, found, strict=True):
        if isinstance(version, MemoryVersion) and not isinstance(item, BadRecordError):
            row = Row(item.key, version, answer := answers.get(version.id))
            said = "" if answer is None else answer.text
            searched = (item.key, version.question, version.document.name, version.text, said)
            rows.append((row, "\n".join(searched).casefold()))
            continue
        problem = item if isinstance(item, BadRecordError) else version
        text = str(problem or "Its newest version is gone: it expired or was deleted.")
        rows.append((Row(item.key, None, text=text), item.key.casefold()))
    return rows


_MOST_SEEN = 2_000
"""Memories of each kind whose costs are added up."""
_MOST_SHOWN = 50
"""Memories that are listed, those with the most tokens first."""


@dataclass(frozen=True, slots=True)
class Costs:
    """The cost of readings.

    Attributes:
        rows: memories with a kept answer, the most tokens first; not all of many.
        priced: number of memories with a kept answer.
        unknown: number of memories without one.
        times: number of answers.
        usage: cost of all readings.
        whole: whether all memories were counted.
    """

    rows: list[tuple[Row, KeptAnswer]]
    priced: int
    unknown: int
    times: int
    usage: Usage
    whole: bool


async def add_up(bank: MemoryBank) -> Costs:
    """Return the cost of the readings in a store."""
    kinds: tuple[Kind, ...] = ("memories", "readings")
    rows: list[Row] = []
    whole = True
    for kind in kinds:
        start: int | None = 0
        while start is not None and start < _MOST_SEEN:
            listing = await list_page(bank, kind, start=start)
            rows += listing.rows
            start = listing.next
        whole = whole and start is None
    priced = [(row, row.answer) for row in rows if row.answer is not None]
    # By tokens, then by calls: some servers count no tokens.
    priced.sort(key=lambda pair: pair[1].usage.calls, reverse=True)
    priced.sort(key=lambda pair: -pair[1].usage.input_tokens - pair[1].usage.output_tokens)
    answers = [answer for _, answer in priced]
    return Costs(
        priced[:_MOST_SHOWN],
        len(priced),
        len(rows) - len(priced),
        sum(answer.times for answer in answers),
        sum((answer.usage for answer in answers), Usage()),
        whole,
    )
