"""Pages of messages that are kept verbatim, and the cache of pages in this process."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import asdict, dataclass, fields
from hashlib import sha256
from itertools import chain
from json import dumps
from time import monotonic
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from memagent_graph.text.tokens import EstimatingTokenizer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from memagent_graph.memory.guard import StoreGuard

_MOST = 1 << 25
"""Size of the cached pages of all people, in code points."""

_counter = EstimatingTokenizer()


@dataclass(frozen=True, slots=True)
class Said:
    """One message.

    Attributes:
        id: id of the message.
        thread: id of its thread.
        at: time, ISO 8601.
        speaker: name of the speaker.
        text: text of the message.
    """

    id: str
    thread: str
    at: str
    speaker: str
    text: str

    @property
    def day(self) -> str:
        """The date, without the time."""
        return self.at[:10]


_KEYS = [field.name for field in fields(Said)]


class Page:
    """Messages that are kept together; immutable.

    Args:
        said: the messages, in the order in which they were folded.
    """

    def __init__(self, said: Sequence[Said]) -> None:
        self.said = tuple(said)
        self.tokens = sum(_counter.count(one.text) for one in said)
        self.size = sum(len(one.text) for one in said)
        self.record = {"said": [asdict(one) for one in said]}
        self.digest = sha256(dumps(self.record).encode()).hexdigest()[:32]

    @classmethod
    def of(cls, record: object) -> Page | None:
        """Return the page of a record; None if it is not a page."""
        if not isinstance(record, dict):
            return None
        try:
            return cls([Said(**{key: str(row[key]) for key in _KEYS}) for row in record["said"]])
        except (KeyError, TypeError):
            return None


class Kept:
    """The kept messages of a person: the same object as long as nothing changes.

    Attributes:
        pages: the pages, oldest first.
    """

    def __init__(self, pages: Sequence[Page] = ()) -> None:
        self.pages = tuple(pages)

    @property
    def said(self) -> Iterator[Said]:
        """All messages, in the order in which they were folded."""
        return chain.from_iterable(page.said for page in self.pages)


class Shelf:
    """The cached pages of one person."""

    def __init__(self) -> None:
        self._pages: dict[str, tuple[Page, float]] = {}
        self._kept = Kept()

    @property
    def size(self) -> int:
        """Size of the cached pages, in code points."""
        return sum(page.size for page, _ in [*self._pages.values()])

    def find(self, digest: str, seconds: float) -> Page | None:
        """Return the page with this digest, if it has been cached for less than `seconds`."""
        page, since = self._pages.get(digest, (None, 0.0))
        return page if monotonic() - since < seconds else None

    def put(self, page: Page) -> None:
        """Cache a page that was read or written."""
        self._pages[page.digest] = page, monotonic()

    def leave(self, pages: Sequence[Page]) -> Kept:
        """Drop all pages from the cache except for these, and return them."""
        digests = {page.digest for page in pages}
        self._pages = {key: held for key, held in self._pages.items() if key in digests}
        if [*map(id, pages)] != [*map(id, self._kept.pages)]:
            self._kept = Kept(pages)
        return self._kept


def shelf_of(guard: StoreGuard, place: tuple[str, ...]) -> Shelf:
    """Return the cache of one person in a store; the least recently used ones are dropped.

    Args:
        guard: the store's guard.
        place: the person's namespace in the store.
    """
    with _lock:
        shelves = _shelves.setdefault(guard, OrderedDict())
        found = shelves.pop(place, None) or Shelf()
        shelves[place] = found
        left = _MOST
        for other in reversed([*shelves]):
            left -= shelves[other].size
            if left < 0 and other != place:
                del shelves[other]
        return found


_lock = threading.Lock()
_shelves: WeakKeyDictionary[StoreGuard, OrderedDict[tuple[str, ...], Shelf]] = WeakKeyDictionary()
