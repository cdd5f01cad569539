"""How a reading meets the store: versions found again, followed, stored, and heads moved."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar
from uuid import uuid4

from memagent_graph.errors import (
    ConfigurationError,
    MemoryConflictError,
    MemoryNotFoundError,
    StoreError,
)
from memagent_graph.memory.atomic import MOST_LOST_RACES, pause
from memagent_graph.memory.bank import MemoryBank, edited
from memagent_graph.memory.version import MemoryVersion, child_id, reading_fingerprint, root_id
from memagent_graph.memory.writer import VersionWriter
from memagent_graph.readers.base import Evidence
from memagent_graph.state import Progress, known_evidence

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterator

    from memagent_graph.reading import Reading
    from memagent_graph.state import ReadingState, Run
    from memagent_graph.text.chunking import Chunk
    from memagent_graph.text.source import Source

Changes = dict[str, Any]
T = TypeVar("T")


def start() -> Progress:
    """The progress of a reading that has not begun."""
    return Progress(
        position=0,
        step=0,
        tokens=0,
        calls=0,
        input_tokens=0,
        output_tokens=0,
        seconds=0.0,
        cut=False,
        stopped=None,
        version=None,
    )


async def begin(reading: Reading, state: ReadingState, run: Run, source: Source) -> Changes:
    """Where to begin: at the head of a named memory, or nowhere; past all chunks known from there.

    Raises:
        StoreError: The store cannot be reached.
        ConfigurationError: A memory is named, and there is no store.
    """
    name = state.get("memory_name")
    fresh: Changes = {"memory": "", "places": [], "progress": start(), "source": _record(source)}
    if run.store is None:
        if name:
            raise ConfigurationError("A named memory needs a store: create_memagent(store=...).")
        return fresh
    bank = _bank(run)
    run.fingerprint = reading.fingerprint
    reuses = reading.reuses and run.config.get("configurable", {}).get("memagent_reuse", True)
    if not reuses:
        run.fingerprint = reading_fingerprint(reading.fingerprint, uuid4())
    fresh["progress"]["version"] = root_id(state["question"], run.fingerprint)
    if name:
        head = await _reach(bank.ahead(name))
        fresh["source"] |= {"memory_name": name, "head": head.id if head else None}
        if head is not None:
            fresh |= _from_version(head)
            fresh["progress"]["version"] = head.id
    if reuses:
        read: list[Chunk] = []
        found = await _reach(bank.afind(_ids(reading, run, source, fresh, read)))
        if found is not None:
            if name and found.end >= source.length:
                # All of it was read before, by another name or by a run that was killed here.
                expected = fresh["source"]["head"]
                if not await _reach(bank.amove_head(name, found.id, expected=expected)):
                    return await begin(reading, state, run, source)
            fresh |= _from_version(found)
            known = [chunk for chunk in read if chunk.end <= found.end]
            fresh["progress"] |= {
                "position": found.end,
                "step": len(known),
                "tokens": sum(chunk.tokens for chunk in known),
                "version": found.id,
                "stopped": "end" if found.end >= source.length else None,
            }
    return fresh


async def recall(run: Run, reference: str) -> Changes:
    """A stored memory as the end of a reading, to be answered from.

    Raises:
        MemoryNotFoundError: There is no such version or name.
        ConfigurationError: There is no store.
    """
    if run.store is None:
        raise ConfigurationError("A stored memory needs a store: create_memagent(store=...).")
    version = await _reach(_bank(run).aget(reference))
    progress = start() | {
        "position": version.end,
        "step": version.step,
        "stopped": "end",
        "version": version.id,
    }
    source = {
        "name": version.source_name,
        "digest": version.source,
        "length": version.length,
        "uri": None,
    }
    return {"source": source, "progress": progress, **_from_version(version)}


async def current(
    reading: Reading, state: ReadingState, run: Run
) -> tuple[str, str | None, list[Evidence]]:
    """The memory to read on from, its version's id, and its evidence.

    A memory that a person edited in the state first becomes a version of its own: otherwise the
    stored child of the unedited one would overtake the edit.
    """
    memory, version = state["memory"], state["progress"]["version"]
    evidence = known_evidence(state)
    if run.store is None or version is None or run.known == (version, memory):
        return memory, version, evidence
    run.fingerprint = run.fingerprint or reading.fingerprint
    before = await _stored(run, version)
    if before is None and state["progress"]["step"] == 0:
        before = _nothing(state, run, version)
    if before is None or before.text == memory:
        return memory, version, evidence
    after = edited(before, memory)
    _writer(run, state).add(after)
    return memory, after.id, evidence


async def adopted(run: Run) -> MemoryVersion | None:
    """What another agent stored first for the memory that was just read from, if it differs."""
    return None if run.writer is None else await run.writer.settle()


async def store_version(
    reading: Reading,
    state: ReadingState,
    run: Run,
    chunk: Chunk,
    update: Changes,
    parent: str | None,
) -> Changes:
    """Begin to store the memory after `chunk`; at the end move a named memory's head to it.

    Args:
        reading: whose reading it is.
        state: the state before the chunk.
        run: the call of the graph.
        chunk: what was read.
        update: the changes of the state: memory, places, progress.
        parent: id of the version that was read from.

    Returns:
        The changes, begun anew at the winner's head if a race for the head was lost.
    """
    if run.store is None or parent is None:
        return update
    progress: Progress = update["progress"]
    version = MemoryVersion(
        id=child_id(parent, chunk.digest, run.fingerprint),
        parent=parent,
        root=root_id(state["question"], run.fingerprint),
        text=update["memory"],
        tokens=reading.tokenizer.count(update["memory"]),
        step=progress["step"],
        question=state["question"],
        source=chunk.source.digest,
        source_name=chunk.source.name,
        start=chunk.start,
        end=chunk.end,
        length=chunk.source.length,
        fingerprint=run.fingerprint,
        evidence=tuple(_evidence(update["places"])),
        cut=progress["cut"],
    )
    _writer(run, state).add(version)
    run.known = (version.id, version.text)
    progress["version"] = version.id
    if not progress["stopped"]:
        return update
    if state["source"].get("memory_name"):
        return await _move_head(reading, state, run, update)
    run.finished = version
    return update


async def finish(reading: Reading, run: Run) -> tuple[MemoryVersion | None, list[str]]:
    """Wait until all is stored; say what another agent stored first, and what could not be.

    Raises:
        StoreError: Strict, and something could not be stored.
    """
    if run.writer is None:
        return None, []
    other = await run.writer.settle()
    left = await run.writer.flush()
    try:
        if not left and run.finished is not None:
            await run.writer.bank.arecord_reading(run.finished)
    except Exception as error:  # noqa: BLE001 - whatever a store raises, the answer is there
        run.writer.error, left = error, 1
    if not left:
        return other, []
    message = f"{left} memory versions could not be stored: {run.writer.error}"
    if reading.config.strict:
        raise StoreError(message)
    return other, [message]


async def _move_head(reading: Reading, state: ReadingState, run: Run, update: Changes) -> Changes:
    record, progress = state["source"], update["progress"]
    name = record["memory_name"]
    bank = _bank(run)
    await finish(reading, run)
    if await _reach(bank.amove_head(name, progress["version"], expected=record["head"])):
        return update
    run.lost += 1
    if run.lost > MOST_LOST_RACES:
        message = (
            f"Other writers moved {name!r} on {run.lost} times. What was read is kept as version "
            f"{progress['version']}: branch it, or read again."
        )
        raise MemoryConflictError(message)
    await pause(run.lost)
    head = await _reach(bank.ahead(name))
    if head is None:  # it was deleted meanwhile: begin as if it had never been
        root = root_id(state["question"], run.fingerprint)
        begun: Changes = {"memory": "", "places": [], "version": root, "head": None}
    else:
        begun = {**_from_version(head), "version": head.id, "head": head.id}
    again = {**progress, "position": 0, "stopped": None, "version": begun.pop("version")}
    return {"source": {**record, "head": begun.pop("head")}, "progress": again, **begun}


def _ids(
    reading: Reading, run: Run, source: Source, fresh: Changes, read: list[Chunk]
) -> Iterator[str]:
    """Ids of the versions after each chunk, worked out as they are asked for."""
    parent, position = fresh["progress"]["version"], 0
    while chunk := reading.chunk_at(source, position):
        read.append(chunk)
        parent = child_id(parent, chunk.digest, run.fingerprint)
        position = chunk.end
        yield parent


async def _stored(run: Run, version: str) -> MemoryVersion | None:
    try:
        return await _reach(_bank(run).aget(version))
    except MemoryNotFoundError:  # the root, or a version that was never written
        return None


def _nothing(state: ReadingState, run: Run, root: str) -> MemoryVersion:
    """The memory before the first chunk, which is not stored, as what an edit follows."""
    source = state["source"]
    return MemoryVersion(
        id=root,
        parent="",
        root=root,
        text="",
        tokens=0,
        step=0,
        question=state["question"],
        source=source["digest"],
        source_name=source["name"],
        start=0,
        end=0,
        length=source["length"],
        fingerprint=run.fingerprint,
    )


def _record(source: Source) -> dict[str, Any]:
    return {
        "name": source.name,
        "digest": source.digest,
        "length": source.length,
        "uri": source.uri,
    }


def _from_version(version: MemoryVersion) -> Changes:
    places = [[e.text, e.source, e.line, e.start, e.end] for e in version.evidence]
    return {"memory": version.text, "places": places}


def _evidence(places: list[list[Any]]) -> list[Evidence]:
    return [Evidence(*row) for row in places]


def _bank(run: Run) -> MemoryBank:
    if run.bank is None:
        assert run.store is not None  # noqa: S101 - its callers checked
        run.bank = MemoryBank(run.store)
    return run.bank


def _writer(run: Run, state: ReadingState) -> VersionWriter:
    if run.writer is None:
        run.writer = VersionWriter(_bank(run), state["source"].get("memory_name"))
    return run.writer


async def _reach(operation: Awaitable[T]) -> T:
    """The result of a store's operation, its failure as one of our errors."""
    try:
        return await operation
    except StoreError:
        raise
    except Exception as error:
        message = f"The memory store failed: {type(error).__name__}: {error}"
        raise StoreError(message) from error
