"""A fold and the others: it follows who reads the same, and waits for who holds its memory."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from memagent_graph.errors import BadRecordError, StoreError
from memagent_graph.graph.following import Sharing
from memagent_graph.graph.holding import HeldUpError
from memagent_graph.graph.pausing import Pauses, lease_key
from memagent_graph.memory.lookup import edit_of, readable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from contextlib import AbstractAsyncContextManager

    from langgraph.store.base import PutOp

    from memagent_graph.evidence.places import Recalled
    from memagent_graph.graph.holding import Holding
    from memagent_graph.graph.known import Known
    from memagent_graph.graph.lineage import Lineage
    from memagent_graph.graph.reading import Reading
    from memagent_graph.graph.records import Fold
    from memagent_graph.graph.state import Run
    from memagent_graph.memory.bank import MemoryBank
    from memagent_graph.memory.version import MemoryVersion
    from memagent_graph.text.chunks import Chunk


class Company:
    """What one fold has to do with others that read the same, or hold its memory.

    Args:
        reading: the reading's settings.
        run: the call of the graph.
        lineage: the fold's versions.
        known: says whether the fold began in this call, and is told why the store was not asked.
        bank: has the versions that are stored.
        holding: the fold's memory, which others may hold.
        all_stored: waits for the versions that are being written, and returns whether all are
            stored: others cannot edit the rest.
    """

    def __init__(
        self,
        reading: Reading,
        run: Run,
        lineage: Lineage,
        known: Known,
        bank: MemoryBank,
        holding: Holding,
        *,
        all_stored: Callable[[], Awaitable[bool]],
    ) -> None:
        self._lineage, self._known, self._bank, self._holding = lineage, known, bank, holding
        self._all_stored = all_stored
        self._follows = lineage.reuses and reading.config.lease
        left = partial(reading.seconds_left, run)
        self._sharing = Sharing(bank, left, alone=not self._follows)
        self._pauses = Pauses(reading, run, holding, lineage.root, shares=self._follows)
        # Whether the store is asked for each chunk: until it does not know one.
        self._replays = lineage.reuses and not lineage.is_listed
        self._passed: list[str] = []  # versions taken over from another run since it is followed

    @property
    def edits(self) -> dict[str, MemoryVersion]:
        """What persons made of versions of this fold, by the ids of these."""
        return self._pauses.edits

    def notes(self, fold: Fold) -> list[PutOp]:
        """Return the writes that list a fold; none for a follower, whose leader is listed."""
        return [self._pauses.note(fold)] if self._sharing.leads else []

    async def wait(self, fold: Fold, *, reads: bool) -> Fold:
        """Wait while the memory is held, up to the deadline; the fold to go on from.

        If a person edited its version meanwhile, it goes on from the edit.

        Args:
            fold: the fold as it is.
            reads: whether a chunk is to be read next.
        """
        leads = self._sharing.leads
        if not self._pauses.looked and (reads or not self._known.begun):
            await (self._pauses.enter if leads or not reads else self._pauses.look)(fold)
        # A follower waits where its leader does: a version that this one has passed is not edited.
        if self._holding.asked is not None and (leads or not reads) and await self._all_stored():
            await self._pauses.wait(fold, self.beating())
        await self._pauses.look_for_edits(fold)
        return self._pauses.edited(fold)

    async def followed(
        self, fold: Fold, parent: str, chunk: Chunk, recalled: Sequence[Recalled]
    ) -> MemoryVersion | None:
        """What another agent, which reads the same, made of a chunk; None to read it here.

        Args:
            fold: the fold before the chunk.
            parent: id of the version to read from.
            chunk: the chunk to read.
            recalled: what is shown again with it.

        Raises:
            TimeoutError: The deadline came first.
            HeldUpError: The memory is held, or the version to read on from was edited.
        """
        key = self._lineage.child(parent, chunk, recalled)
        found, look = None, partial(self._stored, fold, parent, key)
        if self._follows:
            begin = lease_key(fold["source"], self._lineage.root)
            found = await self._sharing.followed(begin, look)
        if found is None and self._replays:
            found = await look()
            self._replays = found is not None
        if found is None:
            await self._lead(fold)
        elif not self._sharing.leads:
            self._pauses.listed = False
            self._passed.append(parent)
        return found

    async def _lead(self, fold: Fold) -> None:
        """Read for others too: list the fold, unless it is.

        Raises:
            HeldUpError: The memory is held, or the version to read on from was edited.
        """
        if self._pauses.listed:
            return
        await self._pauses.enter(fold)
        await self._pauses.look_at(self._passed)
        self._passed.clear()
        held = self._holding.asked is not None and await self._all_stored()
        if held or self._pauses.edited(fold) is not fold:
            raise HeldUpError

    async def _stored(self, fold: Fold, parent: str, key: str) -> MemoryVersion | None:
        """The version after a chunk, if another agent, or a reading that was broken off, has it.

        Raises:
            HeldUpError: The memory is held, or the version to read on from was edited.
        """
        records, memory = self._bank.records, self._holding.memory
        places = [(records.versions, key), (records.versions, parent), self._holding.place]
        try:
            child, before, hold = await records.values(places)
            self._holding.saw(hold)
            if edit_of(before, memory) is not None:
                await self._pauses.find_edit(fold)
                if self._pauses.edited(fold) is not fold:
                    raise HeldUpError
            found = None if child is None else await readable(records, key, child)
        except BadRecordError:
            found = None
        except StoreError as error:
            self._known.missed = str(error)
            return None
        held = found is None and self._holding.asked is not None and self._sharing.leads
        if held and await self._all_stored():
            raise HeldUpError
        return found

    def beating(self) -> AbstractAsyncContextManager[object]:
        """Shows who follows that this run lives while it waits for its model."""
        return self._sharing.beating()

    async def missed(self) -> str | None:
        """Say which edits the fold did not go on from: too late, or the store was away."""
        return await self._pauses.missed()

    async def release(self) -> None:
        """Let others read on."""
        await self._sharing.release()

    async def leave(self) -> None:
        """Take the reading out of the list, and only then let others read on: they list theirs."""
        await self._holding.end()
        await self.release()

    async def begin_anew(self, head: str) -> None:
        """Begin at another reading's version; the chain from there is another's to read."""
        await self.release()
        self._sharing.forget()
        self._pauses.begin_anew(head)
