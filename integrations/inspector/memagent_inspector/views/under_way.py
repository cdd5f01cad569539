"""Readings under way."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from memagent_graph.memory.bank import MemoryBank
    from memagent_graph.memory.leases import UnderWay


@dataclass(frozen=True, slots=True)
class FoldsOf:
    """The readings into a memory that are under way.

    Attributes:
        memory: what is read into.
        folds: those under way.
    """

    memory: str
    folds: list[UnderWay]

    @property
    def state(self) -> str:
        """Another one whenever something would be shown differently."""
        return "-".join(
            f"{fold.fold}.{fold.step}.{fold.version}.{fold.taken}" for fold in self.folds
        )


async def folds_of(bank: MemoryBank, memory: str) -> FoldsOf:
    """Return what reads into a memory now."""
    return FoldsOf(memory, await bank.aunder_way(memory))


async def list_readings(bank: MemoryBank) -> list[FoldsOf]:
    """All readings under way, each with its folds."""
    folds = sorted(await bank.aunder_way(), key=lambda fold: fold.memory)
    return [
        FoldsOf(memory, [*members]) for memory, members in groupby(folds, lambda fold: fold.memory)
    ]
