"""The readings under way: each fold has a record, and the process that holds it reads.

Others who would read the same follow. Edits are noted there, for the fold to continue from.
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
from functools import cache
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar
from uuid import uuid4
from weakref import WeakValueDictionary

from langgraph.store.memory import InMemoryStore
from pydantic import TypeAdapter, ValidationError

from memagent_graph.errors import BadRecordError, StoreError
from memagent_graph.memory.items import edit_of, find_versions, newest_edit
from memagent_graph.memory.store import FOLLOWED, GetThenPut
from memagent_graph.memory.version import MemoryVersion

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from langgraph.store.base import PutOp

    from memagent_graph.memory.items import Place, Records
    from memagent_graph.memory.store import Value

LAPSE = 5.0
"""Seconds without a sign of life after which anybody can take a lease."""
BEAT = 1.0
"""Seconds between signs of life while the holder waits for a model."""


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
        head: id of the version that a named memory was at when it began.
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
    head: str = ""
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


_record = TypeAdapter(UnderWay)


async def find_readings(records: Records) -> dict[Place, UnderWay]:
    """Return the folds that are listed as under way, and where; some of them may have ended."""
    found: dict[Place, UnderWay] = {}
    async for item in records.scan(records.leases):
        if isinstance(item, BadRecordError):
            continue
        with suppress(ValidationError):
            fold, at = _record.validate_python(item.value), item.updated_at
            seen = at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
            found[tuple(item.namespace), item.key] = replace(fold, seen=seen.isoformat())
    return found


_HOLDER = re.compile(r"(.+):([1-9][0-9]{0,8}):([0-9a-f]+)")  # machine, pid, number
_here = uuid4().hex


def is_gone(holder: str) -> bool:
    """Whether who is named is known to be dead, or the name is none."""
    match = _HOLDER.fullmatch(holder)
    if match is None:
        return True
    machine, pid, number = match.groups()
    if machine != _machine():
        return False
    if int(pid) == os.getpid():
        return number not in Lease.live
    try:
        os.kill(int(pid), 0)
    except OSError as error:  # another user's process is refused, and lives
        return isinstance(error, ProcessLookupError)
    return False


@cache
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


def can_lease(records: Records) -> bool:
    """Whether a store has a real compare-and-put, without which a lease means nothing."""
    return isinstance(records.store, InMemoryStore) or not isinstance(records.atomic, GetThenPut)


class EditedError(Exception):
    """The memory of a fold was edited: it continues from there before it takes a step."""


class Lease:
    """The record of a fold: its holder reads, and others follow what the holder stores.

    It saves work and protects nothing: after a lapse, two can read for a moment, and errors of the
    store are ignored.

    Args:
        records: the bank's records.
        key: its key, the same for all who would read the same; one of its own by default.
        clock: seconds, from any origin. Clocks of two machines are never compared.

    Attributes:
        held: whether this instance had the lease when it last looked.
        seen: the record as it was when it was last seen, at `place`.
        turn: the version from which the fold is to continue, in the place of one of its own.
        ends: what is put as the fold's last version is written, and the record deleted unless an
            edit is noted in it; None before.
        gone: whether the record went in that step.
        due: whether its version may have been edited while nothing was noted: before this call, or
            when it was not listed.
        resumed: whether what is listed may be of the call that this one resumes.
        live: those of this process that are in use, by their numbers.
    """

    live: ClassVar[WeakValueDictionary[str, Lease]] = WeakValueDictionary()

    def __init__(
        self, records: Records, key: str | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.held = self.due = self.resumed = self.gone = False
        self.ends: PutOp | None = None
        self._records, self._clock = records, clock
        self._number = uuid4().hex
        self.live[self._number] = self
        self.place: Place = (records.leases, key or self._number)
        self._beats = 0  # never starts again: a value that returned would look like silence
        self._fold: UnderWay
        self.seen: Value | None = None
        self.turn: MemoryVersion | None = None
        self._bad: str | None = None  # an edit that cannot be read
        self._since = clock()

    async def move_to(self, key: str) -> None:
        """Be listed under another key, unless it has one of its own, and no more where it was."""
        await self.release()
        self.held, self.seen = False, None
        if self.place[1] != self._number:
            self.place = (self.place[0], key)

    async def acquire(self, fold: UnderWay) -> bool:
        """Take the lease if it is free, its holder is dead, or it did not change for `LAPSE`.

        Return whether it is held now; False as well if the store fails.
        """
        self._fold, held, self.held = fold, self.held, False
        with suppress(Exception):
            if held or not self._beats:  # free, as mostly at first
                self.held = await self._swap(self._value())
            else:
                await self.look()
            if not self.held:
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
        value, age = self.seen, self._clock() - self._since
        if not value or not isinstance(value.get("beat"), int):  # absent, or malformed
            return True
        return age >= LAPSE or is_gone(str(value.get("holder")))

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
        if self.held:  # also if the reply to an earlier put was lost
            await (self._swap(self._value()) if self._is_ours(self.seen) else self.look())

    @asynccontextmanager
    async def keep_alive(self) -> AsyncIterator[None]:
        """Beat every `BEAT` seconds while the body runs; failures of the store are ignored."""
        done = asyncio.Event()

        async def beat() -> None:
            while self.held:
                with suppress(TimeoutError):
                    await asyncio.wait_for(done.wait(), BEAT)
                    return
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
                while self._is_ours(self.seen) and not await self._swap(None):
                    pass
            self.held = False

    async def follow(
        self,
        fold: UnderWay,
        ids: tuple[str, str],
        left: Callable[[], float],
        *,
        replays: bool = False,
        unread: bool = False,
    ) -> MemoryVersion | None:
        """Return the version that another reading makes of the next chunk; None to make it here.

        Args:
            fold: the fold before the chunk, shown to others when the lease is taken.
            ids: those of that version and of the one before.
            left: returns the seconds until the deadline.
            replays: whether a reading that was broken off may have stored it.
            unread: whether the store did not have the version a moment ago.

        Raises:
            TimeoutError: The deadline came first.
            EditedError: The fold has yet to continue from an edit.
        """
        self.ends, self.gone = None, False
        if self.held and self._clock() - self._since >= LAPSE:  # as when the process was stopped
            with suppress(Exception):
                await self.beat()
        if self.held:
            self.alive()
            return await self.find(fold, *ids) if replays else None
        looks = 0
        while self._records.guard.circuit == "closed":
            if await self.acquire(fold) and unread:  # nobody reads: no look is needed
                return None
            unread = False
            found = await self.find(fold, *ids)
            if found is not None:
                self.held = False  # the next one may be stored as well
                self.alive()
                return found
            if self.held or not self.foreign:  # else it can be neither taken nor seen
                return None
            if (seconds := left()) <= 0:
                raise TimeoutError
            looks += 1
            await asyncio.sleep(min(FOLLOWED.after(looks), seconds))
        return None

    async def find(self, fold: UnderWay, key: str, parent: str) -> MemoryVersion | None:
        """Return a stored version that follows `parent`; None without one.

        Raises:
            EditedError: The fold has yet to continue from an edit.
        """
        records = self._records
        places = [(records.versions, key), (records.versions, parent), self.place]
        with suppress(StoreError):  # the chunk is read without it
            child, before, noted = await records.values(places)
            self.see(noted)
            if parent == fold.version != fold.head and edit_of(before, fold.memory):
                self.due = await newest_edit(records, parent, fold.memory) is not None
            if self.due or self.get_noted(fold):
                raise EditedError
            return None if child is None else MemoryVersion.from_record(child, key)
        return None

    def get_noted(self, fold: UnderWay) -> str | None:
        """Return the id of the edit that is noted, if the fold has not continued from it."""
        noted = self.seen or {}
        edit = noted.get("edit") if noted.get("memory") == fold.memory else None
        return edit if isinstance(edit, str) and edit not in ("", fold.edit, self._bad) else None

    async def find_edit(self, fold: UnderWay) -> tuple[MemoryVersion, str] | None:
        """Return the edit to continue from, and the id of the version that was edited, if any."""
        records, at = self._records, fold.version
        if self.due:
            await self.look()
            self.due = False
            if at is not None and at != fold.head:
                newest = await newest_edit(records, at, fold.memory)
                self.due = newest is not None  # it is found again if this attempt fails
                if newest is not None:
                    return newest, at
        if self.seen is None or (edit := self.get_noted(fold)) is None:
            return None
        of, (found,) = str(self.seen.get("of")), await find_versions(records, [edit])
        if isinstance(found, MemoryVersion):
            return found, of
        self._bad = edit
        return None

    async def leave(self, fold: UnderWay) -> bool:
        """Remove the record, unless the fold has yet to continue from an edit; say whether."""
        if self.gone:
            return True
        if not self.held:
            await self.look()
        if self.get_noted(fold):
            return False
        others = self.foreign and not (self.is_free or self.resumed)
        return others or await self._swap(None)  # another reading of the same may be listed

    def renew(self, fold: UnderWay, *, alone: bool) -> Value | None:
        """Return what the record becomes as the fold's versions are written, or one `alone`.

        `see` it when it is written, which must depend on what was `seen`.
        """
        self._fold = fold
        if not self.held:
            return self.seen
        value = self._value()
        return None if alone and self.ends and value["edit"] == fold.edit else value

    def _value(self) -> Value:
        """The record, with an edit that is noted in it and that the fold has yet to take."""
        fold, noted = self._fold, self.seen or {}
        self._beats += 1
        value = {**asdict(fold), "holder": self._holder, "beat": self._beats}
        del value["seen"]  # the store's clock says it
        if noted.get("memory") == fold.memory and noted.get("edit"):
            value["of"] = noted.get("of")
            if noted["edit"] != fold.edit:
                # It may have been taken since the fold was as described: writes are made later.
                edit, taken = noted["edit"], noted.get("taken")
                value |= {"version": edit, "edit": edit, "taken": taken}
        return value

    async def _swap(self, value: Value | None) -> bool:
        """Change the record if it is as it was seen last, and else look at it; say whether."""
        put = self._records.put(*self.place, value)
        done = await self._records.commit([put], {self.place: self.seen})
        if done:
            self.see(value)
        else:
            await self.look()
        return done

    @property
    def _holder(self) -> str:
        return f"{_machine()}:{os.getpid()}:{self._number}"

    def _is_ours(self, value: Value | None) -> bool:
        return value is not None and value.get("holder") == self._holder
