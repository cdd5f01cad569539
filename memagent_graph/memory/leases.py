"""Readings that share a store: one of several does the work, and a user can edit its memory.

Each fold that reads has a record while it is under way. Of several who would read the same, one
holds the record and reads, and the others follow. An edit of its memory is noted there, and the
fold continues from it.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import time
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from uuid import uuid4
from weakref import WeakValueDictionary

from langgraph.store.base import Item
from langgraph.store.memory import InMemoryStore
from pydantic import TypeAdapter, ValidationError

from memagent_graph.errors import BadRecordError, MemoryNotFoundError
from memagent_graph.memory import lookup
from memagent_graph.memory.circuit import FOLLOWED
from memagent_graph.memory.items import GetThenPut

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from langgraph.store.base import PutOp

    from memagent_graph.memory.atomic import Value
    from memagent_graph.memory.items import Place, Records
    from memagent_graph.memory.version import MemoryVersion


LAPSE = 5.0
"""Seconds without a sign of life after which anybody can take a lease."""
BEAT = 1.0
"""Seconds between signs of life while the holder waits for a model."""

_HOLDER = re.compile(r"(.+):([1-9][0-9]{0,8}):([0-9a-f]+)")  # machine, pid, nonce
_live: WeakValueDictionary[str, object] = WeakValueDictionary()
_here = uuid4().hex

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class UnderWay:
    """One fold of a reading that is under way.

    Attributes:
        memory: name of the memory it writes, or the key of a reading without one.
        question: the question.
        source: digest of the document.
        source_name: name of the document.
        fold: tells folds of one reading apart, as in events: "1.2" is that of the second segment.
        step: number of chunks read.
        position: number of code points read, out of `length`.
        length: length of the fold's span, in code points.
        version: id of its memory as it is now, edits included; None before the first chunk.
        since: time of its beginning, ISO 8601, UTC.
        holder: machine, process and a number of its own: who reads.
        of: id of the version of which `edit` is the edit.
        edit: id of the last edit of its memory; empty without one.
        taken: time when it continued from that edit, ISO 8601, UTC; empty if it has not yet.
        seen: last sign of life by the store's clock, ISO 8601, UTC.
    """

    memory: str
    question: str
    source: str
    source_name: str
    fold: str
    step: int
    position: int
    length: int
    version: str | None
    since: str
    holder: str = ""
    of: str = ""
    edit: str = ""
    taken: str = ""
    seen: str = ""

    @property
    def chunks(self) -> int:
        """Number of all chunks, estimated from those read so far; 0 before the first."""
        if not self.position:
            return self.step
        return self.step + ceil((self.length - self.position) * self.step / self.position)


class Lease:
    """The record of a fold: its holder reads, and others follow what the holder stores.

    It saves work and protects nothing: after a lapse, two can read for a moment, and errors of the
    store are ignored. One task uses an instance at a time, apart from the one that writes.

    Args:
        records: records of the store that has it.
        key: its key, the same for all who would read the same; one of its own by default.
        clock: seconds, from any origin. Clocks of two machines are never compared.

    Attributes:
        held: whether this instance had the lease when it last looked.
        seen: the record as it was when it was last seen, at `place`.
        turn: the version from which the fold is to continue, in the place of one of its own.
        ends: what is put in the step that writes the fold's last version, in which the record is
            deleted, unless an edit is noted in it; None before that version is made.
        ended: the `ends` that was put; None before.
    """

    def __init__(
        self,
        records: Records,
        key: str | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.held = False
        self.ends: PutOp | None = None
        self.ended: PutOp | None = None
        self._records, self._clock = records, clock
        self._nonce = uuid4().hex
        _live[self._nonce] = self
        self.place: Place = (records.leases, self._nonce if key is None else key)
        self._beats = 0  # never starts again: a value that returned would look like silence
        self._fold: UnderWay | None = None
        self.seen: Value | None = None
        self.turn: MemoryVersion | None = None
        self._since = clock()

    async def acquire(self, fold: UnderWay) -> bool:
        """Take the lease if it is free, its holder is dead, or it did not change for `LAPSE`.

        Return whether it is held now; False as well if the store fails.
        """
        self._fold, held = fold, self.held
        self.held = False
        with suppress(Exception):
            if held or not self._beats:  # free, as mostly at first
                self.held = await self._swap(self._value())
            if not self.held:
                await self.look()
                ours = self._is_ours(self.seen)  # also if the reply to an earlier put was lost
                takes = self.is_free or (ours and held)
                self.held = (takes and await self._swap(self._value())) or ours
        return self.held

    @property
    def foreign(self) -> bool:
        """Whether somebody else held the lease when this instance last looked."""
        return self.seen is not None and not self._is_ours(self.seen)

    @property
    def is_free(self) -> bool:
        """Whether anybody may take the lease, as it was seen last."""
        value = self.seen
        if not value or not isinstance(value.get("beat"), int):  # absent, or malformed
            return True
        return is_gone(str(value.get("holder"))) or self._clock() - self._since >= LAPSE

    def see(self, value: object) -> None:
        """Take in what the record is now; if it is another's, `held` becomes False."""
        now = value if isinstance(value, dict) else None
        if now != self.seen:
            self.seen, self._since = now, self._clock()
        self.held = self.held and self._is_ours(now)

    async def look(self) -> None:
        """Read the record."""
        (value,) = await self._records.values([self.place], refresh=False)
        if isinstance(value, BadRecordError):  # nobody's: make room
            await self._records.items([self._records.put(*self.place, None)])
        self.see(value)

    def alive(self) -> None:
        """Note another sign of life of the holder, such as a new version."""
        self._since = self._clock()

    async def beat(self) -> None:
        """Give a sign of life; if somebody took the lease over, `held` becomes False."""
        if self.held and not (self._is_ours(self.seen) and await self._swap(self._value())):
            await self.look()  # still ours if the reply to an earlier put was lost

    @asynccontextmanager
    async def keep_alive(self) -> AsyncIterator[None]:
        """Beat every `BEAT` seconds while the body runs; failures of the store are ignored."""
        done = asyncio.Event()

        async def beat() -> None:
            while self.held and not done.is_set():
                try:
                    await asyncio.wait_for(done.wait(), BEAT)
                except TimeoutError:
                    with suppress(Exception):  # the store may be back for the next beat
                        await self.beat()

        task = asyncio.create_task(beat())
        try:
            yield
        finally:
            done.set()
            # A beat under way may end: cancelled, it could take effect without our knowing.
            await asyncio.wait([task], timeout=BEAT)
            task.cancel()

    async def release(self) -> None:
        """Free the lease if it is still ours. If the store fails, the lease lapses instead."""
        if self._records.guard.circuit == "closed":
            with suppress(Exception):
                while self._is_ours(self.seen) and not await self.drop():
                    pass
            self.held = False

    async def drop(self) -> bool:
        """Delete the record if it is as it was seen last; say whether."""
        if await self._swap(None):
            return True
        await self.look()
        return False

    async def follow(
        self,
        fold: UnderWay,
        look: Callable[[], Awaitable[Found | None]],
        left: Callable[[], float | None],
        *,
        unread: bool = False,
    ) -> Found | None:
        """Return what another has made; None to make it here.

        Waits as long as the other shows that it lives, and no longer than the deadline.

        Args:
            fold: what to show others when the lease is taken.
            look: finds what is wanted; None if it is not stored.
            left: returns the seconds until the deadline, None without one.
            unread: whether nothing was stored a moment ago: if nobody reads, no look is needed.
        """
        if self.held and self._clock() - self._since >= LAPSE:  # as when the process was stopped
            with suppress(Exception):
                await self.beat()
        if self.held:
            self.alive()
            return None
        looks = 0
        while self._records.guard.circuit == "closed":
            if await self.acquire(fold) and unread:
                return None
            unread = False
            found = await look()
            if found is not None:
                self.held = False  # the next one may be stored as well
                self.alive()
                return found
            if self.held or not self.foreign:  # else it can be neither taken nor seen
                return None
            seconds = left()
            if seconds is not None and seconds <= 0:
                raise TimeoutError
            looks += 1
            pause = FOLLOWED.after(looks)
            await asyncio.sleep(pause if seconds is None else min(pause, seconds))
        return None

    def renew(self, fold: UnderWay, ends: PutOp | None = None) -> tuple[Value | None, list[PutOp]]:
        """Return what the record becomes as the fold's versions are written, and puts for that.

        `see` it when it is written, which must depend on what was `seen`.
        """
        self._fold = fold
        if not self.held:
            return self.seen, []
        value = self._value()
        if ends is None or value["edit"] != fold.edit:
            return value, [self._records.put(*self.place, value)]
        return None, [self._records.put(*self.place, None), ends]

    def _value(self) -> Value:
        """The record, with an edit that is noted in it and that the fold has yet to take."""
        assert self._fold is not None  # noqa: S101 - it was acquired with one
        fold, seen = self._fold, make_record(self.seen)
        self._beats += 1
        value = {**asdict(fold), "holder": self._holder(), "beat": self._beats}
        del value["seen"]  # the store's clock says it
        if seen is None or not seen.edit or seen.memory != fold.memory:
            return value
        if seen.edit == fold.edit:
            return {**value, "of": seen.of}
        # It may have been taken since the fold was as described: writes are made later.
        edit = {"version": seen.edit, "of": seen.of, "edit": seen.edit, "taken": seen.taken}
        return {**value, **edit}

    async def _swap(self, value: Value | None) -> bool:
        put = self._records.put(*self.place, value)
        done = await self._records.commit([put], {self.place: self.seen})
        if done:
            self.see(value)
        return done

    def _holder(self) -> str:
        # Asked anew: the process may fork.
        return f"{_machine()}:{os.getpid()}:{self._nonce}"

    def _is_ours(self, value: Value | None) -> bool:
        return value is not None and value.get("holder") == self._holder()


