"""What readings cost, as far as their answers are kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from memagent_graph.readers.base import Usage
from memagent_inspector.views.listing import list_page

if TYPE_CHECKING:
    from memagent_graph.memory.bank import MemoryBank
    from memagent_graph.memory.runs import KeptAnswer
    from memagent_inspector.views.listing import Kind, Row

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
    priced.sort(key=lambda pair: _weight(pair[1]), reverse=True)
    answers = [answer for _, answer in priced]
    return Costs(
        priced[:_MOST_SHOWN],
        len(priced),
        len(rows) - len(priced),
        sum(answer.times for answer in answers),
        sum((answer.usage for answer in answers), Usage()),
        whole,
    )


def _weight(answer: KeptAnswer) -> tuple[int, int]:
    """Tokens first, then calls: some servers count no tokens."""
    usage = answer.usage
    return usage.input_tokens + usage.output_tokens, usage.calls
