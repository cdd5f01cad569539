"""Store a version unless it exists, and return what is stored."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

from memagent_graph.errors import BadRecordError, NewerRecordError
from memagent_graph.memory import lookup, owners
from memagent_graph.memory.owners import owners_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from langgraph.store.base import PutOp

    from memagent_graph.memory.atomic import Value
    from memagent_graph.memory.records import Place, Records
    from memagent_graph.memory.version import MemoryVersion

_log = logging.getLogger(__name__)


class Appended(NamedTuple):
    """The result of `append`.

    Attributes:
        version: the version now stored: the given one, or that of a writer who was first.
        beside: the other item that was asked for; None if there is none.
        edited: whether a person has replaced the version by an edit.
    """

    version: MemoryVersion
    beside: Value | None = None
    edited: bool = False


async def append(
    records: Records,
    version: MemoryVersion,
    owner: str | None = None,
    topic: str | None = None,
    *,
    also: Sequence[PutOp] = (),
    beside: Place | None = None,
) -> Appended:
    """See `MemoryBank.aappend`.

    Args:
        records: the bank's records.
        version: see `MemoryBank.aappend`.
        owner: see `MemoryBank.aappend`.
        topic: see `MemoryBank.aappend`.
        also: further puts in the same round trip.
        beside: another item to read in it.
    """
    value = {**version.to_record(), "owners": [] if owner is None else [owner]}
    listed = [] if owner is None else [records.put(records.members(owner), version.id, {})]
    found = None
    try:
        found = await records.call(
            lambda: records.atomic.aput_if_absent(
                records.versions,
                version.id,
                value,
                topic=topic or version.root,
                also=[*listed, *also],
                beside=beside,
                ttl=records.ttl,
            )
        )
        stored = found.value
        kept = version if stored == value else await lookup.readable(records, version.id, stored)
    except NewerRecordError as error:
        _log.warning("%s It was left as it is.", error)
        return Appended(version, None if found is None else found.beside)
    except BadRecordError as error:
        _log.info("%s It was replaced.", error)
        value["owners"] = sorted({*value["owners"], *await lookup.list_owners(records, version.id)})
        await records.items([records.put(records.versions, version.id, value), *listed, *also])
        return Appended(version, None if found is None else found.beside)
    if owner is not None and owner not in owners_of(stored):
        await owners.adopt(records, owner, version.id)
    return Appended(kept, found.beside, lookup.edit_of(stored, owner) is not None)
