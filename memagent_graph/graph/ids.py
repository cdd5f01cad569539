"""The versions of a fold: their ids, and their records."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast
from uuid import uuid4

from memagent_graph.errors import BadRecordError
from memagent_graph.evidence.places import Memory, locate
from memagent_graph.graph.state import VERSIONS, is_segmented, memory_of
from memagent_graph.memory.version import (
    ChunkRead,
    MemoryVersion,
    ReadDocument,
    VersionMerge,
    child_id,
    make_fingerprint,
    make_reading_key,
    merge_id,
    root_id,
)
from memagent_graph.sync import see_checkpoints, wait_for
from memagent_graph.text.source import JoinedSource, parts_with_offsets

if TYPE_CHECKING:
    from collections.abc import Sequence

    from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple

    from memagent_graph.graph.chunks import Cutter
    from memagent_graph.graph.reading import Reading
    from memagent_graph.graph.state import Document, Fold, Scope
    from memagent_graph.text.chunks import Chunk
    from memagent_graph.text.source import Source

_HAS = {"question", "source", "scope", "memory", "places", "progress", "layers"}
"""Channels of a fold that has begun."""


class Lineage:
    """The versions of a fold, whether they are stored or not. The first is the root.

    Attributes:
        fingerprint: distinguishes its versions from those of other settings; if memories are not
            reused, from those of any other run.
        reuses: whether versions are taken over from readings of the same.
        is_segment: whether it is that of a segment, which is merged into `whole`.
        is_listed: whether its ids follow from the document alone, before anything is read.
        root: the id before the first chunk.
    """

    def __init__(
        self, reading: Reading, fold: Fold, *, reuses: bool, whole: Lineage | None = None
    ) -> None:
        known, question = _fingerprint(reading, fold["scope"]), fold["question"]
        self.question, self.reuses = question, reuses
        self.fingerprint = known if reuses else make_fingerprint(known, uuid4())
        self.is_segment = whole is not None
        self.is_listed = not any(layer.depends_on_memory(question) for layer in reading.layers)
        self.root = root_id(question, self.fingerprint)
        self._asked = root_id(question, known)
        self._whole = self if whole is None else whole
        self._reading = reading

    def memory(self, fold: Fold) -> str:
        """Return the memory that the versions belong to: its name, or the reading's key."""
        name = fold["scope"]["memory_name"]
        return name or make_reading_key(self._whole.root, fold["source"]["digest"])

    def identify(self, source: Document) -> str:
        """Return the fingerprint of a reading: of its question, settings and document."""
        return make_fingerprint(self._asked, source["digest"])

    def child(self, parent: str, chunk: Chunk) -> str:
        """Return the id after a chunk that is read from `parent`."""
        return child_id(parent, chunk.digest, self.fingerprint)

    def first_of_each(self, cutter: Cutter) -> list[str]:
        """Return for each chunk the first id of a segment that begins there."""
        found = []
        for start, (digest, _) in cutter.origins.items():
            fingerprint = _from(self._reading.fingerprint, self.origin(cutter, start))
            root = root_id(self.question, fingerprint)
            found.append(child_id(root, digest, fingerprint))
        return found

    def origin(self, cutter: Cutter, start: int) -> str:
        """Return what a segment is known by: its place, if what it skips is not in its ids."""
        if not start:
            return ""  # a first segment is read as the beginning of the document is
        return cutter.origins[start][1] if self.is_listed else str(start)

    def id_of_merge(self, parts: Sequence[Fold]) -> str | None:
        """Return the id of what is merged from segments; None if nothing was read of them."""
        ids, starts = _read_versions(parts), (part["scope"]["start"] for part in parts)
        return merge_id(ids, make_fingerprint(self.fingerprint, *starts)) if ids else None

    def make_root(self, fold: Fold) -> MemoryVersion:
        """Return the root, which is not stored, as a version that an edit follows."""
        begin, made_by = fold["scope"]["start"], ChunkRead(fold["scope"]["start"])
        root = self._make(fold, begin, id=self.root, parent="", tokens=0, made_by=made_by)
        return replace(root, step=0, memory=Memory())

    def after_chunk(
        self, before: tuple[str, MemoryVersion | None], fold: Fold, chunk: Chunk, **made: Any
    ) -> MemoryVersion:
        """Return the version after a chunk, from the id that it was read from, and its version.

        `made` are further fields: its length in tokens, and whether it is unchanged.
        """
        parent, at = before
        others = () if at is None else at.documents
        made |= {"id": self.child(parent, chunk), "parent": parent, "made_by": _read_of(chunk)}
        digest = fold["source"]["digest"]
        sources = tuple(dict.fromkeys(row for row in others if row[0] != digest))
        return self._make(fold, chunk.end, sources=sources, **made)

    def after_merge(self, fold: Fold, parts: Sequence[Fold]) -> MemoryVersion | None:
        """Return the version that is merged from segments; None if nothing was read of them."""
        key = self.id_of_merge(parts)
        if key is None:  # the deadline came before the first chunk
            return None
        return self._make(
            fold,
            fold["progress"]["position"],
            id=key,
            parent=self.root,
            tokens=self._reading.count(fold["memory"]),
            made_by=VersionMerge(_read_versions(parts)),
        )

    def _make(self, fold: Fold, end: int, **made: Any) -> MemoryVersion:
        """The version of a fold that has read up to `end`; `made` are further fields."""
        source, progress = fold["source"], fold["progress"]
        about = source["digest"], source["name"], source["length"]
        skipped = tuple((first, last) for first, last in progress["skipped"])
        return MemoryVersion(
            root=self.root,
            question=self.question,
            fingerprint=self.fingerprint,
            step=progress["step"],
            document=ReadDocument(*about, end, skipped, progress["again"], fold["scope"]["start"]),
            memory=memory_of(fold),
            cut=progress["cut"],
            **made,
        )

    def with_version(self, fold: Fold, version: MemoryVersion) -> Fold:
        """Return a fold that ends with a version, and from which `version_of` makes it again."""
        progress = {**fold["progress"], "version": version.id}
        state = {**fold["layers"].get(VERSIONS, {}), "made": version.to_stub()}
        layers = {**fold["layers"], VERSIONS: state}
        return {**fold, "progress": progress, "layers": layers}  # type: ignore[typeddict-item]


