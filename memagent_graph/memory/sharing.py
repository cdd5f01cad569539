"""Readings that share a store: one of several does the work, and a user can edit its memory.

A lease is of the work: of several who would do the same, one does it, and the others follow. Each
fold that reads is listed while it is under way. An edit of its memory is noted beside it, and the
fold continues from there.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import socket
import time
from contextlib import (
    AbstractAsyncContextManager,
    asynccontextmanager,
    contextmanager,
    nullcontext,
    suppress,
)
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import uuid4
from weakref import WeakValueDictionary

from langgraph.store.base import GetOp, Item, PutOp
from langgraph.store.memory import InMemoryStore

from memagent_graph.errors import BadRecordError, MemoryNotFoundError
from memagent_graph.memory import lookup
from memagent_graph.memory.items import GetThenPut, label

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence

    from memagent_graph.memory.items import Place, Records

    Value = Mapping[str, object] | None


LAPSE = 5.0
"""Seconds without a sign of life after which anybody can take a lease."""
BEAT = 1.0
"""Seconds between signs of life while the holder waits for a model."""

_log = logging.getLogger(__name__)
_HOLDER = re.compile(r"(.+):([1-9][0-9]{0,8}):([0-9a-f]+)")  # machine, pid, nonce
_live: WeakValueDictionary[str, object] = WeakValueDictionary()
_here = uuid4().hex


class Lease:
    """The right to be the one who reads: others follow what its holder writes.

    A lease saves work and protects nothing: after a lapse, two can read for a moment. One task
    uses an instance at a time.

    Args:
        records: records of the store that has the lease.
        key: its key.
        clock: seconds, from any origin. Clocks of two machines are never compared.

    Attributes:
        held: whether this instance had the lease when it last looked.
    """

    def __init__(
        self,
        records: Records,
        key: str,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.held = False
        self._records, self._clock = records, clock
        self._place = (records.leases, key)
        self._nonce = enlist(self)
        self._beats = 0  # never starts again: a value that returned would look like silence
        self._see(None)

    async def acquire(self, also: Sequence[PutOp] = ()) -> bool:
        """Take the lease if it is free, its holder is dead, or it did not change for `LAPSE`.

        Args:
            also: further puts in the same atomic step.

        Returns:
            Whether it is held now. False as well if the store fails.
        """
        self.held = False
        with _ignore_failures():
            if not self._beats and await self._put_beat(also):  # free, as mostly at first
                self.held = True
                return True
            found = await self._get()
            if found != self._seen:
                self._see(found)
            if self._is_ours(found):  # the reply to an earlier put was lost
                if also:
                    await self._records.items([*also])
                self.held = True
            elif _is_free(found) or self._clock() - self._since >= LAPSE:
                self.held = await self._put_beat(also)
        return self.held

    @property
    def foreign(self) -> bool:
        """Whether somebody else held the lease when this instance last looked."""
        return self._seen is not None and not self._is_ours(self._seen)

    def alive(self) -> None:
        """Note another sign of life of the holder, such as a new version: `LAPSE` begins anew."""
        self._since = self._clock()

    async def confirm(self) -> bool:
        """Return whether it is still held, as the holder continues with what others see.

        The store is asked only after `LAPSE` without a sign of life, as when the process was
        stopped: somebody may have taken it over.
        """
        if self.held:
            if self._clock() - self._since >= LAPSE:
                with _ignore_failures():
                    await self.beat()
            self.alive()
        return self.held

    async def beat(self) -> None:
        """Give a sign of life; if somebody took the lease over, `held` becomes False.

        Raises:
            StoreError: The store cannot be reached. Some stores raise errors of their own.
        """
        if not self.held or (self._is_ours(self._seen) and await self._put_beat()):
            return
        self._see(await self._get())  # still ours if the reply to an earlier put was lost
        self.held = self._is_ours(self._seen)

    @asynccontextmanager
    async def keep_alive(self) -> AsyncIterator[None]:
        """Beat every `BEAT` seconds while the body runs; failures of the store are ignored."""
        done = asyncio.Event()
        task = asyncio.create_task(self._beat_until(done))
        try:
            yield
        finally:
            done.set()
            # A beat under way may end: cancelled, it could take effect without our knowing.
            await asyncio.wait([task], timeout=BEAT)
            task.cancel()

    async def release(self) -> None:
        """Free the lease if it is still ours. If the store fails, the lease lapses instead."""
        self.held = False
        with _ignore_failures():
            if self._is_ours(self._seen) and await self._swap(None, expected=self._seen):
                return
            found = await self._get()
            if self._is_ours(found):
                await self._swap(None, expected=found)

    async def _beat_until(self, done: asyncio.Event) -> None:
        while self.held and not done.is_set():
            try:
                await asyncio.wait_for(done.wait(), BEAT)
            except TimeoutError:
                with _ignore_failures():  # the store may be back for the next beat
                    await self.beat()

    async def _get(self) -> Value:
        try:
            (item,) = await self._records.items([GetOp(*self._place, refresh_ttl=False)])
        except BadRecordError:  # nobody's: make room
            await self._records.items([self._records.put(*self._place, None)])
            return None
        return None if item is None else item.value

    async def _put_beat(self, also: Sequence[PutOp] = ()) -> bool:
        self._beats += 1
        value = {"holder": self._holder(), "beat": self._beats}
        put = await self._swap(value, also, expected=self._seen)
        if put:
            self._see(value)
        return put

    async def _swap(self, value: Value, also: Sequence[PutOp] = (), *, expected: Value) -> bool:
        put = self._records.put(*self._place, value)
        return await self._records.commit([put, *also], {self._place: expected})

    def _see(self, value: Value) -> None:
        self._seen, self._since = value, self._clock()

    def _holder(self) -> str:
        return holder_of(self._nonce)

    def _is_ours(self, value: Value) -> bool:
        return value is not None and value.get("holder") == self._holder()


def can_lease(records: Records) -> bool:
    """Whether a store has a real compare-and-put, without which a lease means nothing."""
    return isinstance(records.store, InMemoryStore) or not isinstance(records.atomic, GetThenPut)


def enlist(one: object) -> str:
    """A number by which `is_gone` knows whether this object still lives."""
    nonce = uuid4().hex
    _live[nonce] = one
    return nonce


def holder_of(nonce: str) -> str:
    """Machine, process and the number that `enlist` gave: who holds or reads something."""
    return f"{_machine()}:{os.getpid()}:{nonce}"  # asked anew: the process may fork


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


def _is_free(value: Value) -> bool:
    """Whether nobody holds a lease: it is absent, malformed, or its holder is known to be dead."""
    if not value or not isinstance(value.get("beat"), int):
        return True
    return is_gone(str(value.get("holder")))


@contextmanager
def _ignore_failures() -> Iterator[None]:
    try:
        yield
    except Exception as error:  # noqa: BLE001 - whatever a store raises: a lease only saves work
        _log.debug("A lease could not be read or written: %s", error)


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


_FIRST_PAUSE = 0.01
_LONGEST_PAUSE = 0.2
"""Seconds between looks at what the holder of the lease has stored."""
Found = TypeVar("Found")


class Follower:
    """One who takes what another makes, and leads when there is no other.

    Args:
        records: records of the store that has the leases.
        left: seconds until the deadline, None without one.
        alone: whether nobody is followed.
    """

    def __init__(self, records: Records, left: Callable[[], float | None], *, alone: bool) -> None:
        self._records, self._left = records, left
        self._lease: Lease | None = None
        self._alone = alone or not can_lease(records)

    @property
    def leads(self) -> bool:
        """Whether this one works for itself, and follows nobody."""
        return self._alone or self.has_lease

    @property
    def has_lease(self) -> bool:
        """Whether others follow this one."""
        return self._lease is not None and self._lease.held

    async def follow(
        self,
        subject: str,
        look: Callable[[], Awaitable[Found | None]],
        also: Sequence[PutOp] = (),
    ) -> Found | None:
        """Return what another has made; None to make it here.

        Waits as long as the other shows that it lives, and no longer than the deadline.

        Args:
            subject: what all of them work on.
            look: finds what is wanted; None if it is not stored.
            also: what to put in one step with taking the lead.

        Raises:
            TimeoutError: The deadline came first.
        """
        if self._lease is None and can_lease(self._records):
            self._lease = Lease(self._records, subject)
        lease = self._lease
        if lease is None or await lease.confirm():
            return None
        self._alone = False
        pause = _FIRST_PAUSE
        while self._answers():
            await lease.acquire(also)
            # If the lease can be neither taken nor seen, this one works on its own.
            self._alone = not (lease.held or lease.foreign)
            found = await look()
            if found is not None:
                self._alone = lease.held = False  # the next one may be stored as well
                lease.alive()
                return found
            if self.leads:
                return None
            left = self._left()
            if left is not None and left <= 0:
                raise TimeoutError
            await asyncio.sleep(pause if left is None else min(pause, left))
            pause = min(2 * pause, _LONGEST_PAUSE)
        self._alone = True
        return None

    def beat(self) -> AbstractAsyncContextManager[object]:
        """Show others that this one lives, if it holds the lease, while the body runs."""
        if self._lease is None or not self._lease.held or not self._answers():
            return nullcontext()
        return self._lease.keep_alive()

    async def release(self) -> None:
        """Free the lease; that of an unreachable store lapses instead."""
        if self._lease is not None and self._answers():
            await self._lease.release()
        self._lease = None

    def _answers(self) -> bool:
        return self._records.guard.circuit == "closed"


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class UnderWay:
    """One fold of a reading that is under way.

    Attributes:
        memory: name of the memory it writes, or the key of a reading without one.
        question: the question.
        source: digest of the document.
        source_name: name of the document.
        fold: tells folds of one reading apart, as in events: "1.2" is that of the second segment.
        round: number of the round, counted from 1.
        step: number of chunks read.
        position: number of code points read, out of `length`.
        length: length of the fold's span, in code points.
        version: id of its memory as it is now, edits included; None before the first chunk.
        since: time of its beginning, ISO 8601, UTC.
        holder: machine, process and a number of its own, as in leases.
        lease: key of its lease, which shows that it lives while it waits for its model; empty if it
            shares its work with no other reading.
        edit: id of the last edit of its memory; empty without one.
        taken: time when it continued from that edit, ISO 8601, UTC; empty if it has not yet.
        seen: last sign of life by the store's clock, ISO 8601, UTC.
    """

    memory: str
    question: str
    source: str
    source_name: str
    fold: str
    round: int
    step: int
    position: int
    length: int
    version: str | None
    since: str
    holder: str
    lease: str = ""
    edit: str = ""
    taken: str = ""
    seen: str = ""

    @property
    def chunks(self) -> int:
        """Number of all chunks, estimated from those read so far; 0 before the first."""
        if not self.position:
            return self.step
        return self.step + ceil((self.length - self.position) * self.step / self.position)


@dataclass(frozen=True, slots=True)
class Edit:
    """The last edit of the memory of a fold that is under way, noted beside the fold.

    Attributes:
        of: id of the version that was edited.
        edit: id of the edit.
        source: digest of the document.
    """

    of: str
    edit: str
    source: str


def note_reading(records: Records, fold: UnderWay) -> PutOp:
    """Return the write that shows others the progress of a fold."""
    value = asdict(fold)
    del value["seen"]  # the store's clock says it
    return records.put(*place_of(records, fold), value)


def place_of(records: Records, fold: UnderWay) -> Place:
    """Return where a fold is listed: one place for all who share the work."""
    alone = "" if fold.lease else fold.holder
    key = f"{fold.fold or 1}-{label(f'{alone} {fold.source} {fold.question}')}"
    return records.under_way(fold.memory), key


def edit_place(records: Records, fold: UnderWay) -> Place:
    """Return where an edit of a fold's memory is noted."""
    namespace, key = place_of(records, fold)
    return namespace, f"{key} edit"