def can_lease(records: Records) -> bool:
    """Whether a store has a real compare-and-put, without which a lease means nothing."""
    return isinstance(records.store, InMemoryStore) or not isinstance(records.atomic, GetThenPut)


def is_gone(holder: str) -> bool:
    """Whether who is named is known to be dead, or the name is none."""
    match = _HOLDER.fullmatch(holder)
    if match is None:
        return True
    machine, pid, nonce = match.groups()
    if machine != _machine():
        return False
    if int(pid) == os.getpid():
        return nonce not in _live
    try:
        os.kill(int(pid), 0)
    except OSError as error:  # another user's process is refused, and lives
        return isinstance(error, ProcessLookupError)
    return False


def _machine() -> str:
    """Identify the scope of process ids: containers can share a host's name and its boot.

    Without Linux's `/proc` this is the process that imported us, and its forks.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        place = f"{boot}-{Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:
        place = _here
    return f"{socket.gethostname()}-{place}"


async def find_readings(
    records: Records, memory: str | None, *, gone: bool = False
) -> dict[Place, UnderWay]:
    """Return the folds under way that write to a memory, or to any, and where they are listed."""
    found: dict[Place, UnderWay] = {}
    async for item in records.scan(records.leases):
        if not isinstance(item, Item) or (fold := make_record(item.value)) is None:
            continue
        if memory in (None, fold.memory) and (gone or not is_gone(fold.holder)):
            at = item.updated_at
            seen = at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
            found[tuple(item.namespace), item.key] = replace(fold, seen=seen.isoformat())
    return found


async def continues_from(records: Records, fold: UnderWay, version: str) -> bool:
    """Whether a fold continues from an edit of a version: it is at it, or came from it."""
    if fold.version is None or fold.version == version or (fold.edit and not fold.taken):
        return fold.version == version
    try:
        known = {one.id: one for one in await lookup.history(records, fold.version)}
    except MemoryNotFoundError:
        return False
    at = known.get(fold.version)
    # Beyond its own versions, only that one counts which it began with.
    while at is not None and at.id != version:
        at = known.get(at.parent) if at.document.digest == fold.source else None
    return at is not None


def note_edit(value: Value, of: str, edit: str) -> Value:
    """Return the record of a fold with an edit of a version noted."""
    waits = value.get("edit") and not value.get("taken")  # one that it has yet to take
    of = str(value.get("of")) if waits else of
    return {**value, "version": edit, "of": of, "edit": edit, "taken": ""}


_record = TypeAdapter(UnderWay)


def make_record(value: object) -> UnderWay | None:
    """Return the fold that a record describes; None if it is none."""
    with suppress(ValidationError):
        return _record.validate_python(value)
    return None