def version_of(fold: Fold) -> MemoryVersion | None:
    """Return the version of a fold from what a checkpoint has of it; None if it has not."""
    made = fold["layers"].get(VERSIONS, {}).get("made")
    if made is None or made["id"] != fold["progress"]["version"]:
        return None
    try:
        return MemoryVersion.from_stub(made, memory_of(fold))
    except BadRecordError:  # of another release
        return None


async def aversions_in(checkpointer: BaseCheckpointSaver[Any]) -> list[MemoryVersion]:
    """Return the versions that the checkpoints of readings have, for `MemoryBank.check`.

    Every checkpoint of every thread is examined.
    """
    found: dict[str, MemoryVersion] = {}

    def keep(saved: CheckpointTuple) -> None:
        values = saved.checkpoint["channel_values"]
        tasks: dict[str, dict[str, Any]] = {}  # what was written after the checkpoint
        for task, channel, value in saved.pending_writes or ():
            tasks.setdefault(task, dict(values))[channel] = value
        for state in (values, *tasks.values()):
            folds = state.get("folds")  # of segments; a state of another graph may have others
            for fold in (state, *(folds.values() if isinstance(folds, dict) else ())):
                has = isinstance(fold, dict) and fold.keys() >= _HAS
                version = version_of(cast("Fold", fold)) if has else None
                # An edit of the state has the id of the version that it edits.
                if version is not None and not (version.edited and version.id in found):
                    found[version.id] = version

    await see_checkpoints(checkpointer, keep)
    return [*found.values()]


def versions_in(checkpointer: BaseCheckpointSaver[Any]) -> list[MemoryVersion]:
    """Return what `aversions_in` does, from synchronous code."""
    return wait_for(aversions_in(checkpointer))


def _fingerprint(reading: Reading, scope: Scope) -> str:
    """The fingerprint of a reading, or of one of its segments."""
    known = _from(reading.fingerprint, scope["origin"])
    if is_segmented(scope):
        known = make_fingerprint(known, "segments", reading.config.segments)
    return known


def _from(fingerprint: str, origin: str) -> str:
    return make_fingerprint(fingerprint, "from", origin) if origin else fingerprint


def relocate(version: MemoryVersion, fold: Fold, source: Source) -> MemoryVersion:
    """Return a stored version of a segment with the places that its text has in a fold's source."""
    document, memory = version.document, version.memory
    by = fold["scope"]["start"] - document.begin
    if document.digest == source.digest or not fold["scope"]["segment"]:
        return version
    evidence = tuple(
        locate(item.text, source, item.start + by, item.end + by) for item in memory.evidence
    )
    read = replace(document, begin=document.begin + by, end=document.end + by)
    return replace(version, document=read, memory=replace(memory, evidence=evidence))


def _read_of(chunk: Chunk) -> ChunkRead:
    """The record of a chunk for its version."""
    source = chunk.source
    found = parts_with_offsets(source, chunk.start, chunk.end)
    parts = ((part.digest, part.name) for part, _ in found if isinstance(source, JoinedSource))
    return ChunkRead(chunk.start, tuple(dict.fromkeys(parts)))


def _read_versions(parts: Sequence[Fold]) -> tuple[str, ...]:
    """The last versions of those segments of which anything was read."""
    read = [part["progress"] for part in parts if part["progress"]["step"]]
    return tuple(progress["version"] for progress in read if progress["version"])
