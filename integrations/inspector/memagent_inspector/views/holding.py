"""Readings under way, and who holds them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from memagent_graph.errors import MemoryConflictError

if TYPE_CHECKING:
    from memagent_graph.memory.bank import MemoryBank
    from memagent_graph.memory.sharing import Hold, UnderWay


@dataclass(frozen=True, slots=True)
class Controls:
    """The changes that can be made to a reading now.

    Attributes:
        memory: what is read into.
        folds: those under way.
        hold: who holds it; None if nobody does.
        mine: whether that is the visitor.
    """

    memory: str
    folds: list[UnderWay]
    hold: Hold | None
    mine: bool

    @property
    def paused(self) -> list[UnderWay]:
        """The folds that wait, and can be edited."""
        return [fold for fold in self.folds if fold.held and fold.version]

    @property
    def state(self) -> str:
        """Another one whenever something would be shown differently."""
        folds = [f"{fold.fold}.{fold.step}.{fold.held}.{fold.version}" for fold in self.folds]
        return "-".join(["" if self.hold is None else self.hold.id, str(self.mine), *folds])


async def controls_of(bank: MemoryBank, memory: str, hold_id: str = "") -> Controls:
    """Return what the holder can do about a reading."""
    folds = await bank.aunder_way(memory)
    hold = await bank.aheld(memory)
    return Controls(memory, folds, hold, hold is not None and hold.id == hold_id)


async def hold_of(bank: MemoryBank, memory: str, hold_id: str) -> Hold:
    """The hold that a visitor has.

    Raises:
        MemoryConflictError: It lapsed, or was released.
    """
    found = await bank.aheld(memory)
    if found is None or found.id != hold_id:
        message = (
            f"{memory!r} is no longer paused: it was let go, or its page was closed for too long. "
            "Pause it again."
        )
        raise MemoryConflictError(message)
    return found


async def list_readings(bank: MemoryBank) -> list[Controls]:
    """All readings under way, each with its folds."""
    folds = sorted(await bank.aunder_way(), key=lambda fold: fold.memory)
    return [
        Controls(memory, [*members], None, mine=False)
        for memory, members in groupby(folds, lambda fold: fold.memory)
    ]
