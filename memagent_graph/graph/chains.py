"""The chains of a call of the graph: finding them, waiting while one is held, and their end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memagent_graph.graph.holding import ending
from memagent_graph.graph.records import SourceRecord, memory_of, round_of
from memagent_graph.graph.versions import Chain

if TYPE_CHECKING:
    from memagent_graph.evidence.places import Memory
    from memagent_graph.graph.reading import Reading
    from memagent_graph.graph.records import Fold
    from memagent_graph.graph.state import Run


def chain_of(reading: Reading, run: Run, fold: Fold) -> Chain | None:
    """The chain of a fold in this call; None for one that began without a store."""
    if run.store is None or fold["progress"]["version"] is None:
        return None
    name = chain_name(fold["source"])
    if name not in run.chains:  # of a resumed run
        return begin_chain(reading, run, fold["question"], fold["source"])
    return run.chains[name]


def begin_chain(reading: Reading, run: Run, question: str, record: SourceRecord) -> Chain:
    """Make the chain of a fold that begins in this call; for the arguments, see `Chain`."""
    whole = _whole(reading, run, question, record)
    chain = run.chains[chain_name(record)] = Chain(reading, run, question, record, whole=whole)
    return chain


def chain_name(record: SourceRecord) -> str:
    """Tells the chains of a run apart: each segment has another in each round."""
    name = record.get("fold", "")
    return f"{name} {round_of(record)}" if "whole" in record else name


def _whole(reading: Reading, run: Run, question: str, record: SourceRecord) -> Chain | None:
    """Of a segment, the chain that it is merged into."""
    if "whole" not in record:
        return None
    name = record["whole"]
    if name not in run.chains:  # of a resumed run
        about = SourceRecord(fold=name, digest=record["digest"], segments=record["segments"])
        run.chains[name] = Chain(reading, run, question, about)
    return run.chains[name]


async def wait_while_held(reading: Reading, run: Run, fold: Fold, *, reads: bool = False) -> Fold:
    """Wait until a fold's memory is not held, or the deadline; return the fold with any edit."""
    left, chain = reading.seconds_left(run), chain_of(reading, run, fold)
    if chain is None or (left is not None and left <= 0):
        return fold
    with ending(chain):
        return await chain.held(fold, reads=reads)


async def finish(reading: Reading, run: Run, fold: Fold) -> tuple[Memory, list[str]]:
    """Wait until a fold is stored; return its memory (or that of another writer) and warnings.

    Raises:
        StoreError: A version could not be stored, and the configuration is strict.
    """
    chain = chain_of(reading, run, fold)
    other, warnings = (None, []) if chain is None else await chain.finish(fold)
    return other or memory_of(fold), warnings
