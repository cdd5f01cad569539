"""A reading waits while somebody holds its memory."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from memagent_graph.errors import StoreError
from memagent_graph.memory import sharing
from memagent_graph.memory.atomic import MOST_LOST_RACES, pause
from memagent_graph.memory.sharing import LAPSE, enlist, holder_of, is_alive

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from langgraph.store.base import PutOp

    from memagent_graph.graph.versions import Chain
    from memagent_graph.memory.items import Place, Records
    from memagent_graph.memory.sharing import Hold

_FIRST_PAUSE = 0.02
_LONGEST_PAUSE = 0.25
"""Seconds between looks at whether a memory is still held."""

_ending: set[asyncio.Task[None]] = set()  # an event loop's are weak


class HeldUpError(Exception):
    """A fold that follows another's must wait, or go on from an edit."""


class Holding:
    """What all folds of a reading have to do with who holds its memory.

    Args:
        records: of the bank.
        memory: its name, or the reading's key.
        left: seconds until the deadline, None without one.

    Attributes:
        asked: the hold that was there at the last look.
        waits: how often a fold has waited: others' versions may have been edited meanwhile too.
        since: when the reading began, ISO 8601, UTC.
        listed: what takes each fold out of the list of those that are under way.
        left: what does so with folds that an earlier run may have left in it.
    """

    def __init__(self, records: Records, memory: str, left: Callable[[], float | None]) -> None:
        self.records = records
        self.memory = memory
        self.asked: Hold | None = None
        self.waits = 0
        self.since = datetime.now(UTC).isoformat()
        self.listed: dict[str, PutOp] = {}
        self.left: dict[str, PutOp] = {}
        self._seconds_left = left
        self._nonce = enlist(self)

    @property
    def place(self) -> Place:
        """Where a hold would be."""
        return sharing.hold_place(self.records, self.memory)

    @property
    def holder(self) -> str:
        """Names this reading to others."""
        return holder_of(self._nonce)

    def saw(self, value: object) -> None:
        """Note what is at `place`."""
        self.asked = sharing.hold_of(value)

    @property
    def is_late(self) -> bool:
        """Whether the deadline has passed."""
        left = self._seconds_left()
        return left is not None and left <= 0

    async def end(self) -> None:
        """Take this reading's folds out of the list, but none that another one lists by now."""
        with suppress(Exception):  # of a run that is cancelled, the store may be closed
            for lost in range(MOST_LOST_RACES if self.listed else 0):
                await pause(lost)
                gone = {(op.namespace, op.key): op for op in (self.left | self.listed).values()}
                values = await self.records.values([*gone], refresh=False)
                given = {
                    place: value
                    for place, value in zip(gone, values, strict=True)
                    if isinstance(value, dict) and self._may_forget(place, value)
                }
                if await self.records.commit([gone[place] for place in given], given):
                    return

    def _may_forget(self, place: Place, value: Mapping[str, object]) -> bool:
        holder = str(value.get("holder"))
        ours = place in {(op.namespace, op.key) for op in self.listed.values()}
        return holder == self.holder or (not ours and not is_alive(holder))

    async def wait(self, note: PutOp, tell: Callable[[Hold], object]) -> bool:
        """Wait until nobody holds the memory, but not beyond the deadline; say whether anybody did.

        A store that is away is not waited for longer than the holder of a lease is.

        Args:
            note: what lists a fold as one that waits. It is put again if another reading, which
                lists the same fold, has overwritten it.
            tell: is called once, if anybody holds the memory.
        """
        loop = asyncio.get_running_loop()
        seen, since, answered, seconds = None, loop.time(), loop.time(), _FIRST_PAUSE
        places = [self.place, (note.namespace, note.key)]
        while self.asked is not None:
            try:
                held, listed = await self.records.values(places, refresh=False)
                there, answered = sharing.hold_of(held), loop.time()
                if there is not None and not (seen and sharing.is_held(listed)):
                    await self.records.items([note])
            except StoreError:
                there = (seen or self.asked) if loop.time() - answered < LAPSE else None
            if there is None:
                self.asked = None
                break
            if seen is None:
                self.waits += 1
                tell(there)
            if there != seen:
                seen, since = there, loop.time()
            elif loop.time() - since >= there.seconds:
                with suppress(StoreError):  # an edit under it is refused from now on
                    await sharing.release_hold(self.records, there)
            if self.is_late:
                break
            left = self._seconds_left()
            await asyncio.sleep(seconds if left is None else min(seconds, left))
            seconds = min(2 * seconds, _LONGEST_PAUSE)
        return seen is not None


@contextmanager
def ending(chain: Chain | None) -> Iterator[None]:
    """Take a reading out of the list if it is cancelled, and then let others read on."""
    try:
        yield
    except asyncio.CancelledError:
        if chain is not None:
            task = asyncio.ensure_future(_abandon(chain))
            _ending.add(task)
            task.add_done_callback(_ending.discard)
        raise


async def _abandon(chain: Chain) -> None:
    with suppress(Exception):  # the store may be closed
        await chain.abandon()