def edit_noted(value: object) -> Edit | None:
    """Return the edit that a record notes; None if it is none."""
    return _make_record(Edit, value)


async def list_readings(
    records: Records, memory: str | None, *, gone: bool = False
) -> list[UnderWay]:
    """See `MemoryBank.aunder_way`; with `gone`, those of processes that were killed as well."""
    where = records.all_under_way if memory is None else records.under_way(memory)
    items = [item async for item in records.scan(where) if isinstance(item, Item)]
    noted = {(tuple(item.namespace), item.key): edit_noted(item.value) for item in items}
    found = [(item, fold) for item in items if (fold := _make_record(UnderWay, item.value))]
    alive = [(item, fold) for item, fold in found if gone or not is_gone(fold.holder)]
    beats = await _last_beats(records, [fold.lease for _, fold in alive])
    listed = [
        _with_edit(
            replace(fold, seen=max(_time(item), beats.get(fold.lease, ""))),
            noted.get(edit_place(records, fold)),
        )
        for item, fold in alive
    ]
    return sorted(listed, key=lambda fold: (fold.since, fold.memory, fold.fold))


def _with_edit(fold: UnderWay, edit: Edit | None) -> UnderWay:
    """The fold, at an edit that it has yet to take."""
    if edit is None or edit.edit == fold.edit:
        return fold
    return replace(fold, version=edit.edit, edit=edit.edit, taken="")


