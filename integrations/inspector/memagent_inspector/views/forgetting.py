"""What would be gone if a memory, or a document, were forgotten."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from memagent_graph.memory.owners import owners_of
from memagent_graph.memory.version import followed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memagent_graph.memory.atomic import Value
    from memagent_graph.memory.bank import MemoryBank

_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class Preview:
    """What forgetting a memory would do.

    Attributes:
        versions: how many would be deleted.
        shared: other memories that have some of them, and how many: those stay.
    """

    versions: int
    shared: dict[str, int]


async def preview(bank: MemoryBank, name: str) -> Preview:
    """What forgetting a memory would delete.

    A version that another memory has stays, and so does all that led to it.
    """
    records = bank.records
    ids = await records.keys(records.members(name))
    values: dict[str, Value] = {}
    for first in range(0, len(ids), _AT_ONCE):
        found = await records.by_id(ids[first : first + _AT_ONCE])
        values |= {key: value for key, value in found if isinstance(value, dict)}
    shared = Counter[str]()
    kept: set[str] = set()
    for key, value in values.items():
        for other in {*owners_of(value)} - {name}:
            shared[other] += len(_led_to(key, values))
            kept |= _led_to(key, values)
    return Preview(len(values.keys() - kept), dict(shared))


def _led_to(key: str, values: Mapping[str, Value]) -> set[str]:
    """A version and those that it follows."""
    found, left = {key}, [key]
    while left:
        before = {*followed(values[left.pop()])} & values.keys()
        left += before - found
        found |= before
    return found