async def find_folds(records: Records, listed: Sequence[UnderWay], version: str) -> list[UnderWay]:
    """Return the folds that continue from an edit of a version: they are at it, or came from it."""
    return [fold for fold in listed if await _comes_from(records, fold, version)]


async def _comes_from(records: Records, fold: UnderWay, version: str) -> bool:
    if fold.version is None or fold.version == version or (fold.edit and not fold.taken):
        return fold.version == version
    try:
        known = {one.id: one for one in await lookup.history(records, fold.version)}
    except MemoryNotFoundError:
        return False
    at = known.get(fold.version)
    while at is not None and at.id != version:
        at = known.get(at.parent)
    return at is not None


async def _last_beats(records: Records, keys: list[str]) -> dict[str, str]:
    """Return the last signs of life of the holders of leases."""
    wanted = sorted({*keys} - {""})
    with suppress(BadRecordError):
        items = await records.items(
            [GetOp(records.leases, key, refresh_ttl=False) for key in wanted]
        )
        return {item.key: _time(item) for item in items if item is not None}
    return {}


def _time(item: Item) -> str:
    at = item.updated_at
    return (at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)).isoformat()


_TYPES: dict[object, type | tuple[type, ...]] = {
    "str": str,
    "int": int,
    "str | None": (str, type(None)),
}


def _make_record(kind: type[T], value: object) -> T | None:
    """The record of this kind that a value is; None if it is none."""
    if not isinstance(value, dict):
        return None
    known: dict[str, Any] = {}
    for item in fields(kind):  # type: ignore[arg-type]
        if item.name in value and item.type in _TYPES:
            if not isinstance(value[item.name], _TYPES[item.type]):
                return None
            known[item.name] = value[item.name]
    with suppress(TypeError):  # one that it needs is not there
        return kind(**known)
    return None
